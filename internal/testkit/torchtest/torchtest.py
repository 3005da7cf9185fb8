# Evaluates the expressions of a request on stdin, and writes values and gradients to stdout. Numbers
# travel as base64 of float64 or int64: JSON has no NaN.
import array
import base64
import json
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)

request = json.load(sys.stdin)
device = "cuda" if request["cuda"] and torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def tensor(given, dtype):
    kind, dtype = ("q", torch.int64) if given["integer"] else ("d", dtype)
    numbers = array.array(kind, base64.b64decode(given["data"] or ""))
    t = torch.tensor(numbers, dtype=dtype, device=device) if len(numbers) else torch.zeros(0, dtype=dtype, device=device)
    return t.reshape(given["shape"]).requires_grad_(given["grad"])


def answer(t):
    numbers = t.detach().to("cpu", torch.float64).contiguous().flatten().tolist()
    return {"shape": list(t.shape), "data": base64.b64encode(array.array("d", numbers).tobytes()).decode()}


replies = []
for case in request["cases"]:
    x = [tensor(given, getattr(torch, case["dtype"])) for given in case["in"]]
    try:
        y = eval(case["expr"], {"torch": torch, "F": F, "x": x})
        reply = {"y": answer(y), "grads": [None] * len(x)}
        if y.requires_grad:
            upstream = torch.sin(torch.arange(y.numel(), dtype=torch.float64) + 1).reshape(y.shape)
            y.backward(upstream.to(y.device, y.dtype))
            reply["grads"] = [None if t.grad is None else answer(t.grad) for t in x]
    except Exception as e:
        reply = {"error": f"{type(e).__name__}: {e}"}
    replies.append(reply)
json.dump({"version": torch.__version__, "device": device, "cases": replies}, sys.stdout)
