"""What bench/gorgonia.sh reads out of the outputs of examples/gorgonia.

losses ONE SEVERAL   the largest difference of losses, relative to ONE's, and whether
                     all ranks of SEVERAL ended with the same parameters
overlap TRACE        where in a step, which is its forward and backward pass, the first
                     reduction begins, and one step's spans in order
"""
import json
import re
import statistics
import sys


def losses(one, several):
    texts = [open(path).read() for path in (one, several)]
    want, got = ([float(x) for x in re.findall(r"step \d+ loss (\S+)", t)] for t in texts)
    assert len(want) == len(got) > 0, (len(want), len(got))
    worst = max(abs(g - w) / abs(w) for g, w in zip(got, want))
    hashes = re.findall(r"params sha256 (\S+)", texts[1])
    same = "equal" if len(set(hashes)) == 1 else "DIFFERENT"
    print(f"{len(want)} losses, largest difference {worst:.1e}; parameters of {len(hashes)} ranks {same}")


def overlap(path):
    spans = [e for e in json.load(open(path))["traceEvents"] if e.get("ph") == "X"]
    begin = [e["ts"] for e in spans if e["name"] == "forward"]
    end = [e["ts"] + e["dur"] for e in spans if e["name"] == "backward"]
    first, between = [], []
    for b, e in zip(begin, end):
        within = sorted((s for s in spans if b <= s["ts"] <= e), key=lambda s: s["ts"])
        reductions = [s["ts"] for s in within if s.get("cat") == "communication"]
        last = max(s["ts"] for s in within if s["name"].startswith("gradient of w"))
        first.append(100 * (reductions[0] - b) / (e - b) if reductions else 100)
        between.append(sum(t < last for t in reductions))
    print(f"{len(begin)} steps: the first reduction begins at {statistics.median(first):.0f}% of a step (median; "
          f"{sum(f < 70 for f in first)} steps below 70%), {statistics.median(between):g} begin before the last product")
    middle = sorted(range(len(first)), key=lambda i: first[i])[len(first) // 2]
    for s in sorted((s for s in spans if begin[middle] <= s["ts"] <= end[middle]), key=lambda s: s["ts"]):
        print(f"  {s['ts'] - begin[middle]:6.0f} us  {s['dur']:6.0f} us  {s['name']}")


{"losses": losses, "overlap": overlap}[sys.argv[1]](*sys.argv[2:])
