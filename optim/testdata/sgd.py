"""Makes sgd.json: what torch.optim.SGD does to two parameters in five steps.

Run from this folder with PyTorch 1.13 or newer: python3 sgd.py
"""

import itertools
import json
import math

import torch

SHAPES = [(3,), (2, 2)]
STEPS = 5


def numbers(n, phase):
    return [math.sin(1 + i + 10 * phase) for i in range(n)]


initial = [numbers(math.prod(s), k) for k, s in enumerate(SHAPES)]
# The second parameter has no gradient in the first step.
grads = [[None if t == 0 and k == 1 else numbers(math.prod(s), 2 + t + 7 * k) for k, s in enumerate(SHAPES)] for t in range(STEPS)]

variants = []
for momentum, dampening, decay, nesterov in itertools.product([0, 0.9], [0, 0.3], [0, 0.1], [False, True]):
    if nesterov and (momentum == 0 or dampening != 0):
        continue
    params = [torch.tensor(p, dtype=torch.float64).reshape(s) for p, s in zip(initial, SHAPES)]
    opt = torch.optim.SGD(params, lr=0.1, momentum=momentum, dampening=dampening, weight_decay=decay, nesterov=nesterov)
    after = []
    for step in grads:
        for p, g in zip(params, step):
            p.grad = None if g is None else torch.tensor(g, dtype=torch.float64).reshape(p.shape)
        opt.step()
        after.append([p.flatten().tolist() for p in params])
    variants.append(dict(Momentum=momentum, Dampening=dampening, WeightDecay=decay, Nesterov=nesterov, After=after))

with open("sgd.json", "w") as f:
    json.dump(dict(Torch=torch.__version__, LR=0.1, Shapes=SHAPES, Initial=initial, Grads=grads, Variants=variants), f, indent=1)
    f.write("\n")
