"""Trains small networks with PyTorch DDP, and one with FSDP2, and records inputs and results. test/parity
then repeats the trainings with goddp and compares.

There is one process per rank: over NCCL with one GPU per rank if there are GPUs, else over Gloo.
Each case becomes a file OUT/NAME.safetensors (https://huggingface.co/docs/safetensors: eight bytes
with the length of a JSON header, the header, raw little-endian data):

  x [batches, global batch, in], y     the samples; step t takes batch t mod batches,
                                       and rank r the r-th part of it
  initial/PARAMETER                    the weights
  loss [steps]                         mean of the ranks' losses, before each step
  gradient/PARAMETER                   reduced gradients of the first step
  final/PARAMETER                      the weights after the last step

The key "case" of the header's metadata holds the settings of the training as JSON. Its "gap" is the
effect of rounding alone: the largest differences between two single-process runs on the same samples
in another order. The gap of the losses is at least the resolution of their type.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import struct

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

flags = argparse.ArgumentParser()
flags.add_argument("--out", type=pathlib.Path, required=True, help="folder for the files")
flags.add_argument("--large", action="store_true", help="train 3 x Linear(4000, 4000) in float32 instead of the small cases")
args = flags.parse_args()

MLP = dict(
    loss="mse", widths=[65, 129, 97, 33], batch=14, batches=4, micro=1, lr=2, momentum=0, weight_decay=0,
    bucket_cap_mb=0.01, tf32=False, stage=0, steps=20,
)
SMALL = {
    "mlp": {},
    "momentum": dict(momentum=0.9, weight_decay=0.01, lr=0.5),
    "classifier": dict(loss="cross_entropy", momentum=0.9, lr=0.2),
    "accumulate": dict(micro=2),
}
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):
    SMALL["fsdp"] = dict(stage=3, widths=[64] * 9, momentum=0.9, lr=0.1, bucket_cap_mb=0.02, steps=30)
LARGE = dict(widths=[4000] * 4, batch=1000, batches=1, lr=1, bucket_cap_mb=25)
CRITERIA = dict(mse=nn.functional.mse_loss, cross_entropy=nn.functional.cross_entropy)


def cases():
    """Yields the settings of each case."""
    if args.large:
        tf32 = os.environ.get("GODDP_ALLOW_TF32") == "1"
        yield dict(MLP, **LARGE, name="large-tf32" if tf32 else "large-float32", dtype="float32", tf32=tf32)
        return
    for name, what in SMALL.items():
        for dtype in ("float64", "float32"):
            yield {**MLP, **what, "name": f"{name}-{dtype}", "dtype": dtype}


def network(case):
    modules = []
    for before, behind in zip(case["widths"], case["widths"][1:]):
        modules += [nn.ReLU()] * bool(modules) + [nn.Linear(before, behind, dtype=getattr(torch, case["dtype"]))]
    return nn.Sequential(*modules).to(device)


def samples(case):
    """Returns random inputs, and random targets or labels, of the global batches."""
    rows, dtype = (case["batches"], world * case["batch"]), getattr(torch, case["dtype"])
    x = torch.randn(*rows, case["widths"][0], dtype=dtype)
    if case["loss"] == "mse":
        return x.to(device), torch.randn(*rows, case["widths"][-1], dtype=dtype).to(device)
    return x.to(device), torch.randint(case["widths"][-1], rows).to(device)


def open_or_shut(initial, x):
    """Adds to the hidden layers' biases, in place, alternately plus and minus six standard deviations
    of the ReLU's input, so that each ReLU is clearly open or shut in all steps.

    Otherwise some of millions of inputs would be so close to zero that two correct programs open
    different ReLUs, and a single one changes the gradient by a thousandth."""
    layers = sorted({name.partition(".")[0] for name in initial}, key=int)
    for layer in layers[:-1]:
        bias = initial[layer + ".bias"]
        x = nn.functional.linear(x, initial[layer + ".weight"], bias)
        shift = torch.full_like(bias, 6 * x.std().item())
        shift[1::2] *= -1
        bias += shift
        x = (x + shift).relu()


def train(case, initial, x, y, micro=1, wrap=None):
    """Returns the losses, the first step's gradients and the final parameters."""
    net = network(case)
    net.load_state_dict(initial)
    model = wrap(net) if wrap else net
    opt = torch.optim.SGD(net.parameters(), lr=case["lr"], momentum=case["momentum"], weight_decay=case["weight_decay"])
    losses, first = [], None
    for step in range(case["steps"]):
        opt.zero_grad()
        total = 0
        at = step % case["batches"]
        for i, (xs, ys) in enumerate(zip(x[at].chunk(micro), y[at].chunk(micro))):
            with model.no_sync() if i + 1 < micro else contextlib.nullcontext():
                loss = CRITERIA[case["loss"]](model(xs), ys) / micro
                loss.backward()
            total += loss.item()
        losses.append(total)
        first = first or {name: whole(p.grad.clone()) for name, p in net.named_parameters()}
        opt.step()
    return torch.tensor(losses, dtype=torch.float64), first, {name: whole(p.detach()) for name, p in net.named_parameters()}


def whole(t):
    """Returns a tensor without shards. All ranks call it."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def wrap(case, net):
    if not case["stage"]:
        return DistributedDataParallel(net, bucket_cap_mb=case["bucket_cap_mb"])
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def gap(case, initial, x, y):
    """Returns the differences that another order of the samples makes in a single process.

    The forward pass of a row may give the same bits in any position of the batch. In TF32 a small
    difference of the forward pass becomes large when the operands are rounded, so the order of the
    input's features changes too."""
    one = train(case, initial, x, y)
    rows = torch.randperm(x.shape[1], device=device)
    columns = torch.randperm(x.shape[2], device=device) if case["tf32"] else torch.arange(x.shape[2], device=device)

    def permuted(tensors):
        return {**tensors, "0.weight": tensors["0.weight"][:, columns]}

    other = train(case, permuted(initial), x[:, rows][:, :, columns], y[:, rows])
    epsilon = torch.finfo(x.dtype).eps * one[0].max().item()
    return dict(
        loss=max((one[0] - other[0]).abs().max().item(), epsilon),
        gradient=worst(permuted(one[1]), other[1]),
        parameter=worst(permuted(one[2]), other[2]),
    )


def worst(want, got):
    """Returns the largest |difference| / |wanted| of any tensor, by Euclidean norm."""
    return max(((want[n].double() - got[n].double()).norm() / want[n].double().norm()).item() for n in want)


def save(path, case, tensors):
    names = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
    tensors = {name: t.cpu().contiguous() for name, t in tensors.items()}
    header, end = {"__metadata__": {"case": json.dumps(case)}}, 0
    for name, t in tensors.items():
        begin, end = end, end + t.numel() * t.element_size()
        header[name] = dict(dtype=names[t.dtype], shape=list(t.shape), data_offsets=[begin, end])
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for t in tensors.values():
            file.write(ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()))


gpu = torch.cuda.is_available()
if gpu:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

for case in cases():
    torch.backends.cuda.matmul.allow_tf32 = case["tf32"]
    torch.manual_seed(0)
    initial = {name: p.detach() for name, p in network(case).named_parameters()}
    x, y = samples(case)
    if args.large:
        open_or_shut(initial, x[0])
    mine = slice(rank * case["batch"], (rank + 1) * case["batch"])
    losses, first, final = train(case, initial, x[:, mine], y[:, mine], case["micro"], lambda net: wrap(case, net))
    losses = losses.to(device)
    dist.all_reduce(losses)
    if rank == 0:
        case.update(world=world, torch=torch.__version__, device=device.type, gap=gap(case, initial, x, y))
        groups = dict(initial=initial, gradient=first, final=final)
        tensors = {f"{group}/{name}": t for group, named in groups.items() for name, t in named.items()}
        save(args.out / (case["name"] + ".safetensors"), case, dict(tensors, x=x, y=y, loss=losses / world))
    dist.barrier()
dist.destroy_process_group()
