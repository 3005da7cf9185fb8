"""All-reduce through PyTorch and Gloo, float32 sum: "bytes median-microseconds" lines on rank 0. A peer of bench/cpu_allreduce.sh."""
import statistics
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
for kib in (1, 16, 64, 256, 1024, 4096, 16384, 65536):
    tensor = torch.ones(kib * 256)
    times = []
    for i in range(205 if kib < 1024 else 25):
        tensor.fill_(1)
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - begun)
    if dist.get_rank() == 0:
        print(kib, f"{statistics.median(times[5:]) * 1e6:.1f}", flush=True)
