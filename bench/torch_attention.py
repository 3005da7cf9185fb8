#!/usr/bin/env python3
# Measures PyTorch's causal attention with the shapes of BenchmarkAttention in device/cuda, in
# TFLOP/s by the device's clock. Only products on and below the diagonal count: two in the forward
# pass and five in the backward pass.
import torch
import torch.nn.functional as F


def rate(f, flops, times=50):
    for _ in range(5):
        f()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        f()
    end.record()
    torch.cuda.synchronize()
    return flops * times / begin.elapsed_time(end) / 1e9


print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}")
rows = 1024
for dtype, batches, heads, size in [
    (torch.bfloat16, 16, 12, 64),
    (torch.bfloat16, 64, 12, 64),
    (torch.bfloat16, 16, 6, 128),
    (torch.float16, 16, 12, 64),
    (torch.float32, 16, 12, 64),
]:
    qkv = torch.rand(batches, rows, 3, heads, size, device="cuda", dtype=dtype) * 2 - 1
    x = [t.transpose(1, 2).detach().requires_grad_() for t in qkv.unbind(2)]
    product = 2 * batches * heads * rows * rows / 2 * size
    forward = lambda: F.scaled_dot_product_attention(*x, is_causal=True)
    o = forward()
    g = torch.rand_like(o)
    backward = lambda: torch.autograd.grad(o, x, g, retain_graph=True)
    name = f"{str(dtype)[6:]}/{batches}x{heads}x{rows}x{size}"
    print(f"{name}/forward {rate(forward, 2 * product):.1f} TFLOP/s")
    print(f"{name}/backward {rate(backward, 5 * product):.1f} TFLOP/s")
