"""Makes gelu.json: GELU and its approximation in PyTorch, and their derivatives.

Run from this folder with PyTorch 1.13 or newer: python3 gelu.py
"""

import json

import torch

x = torch.linspace(-8, 8, 65, dtype=torch.float64)
out = dict(Torch=torch.__version__, X=x.tolist())
for name, approximate in dict(GELU="none", GELUTanh="tanh").items():
    x = x.detach().requires_grad_()
    y = torch.nn.functional.gelu(x, approximate=approximate)
    y.sum().backward()
    out[name] = dict(Y=y.tolist(), Grad=x.grad.tolist())

with open("gelu.json", "w") as f:
    json.dump(out, f, indent=1)
    f.write("\n")
