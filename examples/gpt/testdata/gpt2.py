# GPT-2 in PyTorch, written by hand: random weights, logits, the gradients of the first step, and the
# losses of steps of AdamW. Writes all to the file that it is given, in the format of safetensors.
#
#   gpt2.py FILE vocab context layers heads embed batch steps
import json
import math
import struct
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)

file = sys.argv[1]
vocab, context, layers, heads, embed, batch, steps = map(int, sys.argv[2:9])
device = "cuda" if len(sys.argv) > 9 and torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(embed, 3 * embed)
        self.c_proj = nn.Linear(embed, embed)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (p.view(b, t, heads, embed // heads).transpose(1, 2) for p in self.c_attn(x).split(embed, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(embed // heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, embed))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc = nn.Linear(embed, 4 * embed)
        self.c_proj = nn.Linear(4 * embed, embed)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(embed)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(embed)
        self.mlp = MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab, embed)
        self.wpe = nn.Embedding(context, embed)
        self.h = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(embed)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = Transformer()
        for name, p in self.named_parameters():
            nn.init.normal_(p, 1.0 if "ln_" in name and name.endswith("weight") else 0.0, 0.02)

    def forward(self, ids):
        t = self.transformer
        x = t.wte(ids) + t.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in t.h:
            x = block(x)
        return t.ln_f(x) @ t.wte.weight.T


out = {}


def keep(name, t):
    out[name] = t.detach().to("cpu", copy=True).contiguous()


net = GPT().to(device)
for name, p in net.named_parameters():
    keep("param." + name, p)
tokens = torch.randint(vocab, (steps, batch, context + 1))
keep("tokens", tokens)
tokens = tokens.to(device)
matrices = [p for p in net.parameters() if p.dim() > 1]
rest = [p for p in net.parameters() if p.dim() == 1]
opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95))
losses = []
for step in range(steps):
    ids, following = tokens[step, :, :-1], tokens[step, :, 1:]
    logits = net(ids)
    loss = F.cross_entropy(logits.reshape(-1, vocab), following.reshape(-1))
    opt.zero_grad()
    loss.backward()
    if step == 0:
        keep("logits", logits)
        for name, p in net.named_parameters():
            keep("grad." + name, p.grad)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    losses.append(loss.item())
keep("losses", torch.tensor(losses, dtype=torch.float64))

kinds = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
header, at, data = {}, 0, []
for name in sorted(out, key=lambda n: -out[n].element_size()):
    t = out[name]
    content = t.numpy().tobytes()
    header[name] = {"dtype": kinds[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(content)]}
    at += len(content)
    data.append(content)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(file, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for content in data:
        f.write(content)
