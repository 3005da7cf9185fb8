"""Steps of adapters of low rank for a model of Llama's shapes on random tokens, in PyTorch on one GPU, as its users write
them for speed: frozen weights in bfloat16, Float32 adapters of all Linear layers but the head, torch.compile, cuDNN or
flash attention, fused AdamW. Its peer is bench/decoder with --lora. It prints one JSON object.

    torch_lora.py --recompute                                                        8B's shapes
    torch_lora.py --layers 16 --hidden 2048 --inner 8192 --compile model
"""
import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

flags = argparse.ArgumentParser()
for name, default in (("layers", 32), ("hidden", 4096), ("inner", 14336), ("heads", 32), ("key-heads", 8), ("vocab", 128256),
                      ("lora", 16), ("batch", 4), ("length", 2048), ("warmup", 5), ("steps", 12)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--recompute", action="store_true", help="compute each block again in the backward pass")
flags.add_argument("--compile", choices=("blocks", "model"), default="blocks", help="compile each block, or the whole model")
args = flags.parse_args()
size = args.hidden // args.heads


class Adapted(nn.Module):
    """A frozen Linear layer with an adapter."""

    def __init__(self, inner, outer):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, inner).normal_(0, 0.02), requires_grad=False)
        bound = 1 / math.sqrt(inner)
        self.a = nn.Parameter(torch.empty(args.lora, inner, dtype=torch.float32).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(outer, args.lora, dtype=torch.float32))

    def forward(self, x):  # alpha is the rank, so the scale is 1
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        c, inner = args.hidden, args.inner
        self.norm1, self.norm2 = nn.RMSNorm(c, eps=1e-5), nn.RMSNorm(c, eps=1e-5)
        self.q, self.k, self.v = Adapted(c, c), Adapted(c, args.key_heads * size), Adapted(c, args.key_heads * size)
        self.o, self.gate, self.up, self.down = Adapted(c, c), Adapted(c, inner), Adapted(c, inner), Adapted(inner, c)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, t, -1, size).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(args.vocab, args.hidden), nn.RMSNorm(args.hidden, eps=1e-5)
        self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)
        for p in (self.tokens.weight, self.head.weight):
            nn.init.normal_(p, 0, 0.02)
        angles = torch.outer(torch.arange(args.length).float(), 500000.0 ** (-torch.arange(0, size, 2).float() / size))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos().bfloat16(), persistent=False)
        self.register_buffer("sin", angles.sin().bfloat16(), persistent=False)

    def loss(self, x, following):
        return F.cross_entropy(self.head(self.norm(x)).view(-1, args.vocab), following.view(-1))

    def forward(self, ids, following):
        x = self.tokens(ids)
        for block in self.blocks:
            x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False) if args.recompute else block(x, self.cos, self.sin)
        return self.loss(x, following)


torch.manual_seed(0)
torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)
model = Llama()
for name, p in model.named_parameters():
    p.requires_grad_(name.endswith((".a", ".b")))
adapters = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(adapters, lr=3e-4, weight_decay=0.1, fused=True)
if args.compile == "model":
    run = torch.compile(model)
else:
    for block in model.blocks:
        block.compile()
    model.loss = torch.compile(model.loss)
    run = model
ids, following = (torch.randint(0, args.vocab, (args.batch, args.length)) for _ in range(2))


def steps(n):
    began = time.time()
    for _ in range(n):
        run(ids, following).backward()
        nn.utils.clip_grad_norm_(adapters, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return time.time() - began


with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
    warm = steps(args.warmup)
    took = steps(args.steps) / args.steps
print(json.dumps(dict(
    name="torch-lora", compiled=args.compile, recompute=args.recompute, torch=torch.__version__,
    params=sum(p.numel() for p in model.parameters()), trained=sum(p.numel() for p in adapters), step_ms=round(took * 1e3, 2),
    tokens_per_s=round(args.batch * args.length / took), peak_mib=torch.cuda.max_memory_allocated() >> 20, warm_s=round(warm, 1))))
