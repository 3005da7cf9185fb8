"""All-reduce in PyTorch, float32 sum in place, for bench/cpu_allreduce.sh and bench/gpu_allreduce.sh.

Each rank is a process. The ranks use NCCL and one GPU each if there are GPUs, else Gloo. Rank 0
prints lines of "bytes microseconds". The flags are as in "goddp bench", and so are the times: the
host's time for the calls and the wait for the last one, the median over the repetitions, the
largest of all ranks."""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist

flags = argparse.ArgumentParser()
for short, name, default in (("-b", "minbytes", 1 << 10), ("-e", "maxbytes", 1 << 26), ("-f", "stepfactor", 4), ("-n", "iters", 20), ("-w", "warmup_iters", 5)):
    flags.add_argument(short, "--" + name, type=int, default=default)
flags.add_argument("--repeat", type=int, default=5)
args = flags.parse_args()

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    wait = torch.cuda.current_stream().synchronize  # all_reduce makes this stream wait for NCCL's
    peer = "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
else:
    device = torch.device("cpu")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    wait = lambda: None  # all_reduce has already waited
    peer = "Gloo"
rank = dist.get_rank()
if rank == 0:
    print("# PyTorch", torch.__version__, "over", peer, flush=True)


def measure(tensor, calls):
    dist.barrier()
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    wait()
    return time.perf_counter() - start


size = args.minbytes
while size <= args.maxbytes:
    tensor = torch.full((size // 4,), 0.75, device=device)
    measure(tensor, args.warmup_iters)
    median = statistics.median(measure(tensor, args.iters) / args.iters for _ in range(args.repeat))
    slowest = torch.tensor([median], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        print(size, f"{slowest.item() * 1e6:.2f}", flush=True)
    size *= args.stepfactor
dist.destroy_process_group()
