# An image with golaunch, goddp and a program that trains, by default examples/fashion with its data set.
#
#	docker build -t goddp-train:1 .                                                          # for CPUs
#	docker build -t goddp-train:1 --build-arg BASE=nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04 .   # for GPUs
#	docker build -t mine:1 --build-arg PROGRAM=./examples/gpt --build-arg DATA= .            # another program
#
# The CUDA image brings NCCL, cuBLASLt, NVRTC and cuDNN, which goddp opens at run time. DATA is a package of
# Debian that installs a data set in /usr/share/datasets.
ARG BASE=debian:12-slim

FROM golang:1.26-bookworm AS build
ARG DATA=dataset-fashion-mnist
RUN mkdir -p /usr/share/datasets && apt-get update && apt-get install -y --no-install-recommends $DATA
ARG PROGRAM=./examples/fashion
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN go build -trimpath -ldflags=-s -o /out/ ./cmd/golaunch ./cmd/golaunch-etcd ./cmd/goddp
RUN go build -trimpath -ldflags=-s -o /out/train "$PROGRAM"

FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends libopenblas0-pthread libdnnl-dev && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/share/datasets/ /usr/share/datasets/
COPY --from=build /out/ /usr/local/bin/
ENTRYPOINT ["golaunch"]
CMD ["--help"]
