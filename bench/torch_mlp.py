"""The step of examples/mlp in PyTorch DDP, for bench/cpu_ddp.sh and bench/gpu_ddp.sh.

Each rank is a process. The ranks use NCCL and one GPU each if there are GPUs, else Gloo. Prints
rank 0's median milliseconds for forward, backward and optimizer, and on a GPU the peak of memory
in use by PyTorch."""
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
flags.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
flags.add_argument("--plain", action="store_true", help="DDP and SGD as users write them, without gradient_as_bucket_view and fused")
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

modules = []
for i in range(args.layers):
    modules += [nn.ReLU()] * (i > 0) + [nn.Linear(args.size, args.size)]
dtype = getattr(torch, args.dtype)
model = DistributedDataParallel(
    nn.Sequential(*modules).to(device, dtype), bucket_cap_mb=args.bucket_cap_mb, gradient_as_bucket_view=not args.plain
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, **({"fused": True} if gpu and not args.plain else {}))
times = []
x, y = (torch.randn(args.batch, args.size, device=device, dtype=dtype) for _ in range(2))
for _ in range(args.steps):
    if gpu:
        torch.cuda.synchronize()
    dist.barrier()
    if gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if gpu:
        torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
if dist.get_rank() == 0:
    peak = torch.cuda.max_memory_allocated() / 2**20 if gpu else 0
    print(f"peak MiB {peak:.0f}\nmedian {statistics.median(times[5:]) * 1e3:.3f}")
if gpu:
    dist.destroy_process_group()
