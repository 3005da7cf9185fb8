"""Drives a PyTorch TCPStore client; prints one line for each step that the Go side checks.

usage: torch_store.py client|serve HOST PORT
"""

import sys
from datetime import timedelta

try:
    import torch
    import torch.distributed as dist

    dist.TCPStore
except (ImportError, AttributeError) as missing:
    print("without torch:", missing, flush=True)
    sys.exit()
print("with torch", torch.__version__, flush=True)

mode, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
short = timedelta(milliseconds=300)


def say(*args):
    print(*args, flush=True)


def client():
    """Every operation of the Python API against a store hosted elsewhere."""
    store = dist.TCPStore(host, port, None, False, timeout=timedelta(seconds=60), wait_for_workers=False)
    store.set("py", "from python")
    assert store.get("py") == b"from python"
    assert store.get("go") == b"from go"
    assert store.add("n", 5) == 5 and store.add("n", -7) == -2
    assert store.get("n") == b"-2"
    assert store.compare_set("cs", "x", "y") == b"x"  # absent, and expected is not empty
    assert store.compare_set("cs", "", "a") == b"a"
    assert store.compare_set("cs", "b", "c") == b"a"
    assert store.compare_set("cs", "a", "b") == b"b"
    store.wait(["py", "go", "n"])
    view = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    view.set("k", "prefixed")
    assert store.num_keys() == 5, store.num_keys()
    assert store.delete_key("cs") is True and store.delete_key("cs") is False
    if hasattr(store, "multi_set"):
        store.append("log", "ab")
        store.append("log", "cd")
        store.multi_set(["m1", "m2"], ["1", ""])
        assert store.multi_get(["m2", "log", "m1"]) == [b"", b"abcd", b"1"]
        assert store.check(["m1", "m2"]) is True and store.check(["m1", "none"]) is False
        for key in ("log", "m1", "m2"):
            store.delete_key(key)
    keys = store.num_keys()

    # A wait that timed out, once followed by another request, is forgotten: its
    # key must not shift the replies to what comes after.
    try:
        store.wait(["late"], short)
        raise AssertionError("the wait ended")
    except RuntimeError:
        pass
    assert store.num_keys() == keys
    say("timed out")
    sys.stdin.readline()  # the key is there now
    got = store.num_keys()
    assert got == keys + 1, (got, keys)
    say("blocking")
    assert store.get("blocked on") == b"woken"
    say("done")


def serve():
    """Hosts a store for two workers, of which Go is one."""
    store = dist.TCPStore(host, port, 2, True, timeout=timedelta(seconds=60))
    store.set("py", "from python")
    assert store.get("go") == b"from go"
    say("done")
    sys.stdin.readline()  # Go has finished with the store


{"client": client, "serve": serve}[mode]()
