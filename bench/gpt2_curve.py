"""Prints the validation losses of logs side by side, for bench/gpt2_curve.sh: of goddp, of PyTorch, and, if there is a
third log, of another run of PyTorch. Fails if the last ones of goddp and PyTorch differ by more than 0.01, or if a log
lacks a step of another."""
import json
import sys

most = 0.01
names = ("goddp", "PyTorch", "PyTorch again")
runs = []  # of each program, the lines with a validation loss by their steps
for name, path in zip(names, sys.argv[1:]):
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    runs.append({line["step"]: line for line in lines if "validation_loss" in line})
    if not runs[-1] or runs[-1].keys() != runs[0].keys():
        sys.exit(f"{name} has validation losses of the steps {list(runs[-1])}, goddp of {list(runs[0])}")
names = names[: len(runs)]
columns = [f"{name}, s" for name in names] + [f"{name}, loss" for name in names] + [f"{name} - PyTorch" for name in names if name != "PyTorch"]
print("| step |", " | ".join(columns), "|")
print("|---" * (len(columns) + 1) + "|")
for step in runs[0]:
    losses = [run[step]["validation_loss"] for run in runs]
    off = [loss - losses[1] for i, loss in enumerate(losses) if i != 1]
    cells = [f"{run[step]['time']:.1f}" for run in runs] + [f"{loss:.4f}" for loss in losses] + [f"{d:+.4f}" for d in off]
    print(f"| {step} |", " | ".join(cells), "|")
if not abs(off[0]) <= most:
    sys.exit(f"the last validation losses of goddp and PyTorch differ by {off[0]:+.4f}, want at most {most}")
