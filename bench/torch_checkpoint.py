"""bench/checkpoint in PyTorch DDP: torch.save by rank 0 (mode save), torch.distributed.checkpoint's
async_save (async), or async_save that keeps page-locked memory from one save to the next (pinned).

    torchrun --nproc-per-node 2 bench/torch_checkpoint.py --dir /data/ckpt --mode async

Prints the same JSON object, as far as PyTorch has the figures. In mode save, the step that begins a
save waits until the save is complete. In the other modes, durable_ms is the time until rank 0's
future is done, and step_while_a_save_runs_ms is the median of the steps that begin before that. If
PyTorch has no async_save, the program says so and measures nothing."""
import argparse
import json
import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

flags = argparse.ArgumentParser()
for name, default in (("width", 768), ("pairs", 26), ("batch", 8192), ("steps", 40), ("saves", 5)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--dir", required=True)
flags.add_argument("--mode", choices=("save", "async", "pinned"), default="async")
args = flags.parse_args()

if args.mode != "save":
    try:
        from torch.distributed.checkpoint import FileSystemWriter, async_save
        from torch.distributed.checkpoint.state_dict import get_state_dict
    except ImportError:
        if os.environ["RANK"] == "0":
            print(f"PyTorch {torch.__version__} has no async_save")
        sys.exit()

gpu = torch.cuda.is_available()
if gpu:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
rank = dist.get_rank()

modules = []
for _ in range(args.pairs):
    modules += [nn.Linear(args.width, 4 * args.width), nn.ReLU(), nn.Linear(4 * args.width, args.width)]
net = nn.Sequential(*modules).to(device)
model = DistributedDataParallel(net, gradient_as_bucket_view=True)
opt = torch.optim.AdamW(model.parameters(), fused=gpu) if gpu else torch.optim.AdamW(model.parameters())
x = torch.zeros(args.batch, args.width, device=device)


def step():
    nn.functional.mse_loss(model(x), x).backward()
    opt.step()
    opt.zero_grad()


def timed(f):
    start = time.perf_counter()
    f()
    if gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


for _ in range(3):
    step()
os.makedirs(args.dir, exist_ok=True)
writer = FileSystemWriter(args.dir, cache_staged_state_dict=True) if args.mode == "pinned" else None


def save(n):
    """Returns the future of a running save, or None if it is complete, and the list that gets its end time."""
    if args.mode == "save":
        if rank == 0:
            path = os.path.join(args.dir, "torch.pt")
            with open(path, "wb") as f:
                torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, f)
                f.flush()
                os.fsync(f.fileno())
        dist.barrier()
        return None, None
    weights, state = get_state_dict(model, opt)
    ended = []
    future = async_save({"model": weights, "optimizer": state}, storage_writer=writer, checkpoint_id=os.path.join(args.dir, f"dcp-{n}"))
    future.add_done_callback(lambda _: ended.append(time.perf_counter()))
    return future, ended


alone = [timed(step) for _ in range(args.steps)]
beginning, during, call, durable = [], [], [], []
for n in range(-1, args.saves):  # save -1 allocates memory and is not measured
    start = time.perf_counter()

    def begin():
        global future, ended, called
        future, ended = save(n)
        called = (time.perf_counter() - start) * 1e3
        step()

    first = timed(begin)
    steps = []
    for _ in range(args.steps):
        at = time.perf_counter()
        steps.append((at, timed(step)))
    end = start + called / 1e3
    if future is not None:
        future.result()
        end = ended[0] if ended else time.perf_counter()  # the callback may not have run yet
        dist.barrier()
        if rank == 0:
            shutil.rmtree(os.path.join(args.dir, f"dcp-{n}"))
    if n < 0:
        continue
    beginning.append(first)
    call.append(called)
    durable.append((end - start) * 1e3)
    during += [t for at, t in steps if at < end]
if rank == 0:
    middle = lambda v: statistics.median(v) if v else 0.0
    print(json.dumps({
        "ranks": dist.get_world_size(), "mode": args.mode, "step_ms": middle(alone),
        "step_that_begins_a_save_ms": middle(beginning), "step_while_a_save_runs_ms": middle(during),
        "call_of_save_ms": middle(call), "durable_ms": middle(durable),
    }))
dist.destroy_process_group()
