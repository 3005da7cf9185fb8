"""examples/fashion in PyTorch DDP, as in PyTorch's tutorials, for bench/fashion.sh.

Each rank is a process. The ranks use NCCL and one GPU each if there are GPUs, else Gloo. Rank 0
prints a line for each epoch: its seconds, with the evaluation, and the test set's accuracy."""
import argparse
import gzip
import os
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

flags = argparse.ArgumentParser()
flags.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
flags.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
for name, default in (("epochs", 10), ("batch", 64), ("workers", 0), ("seed", 0)):
    flags.add_argument("--" + name, type=int, default=default)
flags.add_argument("--lr", type=float, default=1e-3)
args = flags.parse_args()

gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
if not gpu:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
dist.init_process_group("nccl" if gpu else "gloo")
torch.manual_seed(args.seed)


def read(name):
    path = os.path.join(args.data, name)
    with (open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz")) as f:
        raw = f.read()
    sizes = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.from_numpy(numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * raw[3]).reshape(sizes).copy())


def dataset(prefix):
    images = (read(prefix + "-images-idx3-ubyte").float().div(255).unsqueeze(1) - 0.286) / 0.353
    return TensorDataset(images, read(prefix + "-labels-idx1-ubyte").long())


train, test = dataset("train"), dataset("t10k")
sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True, num_workers=args.workers, pin_memory=gpu)
tests = DataLoader(test, 500, sampler=DistributedSampler(test, shuffle=False), num_workers=args.workers, pin_memory=gpu)

if args.model == "mlp":
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
else:
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
    )
model = DistributedDataParallel(net.to(device), device_ids=[device.index] if gpu else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * len(loader), cycle_momentum=False)
loss_of = nn.CrossEntropyLoss()

for epoch in range(args.epochs):
    start = time.perf_counter()
    sampler.set_epoch(epoch)
    model.train()
    for x, y in loader:
        loss = loss_of(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
    counts = torch.zeros(2, device=device)
    with torch.no_grad():
        for x, y in tests:
            counts[0] += (model(x.to(device)).argmax(1) == y.to(device)).sum()
            counts[1] += len(y)
    dist.all_reduce(counts)
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1} seconds {time.perf_counter() - start:.3f} accuracy {counts[0] / counts[1]:.4f}", flush=True)
dist.destroy_process_group()
