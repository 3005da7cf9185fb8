# Reads attentions of 16-bit types, with results and gradients, on stdin. Writes how far these, and
# those of PyTorch's own attention, are from attention in float64 of the same inputs. Arrays travel
# as base64 of their elements.
import base64
import json
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)

request = json.load(sys.stdin)
device = "cuda" if torch.cuda.is_available() else "cpu"


def defined(q, k, v, causal, dtype):
    """Attention by its definition, with weights rounded to dtype."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(scores, -1).to(dtype).to(q.dtype) @ v


def exact(q, k, v, causal):
    return defined(q, k, v, causal, q.dtype)


def own(q, k, v, causal):
    """PyTorch's attention, by cuDNN if that computes the shape. Where a version of PyTorch has none, the
    definition in float32 stands in for it."""
    if device == "cuda":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        with sdpa_kernel(order, set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return defined(q.float(), k.float(), v.float(), causal, q.dtype).to(q.dtype)


def run(f, inputs, upstream, dtype, causal):
    """The result and the gradients, in float64."""
    x = [t.to(dtype).requires_grad_() for t in inputs]
    y = f(*x, causal)
    y.backward(upstream.to(dtype))
    return [t.detach().double() for t in [y] + [t.grad for t in x]]


def off(got, want):
    d = (got - want).flatten()
    return {"max": d.abs().max().item(), "rms": d.square().mean().sqrt().item()}


replies = []
for case in request["cases"]:
    dtype = getattr(torch, case["dtype"])

    def tensor(text):
        data = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)
        return data.reshape(case["shape"]).to(device)

    inputs, upstream = [tensor(t) for t in case["in"]], tensor(case["upstream"])
    ours = [tensor(t).double() for t in case["out"]]
    want = run(exact, inputs, upstream, torch.float64, case["causal"])
    theirs = run(own, inputs, upstream, dtype, case["causal"])
    replies.append([{"ours": off(a, w), "theirs": off(b, w)} for a, b, w in zip(ours, theirs, want)])
json.dump({"version": torch.__version__, "device": device, "cases": replies}, sys.stdout)
