# Trains with PyTorch's optimizers as a request on stdin says, and writes where the
# parameters went to stdout. Muon is made here by the published rule, in the parameters' type.
import json
import sys

try:
    import torch
except ImportError:
    sys.exit(77)

request = json.load(sys.stdin)
device = "cuda" if request["cuda"] and torch.cuda.is_available() else "cpu"


class Muon(torch.optim.Optimizer):
    def __init__(self, groups, **defaults):
        defaults = {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "match_rms": False} | defaults
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["buffer"] = torch.zeros_like(p)
                state["buffer"].lerp_(p.grad, 1 - group["momentum"])
                u = p.grad.lerp(state["buffer"], group["momentum"]) if group["nesterov"] else state["buffer"]
                u = u.reshape(len(u), -1)
                rows, columns = u.shape
                x = u.T if rows > columns else u
                x = x / x.norm().clamp(min=1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if rows > columns else x
                scale = 0.2 * max(rows, columns) ** 0.5 if group["match_rms"] else max(1, rows / columns) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x.reshape(p.shape), alpha=-group["lr"] * scale)


optimizers = {"Muon": Muon}
answer = []
for run in request["runs"]:
    dtype = getattr(torch, run["dtype"])
    params = [torch.tensor(d, dtype=torch.float64).reshape(s).to(device, dtype) for s, d in zip(request["shapes"], run["initial"])]
    made = []
    for o in run["optimizers"]:
        groups = [dict(g["options"] or {}, params=[params[i] for i in g["params"]]) for g in o["groups"]]
        kind = optimizers.get(o["name"]) or getattr(torch.optim, o["name"])
        made.append(kind(groups, **o["options"]))
        for g in made[-1].param_groups:
            g["initial_lr"] = g["lr"]
    seen = []
    for step in range(run["steps"]):
        for i, p in enumerate(params):
            # The gradient of sum(cos(p + k)), k = element + step, where the parameter takes part.
            p.grad = None
            if (step + i) % 7 != 6:
                k = torch.arange(p.numel(), dtype=torch.float64).reshape(p.shape).to(device) + step
                p.grad = (-torch.sin(p.double() + k) * run["size"]).to(dtype)
        if run["clip"]:
            torch.nn.utils.clip_grad_norm_(params, run["clip"], run["norm"] if run["norm"] else float("inf"))
        if run["clip_value"]:
            torch.nn.utils.clip_grad_value_(params, run["clip_value"])
        for o in made:
            for g in o.param_groups:
                g["lr"] = g["initial_lr"] * run["rates"][step]
            o.step()
        seen.append([p.double().flatten().tolist() for p in params])
    answer.append(seen)
json.dump({"version": torch.__version__, "device": device, "runs": answer}, sys.stdout)
