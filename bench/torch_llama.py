"""Steps of a model of Llama's shapes on random tokens, in PyTorch on the CPU with DistributedDataParallel over Gloo.
Its peer is bench/decoder; bench/cpu_llama.sh alternates the two. Rank 0 prints one JSON object.
"""
import argparse
import json
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

flags = argparse.ArgumentParser()
for name, default in (("layers", 4), ("hidden", 768), ("inner", 2048), ("heads", 12), ("key-heads", 12), ("vocab", 32000),
                      ("batch", 2), ("length", 512), ("warmup", 1), ("steps", 3)):
    flags.add_argument("--" + name, type=int, default=default)
args = flags.parse_args()
size = args.hidden // args.heads
modern = hasattr(F, "rms_norm")  # PyTorch 2.4: fused RMSNorm and AdamW, flash attention


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(args.hidden))

    def forward(self, x):
        if modern:
            return F.rms_norm(x, (args.hidden,), self.weight, 1e-5)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        c, inner, narrow = args.hidden, args.inner, args.key_heads * size
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.q, self.k, self.v, self.o = (nn.Linear(c, n, bias=False) for n in (c, narrow, narrow, c))
        self.gate, self.up, self.down = nn.Linear(c, inner, bias=False), nn.Linear(c, inner, bias=False), nn.Linear(inner, c, bias=False)

    def forward(self, x, cos, sin, mask):
        b, t, c = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, t, -1, size).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (h.repeat_interleave(args.heads // args.key_heads, 1) if args.heads > args.key_heads else h for h in (k, v))
        if modern:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = torch.softmax(q @ k.transpose(2, 3) * size ** -0.5 + mask, -1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.norm = RMSNorm()
        angle = torch.outer(torch.arange(args.length).float(), 500000 ** (-torch.arange(0, size, 2).float() / size))
        angle = torch.cat((angle, angle), -1)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.mask = torch.full((args.length, args.length), float("-inf")).triu(1)
        for p in self.parameters():
            if p.dim() > 1:
                p.data.normal_(0, 0.02)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.mask)
        return F.cross_entropy(F.linear(self.norm(x), self.embed.weight).flatten(0, 1), labels.flatten())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(Model(), gradient_as_bucket_view=True)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, 3e-4, weight_decay=0.1, **{"fused" if modern else "foreach": True})
    torch.manual_seed(rank)
    ids, labels = (torch.randint(args.vocab, (args.batch, args.length)) for _ in range(2))

    def step():
        opt.zero_grad()
        loss = model(ids, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1)
        opt.step()
        return loss

    for _ in range(args.warmup):
        step()
    torch.distributed.barrier()
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(args.steps):
        loss = step()
    took, busy = time.perf_counter() - start, time.process_time() - busy
    if rank == 0:
        print(json.dumps({"name": "pytorch-" + torch.__version__, "ranks": torch.distributed.get_world_size(),
                          "params": sum(p.numel() for p in params), "step_ms": 1e3 * took / args.steps, "cpu_ms": 1e3 * busy / args.steps, "loss": loss.item()}))


main()
