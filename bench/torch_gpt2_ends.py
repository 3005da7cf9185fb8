"""What BenchmarkGPT2Ends of device/cuda measures, in PyTorch: the cross-entropy of GPT-2 124M's logits for 64
sequences of 1024 tokens, clip_grad_norm_ and fused AdamW. Prints milliseconds, and GiB for the cross-entropy."""
import torch
import torch.nn.functional as F

c = 768
block = [(c,), (c,), (3 * c, c), (3 * c,), (c, c), (c,), (c,), (c,), (4 * c, c), (4 * c,), (c, 4 * c), (c,)]
sizes = [(50304, c), (1024, c)] + 12 * block + [(c,), (c,)]


def ms(f, n=20):
    for _ in range(3):
        f()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(n):
        f()
    end.record()
    torch.cuda.synchronize()
    return round(begin.elapsed_time(end) / n, 3)


for dtype in (torch.bfloat16, torch.float32):
    params = [torch.nn.Parameter(torch.ones(s, dtype=dtype, device="cuda")) for s in sizes]
    for p in params:
        p.grad = torch.rand_like(p)
    print(dtype, "clip_grad_norm_", ms(lambda: torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)))
    print(dtype, "fused AdamW", ms(torch.optim.AdamW(params, lr=1e-9, fused=True).step))
del params, p

logits = (torch.rand(65536, 50304, device="cuda", dtype=torch.bfloat16) * 2 - 1).requires_grad_()
labels = torch.randint(50257, (65536,), device="cuda")
for name, loss in (("eager", F.cross_entropy), ("compiled", torch.compile(F.cross_entropy))):

    def step():
        logits.grad = None
        loss(logits, labels).backward()

    torch.cuda.reset_peak_memory_stats()
    print("cross_entropy and its gradient,", name, ms(step, 10), torch.cuda.max_memory_allocated() / 2**30)
