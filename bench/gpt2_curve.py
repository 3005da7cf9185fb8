"""Prints the validation losses of two logs side by side, for bench/gpt2_curve.sh. Fails if the last ones differ by
more than 0.01, or if a log lacks a step of the other."""
import json
import sys

most = 0.01
logs = []  # of each program, the lines with a validation loss by their steps
for path in sys.argv[1:3]:
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    logs.append({line["step"]: line for line in lines if "validation_loss" in line})
goddp, torch = logs
if not goddp or goddp.keys() != torch.keys():
    sys.exit(f"goddp has validation losses of the steps {list(goddp)}, PyTorch of {list(torch)}")
print("| step | goddp, s | PyTorch, s | goddp, loss | PyTorch, loss | difference |")
print("|---|---|---|---|---|---|")
for step, ours in goddp.items():
    theirs = torch[step]
    a, b = ours["validation_loss"], theirs["validation_loss"]
    print(f"| {step} | {ours['time']:.1f} | {theirs['time']:.1f} | {a:.4f} | {b:.4f} | {a - b:+.4f} |")
if not abs(a - b) <= most:
    sys.exit(f"the last validation losses differ by {a - b:+.4f}, want at most {most}")
