"""Makes adamw.json: what torch.optim.AdamW and Adam do to two parameters in six steps.

Run from this folder with PyTorch 1.13 or newer: python3 adamw.py
"""

import itertools
import json
import math

import torch

SHAPES = [(3,), (2, 2)]
STEPS = 6


def numbers(n, phase):
    return [math.sin(1 + i + 10 * phase) for i in range(n)]


initial = [numbers(math.prod(s), k) for k, s in enumerate(SHAPES)]
# The second parameter has no gradient in the first step, nor in the fourth.
grads = [[None if t in (0, 3) and k == 1 else numbers(math.prod(s), 2 + t + 7 * k) for k, s in enumerate(SHAPES)] for t in range(STEPS)]

variants = []
for coupled, decay, betas, eps in itertools.product([False, True], [0, 0.1], [(0.9, 0.999), (0.5, 0.8), (0.0, 0.0)], [1e-8, 1e-3, 0.0]):
    params = [torch.tensor(p, dtype=torch.float64).reshape(s) for p, s in zip(initial, SHAPES)]
    kind = torch.optim.Adam if coupled else torch.optim.AdamW
    opt = kind(params, lr=0.1, betas=betas, eps=eps, weight_decay=decay)
    after = []
    for step in grads:
        for p, g in zip(params, step):
            p.grad = None if g is None else torch.tensor(g, dtype=torch.float64).reshape(p.shape)
        opt.step()
        after.append([p.flatten().tolist() for p in params])
    variants.append(dict(Coupled=coupled, WeightDecay=decay, Betas=betas, Eps=eps, After=after))

with open("adamw.json", "w") as f:
    json.dump(dict(Torch=torch.__version__, LR=0.1, Shapes=SHAPES, Initial=initial, Grads=grads, Variants=variants), f, indent=1)
    f.write("\n")
