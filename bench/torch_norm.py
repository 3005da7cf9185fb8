"""PyTorch's layer_norm and embedding gradient in bfloat16: microseconds a pass over [65536 768].

python3 bench/torch_norm.py
"""
import torch
import torch.nn.functional as F

rows, cols, vocab = 65536, 768, 50304
dev, dt = "cuda", torch.bfloat16
x, y, g = (torch.rand(rows, cols, device=dev, dtype=dt).requires_grad_() for _ in range(3))
w, b = (torch.rand(cols, device=dev, dtype=dt).requires_grad_() for _ in range(2))
table = torch.rand(vocab, cols, device=dev, dtype=dt).requires_grad_()
ids = (torch.rand(rows, device=dev) ** 3 * vocab).long()


def took(f, n=50):
    for _ in range(5):
        f()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(n):
        f()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / n * 1000


def gradient(f, inputs):
    out = f()
    seed = g.detach() if out.shape == g.shape else torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, seed, retain_graph=True)


def both(x, y, w, b):
    s = x + y
    return s, F.layer_norm(s, (cols,), w, b)


compiled = torch.compile(both)
forward = lambda: F.layer_norm(x, (cols,), w, b)
s, n = compiled(x, y, w, b)
with torch.no_grad():
    print("forward %.1f" % took(forward))
    print("add, forward %.1f" % took(lambda: both(x, y, w, b)))
    print("add, forward, compiled %.1f" % took(lambda: compiled(x, y, w, b)))
print("backward %.1f" % took(gradient(forward, (x, w, b))))
print("add, backward, compiled %.1f" % took(lambda: torch.autograd.grad((s, n), (x, y, w, b), (g.detach(), g.detach()), retain_graph=True)))
print("embedding backward %.1f" % took(gradient(lambda: F.embedding(ids, table), (table,))))
