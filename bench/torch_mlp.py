"""The step of examples/mlp in PyTorch over Gloo, one thread a rank: the peer of bench/cpu_ddp.sh.

Prints rank 0's median milliseconds for forward, backward and optimizer."""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

flags = argparse.ArgumentParser()
for name, default in (("size", 1000), ("batch", 250), ("layers", 3), ("steps", 40)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--bucket-cap-mb", type=float, default=25)
args = flags.parse_args()

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
dist.init_process_group("gloo")
modules = []
for i in range(args.layers):
    modules += [nn.ReLU()] * (i > 0) + [nn.Linear(args.size, args.size)]
model = DistributedDataParallel(nn.Sequential(*modules), bucket_cap_mb=args.bucket_cap_mb, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
times = []
for _ in range(args.steps):
    x, y = torch.randn(args.batch, args.size), torch.randn(args.batch, args.size)
    dist.barrier()
    begun = time.perf_counter()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - begun)
if dist.get_rank() == 0:
    print(f"median {statistics.median(times[5:]) * 1e3:.3f}")
