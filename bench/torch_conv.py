"""The convolutions of bench/conv in PyTorch. Arguments: the number of threads, and how many seconds a measurement lasts.

Each line of the input is a shape. Its answer is the milliseconds of the convolution, of the gradient of its images and of
that of its weight."""
import json
import sys
import time

import torch

torch.set_num_threads(int(sys.argv[1]))
now = time.process_time if sys.argv[1] == "1" else time.perf_counter
at_least = float(sys.argv[2])


def measure(f):
    f()
    calls, begin, took = 0, now(), 0
    while took < at_least:
        f()
        calls, took = calls + 1, now() - begin
    return took / calls * 1e3


for line in sys.stdin:
    z = json.loads(line)
    layout = torch.channels_last if z["last"] else torch.contiguous_format
    x = torch.rand(z["n"], z["c"], z["size"], z["size"]).to(memory_format=layout)
    w = torch.rand(z["o"], z["c"] // z["groups"], z["kernel"], z["kernel"]).to(memory_format=layout)
    two = [[z[name]] * 2 for name in ("stride", "padding", "dilation")]

    def forward():
        return torch.nn.functional.conv2d(x, w, None, *two, z["groups"])

    def backward(of):
        mask = [of == "x", of == "w", False]
        torch.ops.aten.convolution_backward(g, x, w, None, *two, False, [0, 0], z["groups"], mask)

    with torch.no_grad():
        g = torch.rand_like(forward())
        first = z["c"] == 3  # a network's first layer needs no gradient of its images
        print(json.dumps([measure(forward), 0 if first else measure(lambda: backward("x")), measure(lambda: backward("w"))]), flush=True)
