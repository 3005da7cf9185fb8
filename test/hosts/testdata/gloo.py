# One rank of a job whose ranks sum up their numbers by Gloo.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.tensor([float(rank + 1)])
dist.all_reduce(x)
dist.barrier()
print(f"rank {rank} of {world} has the sum {x.item():g}")
