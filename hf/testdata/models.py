# Small models of each architecture in PyTorch, written by hand after their definitions in Hugging Face's transformers.
# For each of them it writes a folder as it is on the hub, with random weights, and expected.safetensors: tokens, the
# logits, the gradients of the first step and the losses of steps of AdamW.
#
#   models.py FOLDER
import json
import math
import os
import struct
import sys

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)

ROWS, TOKENS, STEPS = 2, 24, 20
torch.manual_seed(1)


def write(path, tensors, metadata):
    kinds = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
    header, at, data = {"__metadata__": metadata}, 0, []
    for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
        t = tensors[name]
        content = t.numpy().tobytes()
        header[name] = {"dtype": kinds[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
        data.append(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for content in data:
            f.write(content)


def frequencies(c, size):
    """The angle of each pair at position 1, and the factor of cosines and sines: transformers' modeling_rope_utils.py."""
    r = c.get("rope_parameters") or c.get("rope_scaling") or {}
    base = r.get("rope_theta", c.get("rope_theta", 10000.0))
    dim = int(size * r.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0)))
    f = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
    kind = r.get("rope_type", r.get("type", "default"))
    if kind == "linear":
        return f / r["factor"], 1.0
    if kind == "llama3":
        first, low, high, factor = r["original_max_position_embeddings"], r["low_freq_factor"], r["high_freq_factor"], r["factor"]
        wavelen = 2 * math.pi / f
        scaled = torch.where(wavelen > first / low, f / factor, f)
        smooth = (first / wavelen - low) / (high - low)
        smoothed = (1 - smooth) * scaled / factor + smooth * scaled
        return torch.where(~(wavelen < first / high) & ~(wavelen > first / low), smoothed, scaled), 1.0
    if kind == "yarn":
        first, factor = r["original_max_position_embeddings"], r["factor"]

        def mscale(weight):
            return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

        attention = r.get("attention_factor")
        if attention is None:
            attention = mscale(r["mscale"]) / mscale(r["mscale_all_dim"]) if r.get("mscale") and r.get("mscale_all_dim") else mscale(1)

        def pair(turns):
            return (dim * math.log(first / (turns * 2 * math.pi))) / (2 * math.log(base))

        low, high = pair(r.get("beta_fast") or 32), pair(r.get("beta_slow") or 1)
        if r.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        fast = 1 - torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
        powers = base ** (torch.arange(0, dim, 2).float() / dim)
        return 1.0 / (factor * powers) * (1 - fast) + 1.0 / powers * fast, attention
    return f, 1.0


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def mask(t, window):
    i, j = torch.arange(t)[:, None], torch.arange(t)[None, :]
    hidden = j > i
    return hidden | (j <= i - window) if window else hidden


class Attention(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        kind, h = c["architectures"][0], c["hidden_size"]
        self.heads, self.key_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.size = c.get("head_dim") or h // self.heads
        bias = c.get("attention_bias", False)
        self.q_proj = nn.Linear(h, self.heads * self.size, bias=bias or kind == "Qwen2ForCausalLM")
        self.k_proj = nn.Linear(h, self.key_heads * self.size, bias=bias or kind == "Qwen2ForCausalLM")
        self.v_proj = nn.Linear(h, self.key_heads * self.size, bias=bias or kind == "Qwen2ForCausalLM")
        self.o_proj = nn.Linear(self.heads * self.size, h, bias=bias)
        if kind == "Qwen3ForCausalLM":
            self.q_norm, self.k_norm = RMSNorm(self.size, c["rms_norm_eps"]), RMSNorm(self.size, c["rms_norm_eps"])
        self.rotates = kind != "SmolLM3ForCausalLM" or c["no_rope_layers"][layer] == 1
        self.window = 0
        if kind == "MistralForCausalLM" or c.get("use_sliding_window") and c["layer_types"][layer] == "sliding_attention":
            self.window = c["sliding_window"]
        self.f, self.factor = frequencies(c, self.size)

    def rotate(self, x):
        angles = torch.arange(x.shape[2]).float()[:, None] * self.f[None, :]
        angles = torch.cat((angles, angles), -1)
        cos, sin, n = angles.cos() * self.factor, angles.sin() * self.factor, 2 * len(self.f)
        y, rest = x[..., :n], x[..., n:]
        half = torch.cat((-y[..., n // 2 :], y[..., : n // 2]), -1)
        return torch.cat((y * cos + half * sin, rest), -1)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, self.size) for p in (self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.rotates:
            q, k = self.rotate(q), self.rotate(k)
        k, v = (y.repeat_interleave(self.heads // self.key_heads, 1) for y in (k, v))
        scores = (q @ k.transpose(-2, -1) * self.size**-0.5).masked_fill(mask(t, self.window), float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, inner, bias = c["hidden_size"], c["intermediate_size"], c.get("mlp_bias", False)
        self.gate_proj, self.up_proj = nn.Linear(h, inner, bias=bias), nn.Linear(h, inner, bias=bias)
        self.down_proj = nn.Linear(inner, h, bias=bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        self.self_attn, self.mlp = Attention(c, layer), MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Block(c, i) for i in range(c["num_hidden_layers"]))
        self.model.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(self.model.norm(x))


class Conv1D(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(i, o)), nn.Parameter(torch.zeros(o))

    def forward(self, x):
        return x @ self.weight + self.bias


class GPT2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.heads = c["n_embd"], c["n_head"]
        self.ln_1, self.ln_2 = nn.LayerNorm(d, c["layer_norm_epsilon"]), nn.LayerNorm(d, c["layer_norm_epsilon"])
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = Conv1D(d, 3 * d), Conv1D(d, d)
        self.mlp.c_fc, self.mlp.c_proj = Conv1D(d, 4 * d), Conv1D(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.attn.c_attn(self.ln_1(x)).split(d, 2))
        scores = (q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)).masked_fill(mask(t, 0), float("-inf"))
        x = x + self.attn.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, c):
        super().__init__()
        t = self.transformer = nn.Module()
        t.wte, t.wpe = nn.Embedding(c["vocab_size"], c["n_embd"]), nn.Embedding(c["n_positions"], c["n_embd"])
        t.h = nn.ModuleList(GPT2Block(c) for _ in range(c["n_layer"]))
        t.ln_f = nn.LayerNorm(c["n_embd"], c["layer_norm_epsilon"])

    def forward(self, ids):
        t = self.transformer
        x = t.wte(ids) + t.wpe(torch.arange(ids.shape[1]))
        for block in t.h:
            x = block(x)
        return t.ln_f(x) @ t.wte.weight.T


def llama(architecture, **more):
    c = {
        "architectures": [architecture], "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
    }
    c.update(more)
    return c


sliding, full = "sliding_attention", "full_attention"
yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
configs = {
    "llama3.1": llama("LlamaForCausalLM", mlp_bias=True, rope_theta=500000.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}),
    "llama_linear": llama("LlamaForCausalLM", attention_bias=True, rope_scaling={"type": "linear", "factor": 2.0}),
    "llama5": llama("LlamaForCausalLM", head_dim=12, rope_theta=None, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False,
        "mscale": 1.0, "mscale_all_dim": 0.7, "partial_rotary_factor": 0.5}),
    "smollm2": llama("LlamaForCausalLM", tie_word_embeddings=True, num_key_value_heads=4),
    "mistral": llama("MistralForCausalLM", sliding_window=5, head_dim=16),
    "qwen2": llama("Qwen2ForCausalLM", rope_scaling=yarn, use_sliding_window=True, sliding_window=7, max_window_layers=1,
                   layer_types=[full, sliding, sliding]),
    "qwen3": llama("Qwen3ForCausalLM", head_dim=16, tie_word_embeddings=True, use_sliding_window=False, sliding_window=4,
                   layer_types=[full] * 3),
    "smollm3": llama("SmolLM3ForCausalLM", tie_word_embeddings=True, no_rope_layers=[1, 0, 1], no_rope_layer_interval=2,
                     use_sliding_window=True, sliding_window=6, layer_types=[full, sliding, full]),
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
        "n_inner": None, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "torch_dtype": "float32"},
}
for name, c in configs.items():
    folder = os.path.join(sys.argv[1], name)
    os.makedirs(folder)
    net = GPT2(c) if name == "gpt2" else Llama(c)
    for n, p in net.named_parameters():
        nn.init.normal_(p, 1.0 if p.dim() == 1 and n.endswith("weight") else 0.0, 0.1)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({k: v for k, v in c.items() if k != "rope_theta" or v}, f, indent=2)
    write(os.path.join(folder, "model.safetensors"), {n: p.detach() for n, p in net.named_parameters()}, {"format": "pt"})
    out = {"tokens": torch.randint(c["vocab_size"], (STEPS, ROWS, TOKENS + 1))}
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        ids, following = out["tokens"][step, :, :-1], out["tokens"][step, :, 1:]
        logits = net(ids)
        loss = F.cross_entropy(logits.reshape(-1, c["vocab_size"]), following.reshape(-1))
        opt.zero_grad()
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().clone()
            transposed = {id(m.weight) for m in net.modules() if isinstance(m, Conv1D)}  # as goddp's parameters are
            for n, p in net.named_parameters():
                out["grad." + n] = (p.grad.T if id(p) in transposed else p.grad).clone(memory_format=torch.contiguous_format)
        opt.step()
        losses.append(loss.item())
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    write(os.path.join(folder, "expected.safetensors"), out, {})
