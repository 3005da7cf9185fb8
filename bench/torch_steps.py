"""The steps of bench/steps in PyTorch DDP, for bench/steps.sh: steps in a row, without a wait between them.

Ways: plain, as users write it; tuned, with gradient_as_bucket_view and the fused SGD; compiled, the tuned
one under torch.compile; captured, the tuned one in a CUDA graph with its inputs copied into the graph's.
Prints rank 0's JSON object of bench/steps."""
import argparse
import json
import os
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

flags = argparse.ArgumentParser()
for name, default in (("size", 4000), ("batch", 1000), ("layers", 3), ("warmup", 15), ("steps", 60)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--bucket-cap-mb", type=float, default=25)
flags.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
flags.add_argument("--way", choices=("plain", "tuned", "compiled", "captured"), default="tuned")
args = flags.parse_args()

gpu = torch.cuda.is_available()
if gpu:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = os.environ.get("GODDP_ALLOW_TF32") == "1"
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
wait = torch.cuda.synchronize if gpu else lambda: None
dtype = getattr(torch, args.dtype)


def numbers(k, shape, scale):
    i = numpy.arange(numpy.prod(shape), dtype=numpy.uint64) + numpy.uint64((k << 32) + 1)
    h = (i * numpy.uint64(0x9E3779B97F4A7C15)) >> numpy.uint64(40)
    values = (h.astype(numpy.float32) / numpy.float32(1 << 23) - numpy.float32(1)) * numpy.float32(scale)
    return torch.from_numpy(values.reshape(shape)).to(device, dtype)


modules = []
for i in range(args.layers):
    modules += [nn.ReLU()] * (i > 0) + [nn.Linear(args.size, args.size)]
net = nn.Sequential(*modules).to(device, dtype)
with torch.no_grad():
    for k, p in enumerate(net.parameters()):
        p.copy_(numbers(k, tuple(p.shape), args.size**-0.5))
tuned = args.way != "plain"
side = torch.cuda.Stream() if args.way == "captured" else None
with torch.cuda.stream(side):
    model = DistributedDataParallel(net, bucket_cap_mb=args.bucket_cap_mb, gradient_as_bucket_view=tuned)
if args.way == "compiled":
    model = torch.compile(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.001, **({"fused": True} if gpu and tuned else {}))
data = [[numbers(1000 + 10 * dist.get_rank() + 2 * i + k, (args.batch, args.size), 1) for k in range(2)] for i in range(2)]


def train(x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


n = 0
step = train


def run(steps):
    global n
    for _ in range(steps):
        n += 1
        loss = step(*data[n % 2])
    wait()
    return loss


if args.way == "captured":
    run_eagerly = max(args.warmup - 1, 11)  # DDP wants eleven steps before a capture
    wait()
    with torch.cuda.stream(side):
        run(run_eagerly)
    inputs = [t.clone() for t in data[0]]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = train(*inputs)

    def step(*batch):
        for to, value in zip(inputs, batch):
            to.copy_(value)
        graph.replay()
        return result


run(args.warmup if args.way != "captured" else 1)
dist.barrier()
wait()
start = time.perf_counter()
run(args.steps)
took = (time.perf_counter() - start) / args.steps * 1e3
losses = [run(1).item() for _ in range(5)]
if dist.get_rank() == 0:
    peak = torch.cuda.max_memory_allocated() / 2**20 if gpu else 0
    print(json.dumps({"ranks": dist.get_world_size(), "step_ms": took, "peak_mib": peak, "losses": losses}))
dist.destroy_process_group()
