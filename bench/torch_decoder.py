"""Steps of a model of Llama's shapes on random tokens, in PyTorch on GPUs, as its users write them for speed: torch.compile,
cuDNN or flash attention, fused AdamW, gradients clipped. Its peer is bench/decoder. Rank 0 prints one JSON object.

    golaunch --nproc-per-node 2 bench/torch_decoder.py                                     DDP, Llama 3.2 1B's shapes
    golaunch --nproc-per-node 2 bench/torch_decoder.py --fsdp --batch 4 --length 4096      FSDP2
    torch_decoder.py --layers 32 --hidden 4096 --inner 14336 --untied --lora 16 --batch 4  adapters, 8B's shapes

DDP has parameters in Float32, and autocast to bfloat16. FSDP2 computes and reduces in bfloat16. With --lora the weights
are frozen in bfloat16, and all Linear layers but the head have Float32 adapters.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

flags = argparse.ArgumentParser()
for name, default in (("layers", 16), ("hidden", 2048), ("inner", 8192), ("heads", 32), ("key-heads", 8), ("vocab", 128256),
                      ("lora", 0), ("batch", 8), ("length", 2048), ("warmup", 5), ("steps", 12)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--untied", action="store_true", help="give the head weights of its own")
flags.add_argument("--fsdp", action="store_true", help="shard parameters, gradients and the optimizer's state: FSDP2")
flags.add_argument("--recompute", action="store_true", help="compute each block again in the backward pass")
flags.add_argument("--compile", choices=("blocks", "model"), help="compile the whole model, or each block and the loss (default with --fsdp or --lora)")
args = flags.parse_args()
size = args.hidden // args.heads
blocks = (args.compile or ("blocks" if args.fsdp or args.lora else "model")) == "blocks"


class Linear(nn.Linear):
    """A Linear layer, with a frozen weight and an adapter if there is --lora."""

    def __init__(self, inner, outer):
        super().__init__(inner, outer, bias=False)
        if args.lora:
            bound = 1 / math.sqrt(inner)
            self.a = nn.Parameter(torch.empty(args.lora, inner, dtype=torch.float32).uniform_(-bound, bound))
            self.b = nn.Parameter(torch.zeros(outer, args.lora, dtype=torch.float32))

    def forward(self, x):
        y = F.linear(x, self.weight)
        if args.lora:  # alpha is the rank, so the scale is 1
            y = y + F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))
        return y


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        c, inner = args.hidden, args.inner
        self.norm1, self.norm2 = nn.RMSNorm(c, eps=1e-5), nn.RMSNorm(c, eps=1e-5)
        self.q, self.k, self.v = Linear(c, c), Linear(c, args.key_heads * size), Linear(c, args.key_heads * size)
        self.o, self.gate, self.up, self.down = Linear(c, c), Linear(c, inner), Linear(c, inner), Linear(inner, c)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, t, -1, size).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (rotate(h, cos, sin).to(v.dtype) for h in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(args.vocab, args.hidden), nn.RMSNorm(args.hidden, eps=1e-5)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)
        if not args.untied:
            self.head.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if name.endswith("weight") and p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)
            if args.lora:
                p.requires_grad_(name.endswith((".a", ".b")))
        angles = torch.outer(torch.arange(args.length).float(), 500000.0 ** (-torch.arange(0, size, 2).float() / size))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def loss(self, x, following):
        return F.cross_entropy(self.head(self.norm(x)).view(-1, args.vocab), following.view(-1))

    def forward(self, ids, following):
        x = self.tokens(ids)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if args.recompute else block(x, cos, sin)
        return self.loss(x, following)


def build():
    """Returns the model, compiled and distributed, and its parameters that are trained."""
    model = Llama()
    if blocks:
        for block in model.blocks:
            block.compile()
        model.loss = torch.compile(model.loss)
    if args.fsdp:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    trained = [p for p in model.parameters() if p.requires_grad]
    run = model if blocks else torch.compile(model)
    if dist.is_initialized() and not args.fsdp:
        run = DistributedDataParallel(run, gradient_as_bucket_view=True)
    return run, trained


device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
torch.cuda.set_device(device)
torch.set_default_device(device)
if "RANK" in os.environ:
    dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)
if args.lora:
    torch.set_default_dtype(torch.bfloat16)
torch.set_float32_matmul_precision("high")
run, trained = build()
parameters = sum(p.numel() for p in run.parameters())
opt = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.1, fused=True)
ids, following = (torch.randint(0, args.vocab, (args.batch, args.length)) for _ in range(2))


def steps(n):
    """Returns the seconds of n steps."""
    if dist.is_initialized():
        dist.barrier()
    torch.cuda.synchronize()
    began = time.time()
    for _ in range(n):
        with torch.autocast("cuda", torch.bfloat16, enabled=not (args.fsdp or args.lora)):
            loss = run(ids, following)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return time.time() - began


with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
    warm = steps(args.warmup)
    took = steps(args.steps) / args.steps
ranks = dist.get_world_size() if dist.is_initialized() else 1
if ranks == 1 or dist.get_rank() == 0:
    print(json.dumps(dict(
        name="torch-lora" if args.lora else "torch-fsdp" if args.fsdp else "torch-ddp", ranks=ranks, compiled="blocks" if blocks else "model",
        recompute=args.recompute, torch=torch.__version__, params=parameters, trained=sum(p.numel() for p in trained), step_ms=round(took * 1e3, 2),
        tokens_per_s=round(ranks * args.batch * args.length / took), peak_mib=torch.cuda.max_memory_allocated() >> 20, warm_s=round(warm, 1))))
if dist.is_initialized():
    dist.destroy_process_group()
