"""Runs examples/gpt and bench/torch_gpt2.py in turn, from the same weights on the same tokens, and prints a table.
Without a program of PyTorch's, examples/gpt begins with weights of its own. Like PyTorch by default, goddp may add
the gradients of attention in any order (GODDP_NONDETERMINISTIC=1), except in "goddp deterministic".

A step's time is the mean of the steps behind the 25th, in a row, without a wait between two of them; of several
rounds the median counts. "First step" is the time from the start of the process to the end of its first step. The
first process of each program begins without caches of compiled kernels, and its later ones with those; all of
goddp's programs share theirs. The peak of memory is what PyTorch's max_memory_allocated counts: memory that was in
use at once. MFU is the rate of (6N + 12LCT) operations a token, with N parameters without those of the positions,
against 989e12 a second for each GPU. Fails if the losses differ by more than 1% of PyTorch's.
"""
import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

sizes = {"124M": (12, 12, 768), "355M": (24, 16, 1024), "774M": (36, 20, 1280), "1558M": (48, 25, 1600)}
flags = argparse.ArgumentParser()
flags.add_argument("--size", default="124M", choices=(*sizes, "tiny"))
flags.add_argument("--batches", type=int, nargs="+", default=[32, 64])
flags.add_argument("--ranks", type=int, default=1)
flags.add_argument("--steps", type=int, default=50)
flags.add_argument("--rounds", type=int, default=2)
flags.add_argument("--programs", nargs="*", help="those with one of these names, or whose names hold one of these words (default: all)")
flags.add_argument("--goddp-flags", default="", help="more flags of examples/gpt, such as --recompute=blocks")
flags.add_argument("--json", help="file to append a JSON line for each program to")
args = flags.parse_args()
layers, heads, width = sizes.get(args.size, (2, 2, 64))
context = 1024 if args.size in sizes else 32
vocab = 50304
skipped = 25  # steps before those whose time counts
here, bin = os.path.dirname(__file__), os.environ["BIN"]
python = os.environ.get("PYTHON_EXEC", sys.executable)
gpu = os.environ.get("GODDP_DEVICE") != "cpu"

goddp = [f"{bin}/gpt", "--in-order", "--sample", "0", *(["--dtype", "bf16"] if gpu else []), *args.goddp_flags.split()]
torch = ["torch_gpt2.py"]
programs = {"goddp": goddp, "goddp captured": [*goddp, "--captured"], "goddp deterministic": goddp}
if args.ranks > 1:
    programs |= {f"goddp zero{stage}": [*goddp, "--stage", str(stage)] for stage in (1, 2, 3)}
for way, attention in itertools.product(("eager", "compiled"), ("flash", "cudnn")):
    programs[f"PyTorch {way} {attention}"] = [*torch, "--attention", attention, *(["--compile"] if way == "compiled" else [])]
if args.ranks > 1:
    programs["PyTorch fsdp"] = [*torch, "--attention", "cudnn", "--compile", "--fsdp"]
if args.programs:
    programs = {name: p for name, p in programs.items() if name in args.programs or any(word in name for word in args.programs if word not in programs)}
if not programs or args.steps <= skipped:
    sys.exit(f"{len(programs)} programs and --steps {args.steps}, want at least one program and more than {skipped} steps")
has_peer = any(name.startswith("PyTorch") for name in programs)


def run(command, log, environment):
    """Runs a program. Returns the seconds to the end of its first step, and the lines of its log."""
    is_torch = command[0].endswith(".py")
    if is_torch:
        command = [os.path.join(here, command[0]), *command[1:]]
    if args.ranks > 1:
        command = [f"{bin}/golaunch", "--nproc-per-node", str(args.ranks), *command]
    elif is_torch:
        command = [python, *command]
    start, first, output = time.time(), None, []
    process = subprocess.Popen([*command, "--log", log], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    for line in process.stdout:
        output.append(line)
        if first is None and re.search(r"\bstep 1/", line):
            first = time.time() - start
        if "uncaptured" in line:
            print(line, file=sys.stderr)
    if process.wait() != 0:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{''.join(output[-20:])}")
    return first, [json.loads(line) for line in open(log)]


def measure(folder, batch, rounds):
    """Returns for each program its figures of all rounds."""
    results = {name: [] for name in programs}
    common = [
        "--tokens", f"{folder}/tokens.bin", *(["--init", f"{folder}/weights"] if has_peer else []),
        "--batch", str(batch), "--steps", str(args.steps), "--warmup", "5", "--log-every", str(skipped),
        *(["--size", args.size] if args.size in sizes else ["--layers", "2", "--heads", "2", "--embed", "64", "--context", "32"]),
    ]
    for number, (name, program) in itertools.product(range(rounds), programs.items()):
        caches = f"{folder}/caches-{'goddp' if name.startswith('goddp') else name.replace(' ', '-')}"
        is_cold = not os.path.exists(caches)
        environment = dict(
            os.environ, GODDP_NONDETERMINISTIC=str(int("deterministic" not in name)), XDG_CACHE_HOME=caches, CUDA_CACHE_PATH=f"{caches}/cuda",
            TORCHINDUCTOR_CACHE_DIR=f"{caches}/inductor", TRITON_CACHE_DIR=f"{caches}/triton",
        )
        first, lines = run([*program, *common], f"{folder}/log-{batch}-{name}-{number}", environment)
        steps = [line for line in lines if "loss" in line and line["step"] >= skipped]
        took = (steps[-1]["time"] - steps[0]["time"]) / (steps[-1]["step"] - steps[0]["step"])
        results[name].append({
            "step_ms": took * 1e3, "first_step_s": first, "cold": is_cold, "peak_bytes": max(line.get("peak_bytes", 0) for line in lines),
            "losses": {line["step"]: line["loss"] for line in lines if "loss" in line},
        })
        print(f"  {name}, batch {batch}, round {number + 1}: {took * 1e3:.1f} ms", file=sys.stderr, flush=True)
    return results


def report(batch, results):
    """Prints a table and writes the JSON lines. Returns whether the losses agree."""
    parameters = vocab * width + layers * (12 * width * width + 13 * width) + 2 * width
    operations = 6 * parameters + 12 * layers * width * context
    medians = {name: statistics.median(r["step_ms"] for r in rounds) for name, rounds in results.items()}
    peer = min((n for n in medians if n.startswith("PyTorch")), key=medians.get, default=None)
    print(f"GPT-2 {args.size}, {args.ranks} GPUs, batch {batch}, T {context}")
    print("| program | step, ms | tokens/s | MFU | peak, GiB | first step, s: cold | warm | step / best | peak / best | losses |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    agree = True
    for name, rounds in results.items():
        ms, peak = medians[name], max(r["peak_bytes"] for r in rounds)
        rate = args.ranks * batch * context / ms * 1e3
        mfu = rate / args.ranks * operations / 989e12
        starts = [" ".join(f"{r['first_step_s']:.1f}" for r in rounds if r["cold"] == cold) for cold in (True, False)]
        against = ["", "", ""]
        if peer:
            best = results[peer]
            off = [abs(loss - b["losses"][step]) / b["losses"][step] for r, b in zip(rounds, best) for step, loss in r["losses"].items()]
            agree &= all(o <= 1e-2 for o in off)  # a NaN does not agree
            against = [f"{ms / medians[peer]:.3f}", f"{peak / max(1, *(b['peak_bytes'] for b in best)):.3f}", f"{max(off):.1e}"]
        print(f"| {name} | {ms:.1f} | {rate:,.0f} | {mfu:.1%} | {peak / 2**30:.1f} | {' | '.join(starts)} | {' | '.join(against)} |")
        if args.json:
            with open(args.json, "a") as out:
                line = {"program": name, "size": args.size, "ranks": args.ranks, "batch": batch, "context": context, "step_ms": ms, "tokens_s": rate, "mfu": mfu,
                        "peak_bytes": peak, "rounds": rounds}
                print(json.dumps(line), file=out)
    print(flush=True)
    return agree


with tempfile.TemporaryDirectory() as folder:
    inputs = os.path.join(here, "gpt2_inputs.py")
    if has_peer:
        subprocess.run([python, inputs, "weights", f"{folder}/weights", str(layers), str(width), str(context)], check=True)
    most = max(args.batches) * args.ranks * context * args.steps + 1
    subprocess.run([python, inputs, "tokens", f"{folder}/tokens.bin", str(most)], check=True)
    agree = [report(batch, measure(folder, batch, args.rounds)) for batch in args.batches]
sys.exit(None if all(agree) else "the programs train different losses")
