"""examples/gpt in PyTorch DDP or FSDP2, for bench/gpt2.sh: the same model, data, schedule and log, as PyTorch's users
write them. It has autocast to bfloat16 (FSDP2: parameters in bfloat16), fused AdamW, gradients as views of buckets, and
pinned batches that are copied ahead.

    torch_gpt2.py --tokens 'shards/train_*.bin' --init gpt2.safetensors --size 124M --batch 64 --compile
"""
import argparse
import contextlib
import glob
import json
import math
import os
import struct
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

flags = argparse.ArgumentParser()
flags.add_argument("--tokens", required=True, help="shards to train on")
flags.add_argument("--validate", help="shards to validate with")
flags.add_argument("--init", help="file of the first parameters")
flags.add_argument("--size", choices=("124M", "355M", "774M", "1558M"))
for name, default in (("layers", 4), ("heads", 4), ("embed", 128), ("context", 128), ("steps", 1000), ("batch", 8), ("warmup", 100)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--validate-every", type=int, default=50)
flags.add_argument("--validate-batches", type=int, default=20)
flags.add_argument("--lr", type=float, default=6e-4)
flags.add_argument("--weight-decay", type=float, default=0.1)
flags.add_argument("--log")
flags.add_argument("--log-every", type=int, default=10)
flags.add_argument("--compile", action="store_true")
flags.add_argument("--fsdp", action="store_true", help="shard parameters, gradients and the optimizer's state: FSDP2, with compiled blocks")
flags.add_argument("--attention", choices=("flash", "cudnn"), help="the backend of attention on a GPU")
args = flags.parse_args()
vocab, tokens = 50304, 50257
if args.size:
    args.layers, args.heads, args.embed = {"124M": (12, 12, 768), "355M": (24, 16, 1024), "774M": (36, 20, 1280), "1558M": (48, 25, 1600)}[args.size]
    args.context = 1024

rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
if ranks > 1:
    dist.init_process_group(*(("nccl",) if gpu else ("gloo",)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        width = args.embed
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, args.heads, -1).transpose(1, 2) for z in self.attn["c_attn"](self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True) if gpu else attend(q, k, v)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


def attend(q, k, v):
    """Attention for a PyTorch without scaled_dot_product_attention."""
    t = q.shape[2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[3])
    return scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1) @ v


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, args.embed), "wpe": nn.Embedding(args.context, args.embed),
            "h": nn.ModuleList(Block() for _ in range(args.layers)), "ln_f": nn.LayerNorm(args.embed),
        })
        for name, p in self.named_parameters():
            if "ln_" not in name:
                std = 0 if name.endswith("bias") else 0.02 / math.sqrt(2 * args.layers) if "c_proj" in name else 0.02
                nn.init.normal_(p, std=std)

    def forward(self, ids, following):
        t = self.transformer
        x = t["wte"](ids) + t["wpe"](torch.arange(ids.shape[1], device=ids.device))
        for block in t["h"]:
            x = block(x)
        logits = F.linear(t["ln_f"](x), t["wte"].weight)
        return F.cross_entropy(logits.view(-1, vocab).float(), following.view(-1))


class Shards:
    """The windows of tokens in shards, each with the token that follows, as goddp's data.Tokens."""

    def __init__(self, pattern):
        self.shards = [numpy.memmap(path, numpy.uint16, "r", 1024) for path in sorted(glob.glob(pattern))]
        self.windows = [(s, i) for s in self.shards for i in range((len(s) - 1) // args.context)]

    def batch(self, number):
        """This rank's part of a global batch, on the device."""
        first = number * args.batch * ranks + rank
        windows = [self.windows[i] for i in range(first, first + args.batch * ranks, ranks)]
        rows = numpy.stack([s[i * args.context : (i + 1) * args.context + 1] for s, i in windows]).astype(numpy.int64)
        rows = torch.from_numpy(rows)
        if gpu:
            rows = rows.pin_memory().to(device, non_blocking=True)
        return rows[:, :-1], rows[:, 1:].contiguous()


def load(model, path):
    """Loads parameters from a file in the format of safetensors."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        content = numpy.memmap(path, numpy.uint8, "r", 8 + n)
    for name, p in model.named_parameters():
        info = header[name]
        begin, end = info["data_offsets"]
        assert info["dtype"] == "F32" and info["shape"] == list(p.shape), (name, info)
        with torch.no_grad():
            p.copy_(torch.from_numpy(content[begin:end].view(numpy.float32).reshape(p.shape).copy()))


def rate(step):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = min(1, (step - args.warmup) / (args.steps - args.warmup))
    return args.lr / 10 + 0.9 * args.lr * (1 + math.cos(math.pi * done)) / 2


def mean(value):
    """The mean of all ranks' values."""
    if ranks > 1:
        dist.all_reduce(value)
    return (value / ranks).item()


core = GPT().to(device)
if args.init:
    load(core, args.init)
model = torch.compile(core) if args.compile and not args.fsdp else core
if args.fsdp:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in core.transformer["h"]:
        if args.compile:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(core, mp_policy=policy)
elif ranks > 1:
    model = DistributedDataParallel(model, device_ids=[device.index] if gpu else None, gradient_as_bucket_view=True)
matrices = [p for p in core.parameters() if p.dim() > 1]
rest = [p for p in core.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": args.weight_decay}, {"params": rest, "weight_decay": 0.0}],
    lr=args.lr, betas=(0.9, 0.95), **({"fused": True} if gpu else {}),
)
train = Shards(args.tokens)
held_out = Shards(args.validate) if args.validate else None
autocast = (lambda: torch.autocast("cuda", torch.bfloat16)) if gpu and not args.fsdp else contextlib.nullcontext
log = open(args.log, "a") if args.log and rank == 0 else None
start = time.perf_counter()


def report(step, **values):
    if rank == 0:
        print(f"step {step}/{args.steps}", *(f"{k} {v:.6g}" for k, v in values.items()), flush=True)
    if log:
        print(json.dumps({"time": round(time.perf_counter() - start, 3), "step": step, **values}), file=log, flush=True)


def validate():
    """The mean loss of the first batches, computed eagerly, because a compiled model would be compiled again."""
    with torch.no_grad(), autocast():
        return mean(sum(core(*held_out.batch(i)) for i in range(args.validate_batches)) / args.validate_batches)


def run():
    following = train.batch(0)
    for step in range(args.steps):
        batch, following = following, train.batch(step + 1) if step + 1 < args.steps else None
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        with autocast():
            loss = model(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(core.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        made = step + 1
        if made % args.log_every == 0 or made in (1, args.steps):
            report(made, loss=mean(loss.detach()), lr=rate(step))
        if made % args.validate_every == 0 or made == args.steps:
            peak = torch.cuda.max_memory_allocated() if gpu else 0
            report(made, peak_bytes=peak, **({"validation_loss": validate()} if held_out else {}))


backend = contextlib.nullcontext()
if gpu and args.attention:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = sdpa_kernel({"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[args.attention])
with backend:
    run()
if ranks > 1:
    dist.destroy_process_group()
