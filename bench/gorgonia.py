"""Evaluates the outputs of examples/gorgonia for bench/gorgonia.sh.

losses ONE SEVERAL   prints the largest difference of losses, relative to those of ONE, and
                     whether all ranks of SEVERAL ended with the same parameters
overlap TRACE...     prints at which percentage of a step (forward and backward pass) the forward
                     pass ends, the first bucket is complete, and its reduction begins, as
                     medians over the steps of all traces; and the spans of one step in order
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


def step(spans, begin, end):
    """Returns the figures of one step."""
    within = sorted((s for s in spans if begin <= s["ts"] <= end), key=lambda s: s["ts"])
    gradients = [s for s in within if s["name"].startswith("gradient of")]
    reductions = [s for s in within if s.get("cat") == "communication"]
    turned = next(s for s in within if s["name"] == "backward")["ts"]
    last = max(s["ts"] for s in gradients if s["name"].startswith("gradient of w"))
    share = lambda ts: 100 * (ts - begin) / (end - begin)
    found = {"begin": begin, "spans": within, "turned": share(turned), "between": sum(s["ts"] < last for s in reductions)}
    if reductions:  # buckets hold gradients in the order in which they become final
        closes = gradients[reductions[0]["args"]["parameters"] - 1]
        complete = closes["ts"] + closes["dur"]
        return found | {"complete": share(complete), "first": share(reductions[0]["ts"]), "late": reductions[0]["ts"] - complete}
    return found | {"complete": 100, "first": 100, "late": end - begin}


def overlap(*paths):
    steps = []
    for path in paths:
        spans = [e for e in json.load(open(path))["traceEvents"] if e.get("ph") == "X"]
        begin = [e["ts"] for e in spans if e["name"] == "forward"]
        end = [e["ts"] + e["dur"] for e in spans if e["name"] == "backward"]
        steps += [step(spans, b, e) for b, e in zip(begin, end, strict=True)]
    median = lambda key: statistics.median(s[key] for s in steps)
    below = lambda key: sum(s[key] < 70 for s in steps)
    late = statistics.quantiles((s["late"] for s in steps), n=4)
    print(f"{len(steps)} steps: forward ends at {median('turned'):.0f}% of a step, the first bucket is complete at {median('complete'):.0f}% "
          f"(below 70% in {below('complete')}), its reduction begins at {median('first'):.0f}% (below 70% in {below('first')}), "
          f"{late[1]:.0f} us later (quartiles {late[0]:.0f} and {late[2]:.0f}); {median('between'):g} reductions begin before the last product")
    middle = sorted(steps, key=lambda s: s["first"])[len(steps) // 2]
    for s in middle["spans"]:
        print(f"  {s['ts'] - middle['begin']:6.0f} us  {s['dur']:6.0f} us  {s['name']}")


{"losses": losses, "overlap": overlap}[sys.argv[1]](*sys.argv[2:])
