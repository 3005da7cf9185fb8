"""Prints the table of bench/steps.sh from its log of JSON lines, and writes the medians to a file."""
import json
import statistics
import sys

tolerance = {"float32": 1e-5, "tf32": 1e-3, "bfloat16": 1e-2}  # of the losses, relative
runs = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    runs.setdefault((r["model"], r["ranks"], r["type"]), {}).setdefault(r["name"], []).append(r)
out = open(sys.argv[2], "w") if len(sys.argv) > 2 else None
differ = False
for (model, ranks, dtype), programs in runs.items():
    medians = {name: statistics.median(r["step_ms"] for r in rs) for name, rs in programs.items()}
    ours = min((n for n in medians if n.startswith("goddp")), key=medians.get)
    peer = min((n for n in medians if not n.startswith("goddp")), key=medians.get)
    print(f"{model}: {ranks} ranks, {dtype}")
    for name, rs in programs.items():
        losses = rs[0]["losses"]
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, programs[peer][0]["losses"]))
        differ |= worst > tolerance[dtype]
        print(f"  {name:16} {medians[name]:9.3f} ms  {rs[0]['peak_mib']:8.0f} MiB  losses differ by {worst:.1e}")
        if out:
            print(json.dumps({**rs[0], "step_ms": medians[name]}), file=out)
    print(f"  {ours} / {peer}: {medians[ours] / medians[peer]:.3f}")
sys.exit("the programs train different losses" if differ else 0)
