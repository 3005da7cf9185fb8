# Every target is a few commands that can be typed by hand.

GO ?= go
GOTEST ?= $(GO) test

# The packages with tests that -long adds.
LONG = $(shell grep -rlE --include='*_test.go' --exclude-dir=cucomm --exclude-dir=kubernetes --exclude-dir=browser \
	'testkit\.(Long|IsLong|Need)|commtest\.Processes' . | xargs -n1 dirname | sort -u)
# The packages whose tests run several goroutines in one process, which is what the race detector can see.
RACE = ./amp ./autograd ./checkpoint ./comm/... ./data ./ddp ./ddp/commhook ./ddp/internal/buckets ./ddp/zero ./device/cpu \
	./device/internal/arena ./launcher/... ./internal/store ./profile ./train \
	$(addprefix ./internal/,awake backend capture coordinator election flight handshake page telemetry wire)
# The packages with tests on the emulated GPU.
EMULATED = $(shell grep -rl --include='*_test.go' --exclude-dir=browser '^func TestEmulated' . | xargs -n1 dirname | sort -u)

.PHONY: build test long race emulated lint bench chaos hosts kubernetes browser fuzz test-gpu gpu-failures demo cross clean

build: ## the commands and the examples, into build/
	$(GO) build -o build/ ./cmd/... ./examples/...

test: ## the first rung, as the README says
	$(GOTEST) ./...

race: ## the first rung, without the tests that start processes, under the race detector
	$(GOTEST) -race $(RACE)

long: ## the first rung with jobs of processes, peers, whole simulations and waits in real time
	$(GOTEST) -timeout 20m $(LONG) -long -skip=Emulated

emulated: ## CUDA's kernels, NCCL and captured steps, on an emulated GPU; needs g++
	$(GOTEST) -timeout 20m $(EMULATED) -long -run=Emulated

lint:
	@test -z "$$(gofmt -l .)" || { echo "gofmt is needed on:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

cross: ## CPU-only builds, without cgo: on macOS all packages but those that need a large module, on Linux's other architecture the launcher and a worker
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 sh -c '$(GO) build $$($(GO) list -f "{{if .GoFiles}}{{.ImportPath}} {{join .Deps \" \"}}{{end}}" ./... | \
		grep -vE "gorgonia.org|parquet-go|etcd.io|gonum.org/v1/plot" | cut -d" " -f1)'
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) vet ./cmd/golaunch ./launcher ./examples/toy ./comm ./internal/store

bench:
	$(GO) test -run '^$$' -bench . ./...

chaos: ## a few hundred jobs that something bad is done to, and mutants that this must catch; CHAOS is its flags
	$(GO) run ./test/chaos $(CHAOS)

hosts: ## jobs on several hosts, each a network namespace, with 100 seeded kills; needs root, nftables and etcd; HOSTS is its flags
	$(GO) test ./test/hosts -count=1 -timeout 60m -v -long -kills 100 $(HOSTS)

kubernetes: ## the manifests of examples/kubernetes and the Dockerfile; a module of its own
	cd test/kubernetes && $(GO) vet ./... && $(GO) test ./... -long

browser: ## the page of golaunch in Chromium; a module of its own
	cd test/browser && $(GO) vet ./... && $(GO) test ./... -long

fuzz: ## every fuzz target for FUZZTIME, by default ten minutes each
	test/fuzz.sh

test-gpu: ## builds into build/gpu, which can be carried to a machine without Go, and runs it here
	mkdir -p build/gpu
	$(GO) test -c -ldflags='-s -w' -o build/gpu/ ./device/cuda ./comm/internal/nccl ./internal/testkit/commtest ./ddp ./ddp/zero ./ddp/commhook ./profile ./checkpoint
	$(GO) build -ldflags='-s -w' -o build/gpu/ ./cmd/... ./examples/... ./test/parity ./test/transformers ./test/matrix ./bench/percall ./bench/steps ./bench/hostcost
	test/test_gpu.sh

gpu-failures: ## the same for what happens on two GPUs when a rank fails
	mkdir -p build/gpu
	$(GO) build -ldflags='-s -w' -o build/gpu/ ./cmd/... ./test/chaos/... ./test/survive/... ./bench/overhead
	test/gpu_failures.sh

demo: build ## the two smallest programs, with traces
	build/golaunch --nproc-per-node 2 build/toy
	build/golaunch --nproc-per-node 2 build/mlp --size 512 --batch 64 --steps 10 --bucket-cap-mb 1 --trace trace_ddp_example.json

clean:
	rm -rf build trace_*.json
