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
    medians = {
        name: {**rs[0], **{k: statistics.median(r[k] for r in rs) for k in ("step_ms", "exposed_ms", "peak_mib") if k in rs[0]}}
        for name, rs in programs.items()
    }
    ours, peer = (
        min((m for m in medians.values() if m["name"].startswith("goddp") == own), key=lambda m: m["step_ms"], default=None) for own in (True, False)
    )
    print(f"{model}: {ranks} ranks, {dtype}")
    print(f"  {'':20} {'ms':>9} {'exposed ms':>11} {'MiB':>7}  losses differ by")
    for name, m in medians.items():
        other = peer or m
        off = [abs(a - b) / abs(b) for a, b in zip(m["losses"], other["losses"])]
        differ |= not all(o <= tolerance[dtype] for o in off)  # a NaN differs
        exposed = f"{m['exposed_ms']:.3f}" if "exposed_ms" in m else "-"
        print(f"  {name:20} {m['step_ms']:9.3f} {exposed:>11} {m['peak_mib']:7.0f}  {max(off):.1e}")
        if out:
            print(json.dumps(m), file=out)
    if peer:
        print(f"  {ours['name']} / {peer['name']}: {ours['step_ms'] / peer['step_ms']:.3f}")
sys.exit("the programs train different losses" if differ else 0)
