"""Makes clip.json: what torch.nn.utils.clip_grad_norm_ makes of the gradients of two parameters.

Run from this folder with PyTorch 1.13 or newer: python3 clip.py
"""

import json
import math

import torch

cases = []
for scale, bound in [(1, 2), (1, 5), (1, 5.000001), (1, 5.000002), (1, 1e9), (0, 1), (1e-7, 1e-6), (1e-7, 1e-3), (1e6, 0.5)]:
    params = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    grads = [[3.0 * scale, 0.0], [-4.0 * scale]]
    for p, g in zip(params, grads):
        p.grad = torch.tensor(g, dtype=torch.float64)
    norm = torch.nn.utils.clip_grad_norm_(params, bound)
    cases.append(dict(Grads=grads, Max=bound, Norm=norm.item(), After=[p.grad.tolist() for p in params]))

with open("clip.json", "w") as f:
    json.dump(dict(Torch=torch.__version__, Cases=cases), f, indent=1)
    f.write("\n")
