"""The steps of bench/steps in PyTorch DDP, for bench/steps.sh: steps in a row, without a wait between them.
With --latency, for bench/cpu_ddp.sh and bench/gpu_ddp.sh, each step begins with a barrier and ends with a
synchronisation, and the median is printed instead of the mean.

Ways: plain, as users write it; tuned, with gradient_as_bucket_view and the fused SGD; compiled, the tuned
one under torch.compile; captured, the tuned one in a CUDA graph with its inputs copied into the graph's.
Rank 0 prints the JSON object of bench/steps for each type and way, in the order in which they are given."""
import argparse
import gc
import json
import os
import statistics
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
flags.add_argument("--types", nargs="+", choices=("float32", "tf32", "bfloat16"), default=["float32"])
flags.add_argument("--ways", nargs="+", choices=("plain", "tuned", "compiled", "captured"), default=["plain", "tuned"])
flags.add_argument("--latency", action="store_true")
args = flags.parse_args()

gpu = torch.cuda.is_available()
if gpu:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
wait = torch.cuda.synchronize if gpu else lambda: None


def numbers(k, shape, scale, dtype):
    i = numpy.arange(numpy.prod(shape), dtype=numpy.uint64) + numpy.uint64((k << 32) + 1)
    h = (i * numpy.uint64(0x9E3779B97F4A7C15)) >> numpy.uint64(40)
    values = (h.astype(numpy.float32) / numpy.float32(1 << 23) - numpy.float32(1)) * numpy.float32(scale)
    return torch.from_numpy(values.reshape(shape)).to(device, dtype)


def measure(kind, way):
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    modules = []
    for i in range(args.layers):
        modules += [nn.ReLU()] * (i > 0) + [nn.Linear(args.size, args.size)]
    net = nn.Sequential(*modules).to(device, dtype)
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(numbers(k, tuple(p.shape), args.size**-0.5, dtype))
    tuned = way != "plain"
    side = torch.cuda.Stream() if way == "captured" else None
    with torch.cuda.stream(side):
        model = DistributedDataParallel(net, bucket_cap_mb=args.bucket_cap_mb, gradient_as_bucket_view=tuned)
    if way == "compiled":
        model = torch.compile(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, **({"fused": True} if gpu and tuned else {}))
    batch = lambda k: numbers(1000 + 10 * dist.get_rank() + k, (args.batch, args.size), 1, dtype)
    data = [[batch(2 * i + k) for k in range(2)] for i in range(2)]

    def train(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step, n = train, 0

    def run(steps):
        nonlocal n
        for _ in range(steps):
            n += 1
            loss = step(*data[n % 2])
        wait()
        return loss

    if way == "captured":
        wait()
        with torch.cuda.stream(side):
            run(max(args.warmup - 1, 11))  # DDP wants eleven steps before a capture
        inputs = [t.clone() for t in data[0]]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = train(*inputs)

        def replay(*batch):
            for to, value in zip(inputs, batch):
                to.copy_(value)
            graph.replay()
            return result

        step = replay
    run(args.warmup if way != "captured" else 1)
    times = []
    for steps in [1] * args.steps if args.latency else [args.steps]:
        wait()
        dist.barrier()
        wait()
        start = time.perf_counter()
        run(steps)
        times.append((time.perf_counter() - start) / steps * 1e3)
    losses = [run(1).item() for _ in range(5)]
    peak = torch.cuda.max_memory_allocated() / 2**20 if gpu else 0
    if dist.get_rank() == 0:
        took = statistics.median(times)
        print(json.dumps({"name": way, "type": kind, "ranks": dist.get_world_size(), "step_ms": took, "peak_mib": peak, "losses": losses}), flush=True)


for kind in args.types:
    for way in args.ways:
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        measure(kind, way)
dist.destroy_process_group()
