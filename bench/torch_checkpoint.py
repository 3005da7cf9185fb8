"""bench/checkpoint in PyTorch DDP: torch.save by rank 0, or torch.distributed.checkpoint's async_save.

    torchrun --nproc-per-node 2 bench/torch_checkpoint.py --dir /data/ckpt --mode async

Prints the same JSON object, as far as PyTorch tells: for mode save a step that begins a save
waits for all of it; for mode async durable_ms is until the future's result, and step_while_a_save_runs_ms
of the steps that begin before."""
import argparse
import json
import os
import shutil
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

flags = argparse.ArgumentParser()
for name, default in (("width", 768), ("pairs", 26), ("batch", 8192), ("steps", 40), ("saves", 5)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--dir", required=True)
flags.add_argument("--mode", choices=("save", "async"), default="async")
args = flags.parse_args()

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
    begun = time.perf_counter()
    f()
    if gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e3


for _ in range(3):
    step()
os.makedirs(args.dir, exist_ok=True)
if args.mode == "async":
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

pending, ended = None, [0.0]


def save(n):
    global pending
    if args.mode == "save":
        if rank == 0:
            path = os.path.join(args.dir, "torch.pt")
            with open(path, "wb") as f:
                torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, f)
                f.flush()
                os.fsync(f.fileno())
        dist.barrier()
        return
    weights, state = get_state_dict(model, opt)
    pending = dcp.async_save({"model": weights, "optimizer": state}, checkpoint_id=os.path.join(args.dir, f"dcp-{n}"))
    pending.add_done_callback(lambda _: ended.__setitem__(0, time.perf_counter()))


alone = [timed(step) for _ in range(args.steps)]
beginning, during, call, durable = [], [], [], []
for n in range(args.saves):
    begun = time.perf_counter()

    def begin():
        save(n)
        call.append((time.perf_counter() - begun) * 1e3)
        step()

    beginning.append(timed(begin))
    steps = []
    for _ in range(args.steps):
        at = time.perf_counter()
        steps.append((at, timed(step)))
    if pending is not None:
        pending.result()
        end = ended[0] or time.perf_counter()
        durable.append((end - begun) * 1e3)
        during += [t for at, t in steps if at < end]
        if rank == 0:
            shutil.rmtree(os.path.join(args.dir, f"dcp-{n}"), ignore_errors=True)
        dist.barrier()
    else:
        durable.append(call[-1])
if rank == 0:
    middle = lambda v: statistics.median(v) if v else 0.0
    print(json.dumps({
        "ranks": dist.get_world_size(), "mode": args.mode, "step_ms": middle(alone),
        "step_that_begins_a_save_ms": middle(beginning), "step_while_a_save_runs_ms": middle(during),
        "call_of_save_ms": middle(call), "durable_ms": middle(durable),
    }))
dist.destroy_process_group()
