"""Prints the validation losses of two logs side by side, for bench/gpt2_curve.sh. Fails if the last ones differ by
more than 0.01, or if a log lacks a step of the other."""
import json
import sys

most = 0.01
losses, seconds = [], []
for path in sys.argv[1:3]:
    lines = [json.loads(line) for line in open(path)]
    losses.append({line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line})
    seconds.append({line["step"]: line["time"] for line in lines if "validation_loss" in line})
print("| step | goddp, s | PyTorch, s | goddp, loss | PyTorch, loss | difference |")
print("|---|---|---|---|---|---|")
for step in losses[0]:
    a, b = (loss[step] for loss in losses)
    print(f"| {step} | {seconds[0][step]:.1f} | {seconds[1][step]:.1f} | {a:.4f} | {b:.4f} | {a - b:+.4f} |")
if losses[0].keys() != losses[1].keys() or not abs(a - b) <= most:
    sys.exit(f"the last validation losses differ by {a - b:+.4f}, want at most {most}")
