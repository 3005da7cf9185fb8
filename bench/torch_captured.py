"""Steps of PyTorch DDP on one GPU as a CUDA graph, for docs/results/gpu.md.

Two sizes in three precisions: the models of BenchmarkCapturedSteps in package ddp. Prints the mean
milliseconds of 60 replays in a row."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl", device_id=torch.device("cuda", 0))


def measure(layers, size, batch, cap, precision):
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    options = {"device": "cuda", "dtype": torch.bfloat16 if precision == "bf16" else torch.float32}
    modules = []
    for i in range(layers):
        modules += [nn.ReLU()] * (i > 0) + [nn.Linear(size, size, **options)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model = DistributedDataParallel(nn.Sequential(*modules), bucket_cap_mb=cap, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, fused=True)
    x, y = (torch.randn(batch, size, **options) for _ in range(2))

    def step():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(12):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for steps in (15, 60):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            graph.replay()
        torch.cuda.synchronize()
    print(f"{layers}x{size} {precision} {(time.perf_counter() - start) / steps * 1e3:.3f} ms", flush=True)


for shape in ((32, 512, 64, 1), (3, 4000, 1000, 25)):
    for precision in ("fp32", "tf32", "bf16"):
        measure(*shape, precision)
dist.destroy_process_group()
