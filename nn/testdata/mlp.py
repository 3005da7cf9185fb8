"""Makes mlp.json: losses and first gradients of a small network in PyTorch.

Run from this folder with PyTorch 1.13 or newer: python3 mlp.py
"""

import json
import math

import torch
from torch import nn

STEPS, BATCH = 8, 6
torch.set_default_dtype(torch.float64)


def numbers(n, phase):
    return [math.sin(1 + 1.7 * i + 10 * phase) for i in range(n)]


def network():
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 3))
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(torch.tensor(numbers(p.numel(), k)).reshape(p.shape) / 2)
    return net


x = numbers(BATCH * 5, 20)
y = numbers(BATCH * 3, 21)
labels = [2, 0, 1, 1, 2, 0]
net = network()
out = dict(
    Torch=torch.__version__, LR=0.05, Momentum=0.9, WeightDecay=0.01, X=x, Y=y, Labels=labels,
    Params=[dict(Name=n, Shape=list(p.shape), Data=p.flatten().tolist()) for n, p in net.named_parameters()],
)
losses = dict(
    MSELoss=lambda p: nn.functional.mse_loss(p, torch.tensor(y).reshape(BATCH, 3)),
    CrossEntropyLoss=lambda p: nn.functional.cross_entropy(p, torch.tensor(labels)),
)
for name, criterion in losses.items():
    net = network()
    opt = torch.optim.SGD(net.parameters(), lr=out["LR"], momentum=out["Momentum"], weight_decay=out["WeightDecay"])
    values, first = [], None
    for _ in range(STEPS):
        opt.zero_grad()
        loss = criterion(net(torch.tensor(x).reshape(BATCH, 5)))
        loss.backward()
        first = first or [p.grad.flatten().tolist() for p in net.parameters()]
        opt.step()
        values.append(loss.item())
    out[name] = dict(Losses=values, FirstGrads=first)

with open("mlp.json", "w") as f:
    json.dump(out, f, indent=1)
    f.write("\n")
