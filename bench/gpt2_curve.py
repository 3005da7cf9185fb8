"""Prints the validation losses of logs side by side, for bench/gpt2_curve.sh: of goddp, and of one or more runs of
PyTorch. Fails if goddp's last one is more than 0.01 from the median of PyTorch's, or if a log lacks a step of another."""
import json
import statistics
import sys

most = 0.01
names = ["goddp", *(f"PyTorch {i + 1}" for i in range(len(sys.argv) - 2))]
runs = []  # of each program, the lines with a validation loss by their steps
for name, path in zip(names, sys.argv[1:]):
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    runs.append({line["step"]: line for line in lines if "validation_loss" in line})
    if not runs[-1] or runs[-1].keys() != runs[0].keys():
        sys.exit(f"{name} has validation losses of the steps {list(runs[-1])}, goddp of {list(runs[0])}")
print("| step | goddp, s | PyTorch 1, s |", " | ".join(names), "| goddp - median | PyTorch's range |")
print("|---" * (len(names) + 5) + "|")
for step in runs[0]:
    goddp, *peers = [run[step]["validation_loss"] for run in runs]
    off, spread = goddp - statistics.median(peers), max(peers) - min(peers)
    cells = [f"{run[step]['time']:.1f}" for run in runs[:2]] + [f"{loss:.4f}" for loss in (goddp, *peers)]
    print(f"| {step} |", " | ".join(cells), f"| {off:+.4f} | {spread:.4f} |")
if not abs(off) <= most:
    sys.exit(f"goddp's last validation loss is {off:+.4f} from the median of PyTorch's, want at most {most}")
