#!/usr/bin/env python3
"""Tells what `radic events --json` has on record of the death of a node: each step, and how long it took.

usage: account.py NODE FILE
"""
import json
import sys

# The steps in their order, and what each means.
STEPS = [
    ("inject", "it was killed"),
    ("suspect", "its neighbour suspects that it is dead"),
    ("confirm", "the others were asked: declared dead"),
    ("fence", "the log refuses older incarnations of its rank"),
    ("place", "where the rank goes on was decided"),
    ("image", "its last checkpoint has arrived there"),
    ("replay", "it is restored, and catches up from the log of what it had received"),
    ("live", "it has caught up, and talks to the others again"),
    ("re-protected", "it has a new checkpoint at its new protector"),
]


def main(node, path):
    with open(path, encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    start = next((e for e in events if e["event"] == "inject" and e["subject"] == node), None)
    if start is None:
        return f"{node} was not killed"
    # The rank that was lost: the first one that is fenced afterwards.
    events = [e for e in events if e["at_ms"] >= start["at_ms"]]
    rank = next((e["rank"] for e in events if e["event"] == "fence"), None)
    before, missing = start["at_ms"], []
    for name, meaning in STEPS:
        about = node if name in ("inject", "suspect", "confirm") else None
        step = next((e for e in events if e["event"] == name and (e["subject"] == about if about else e["rank"] == rank)), None)
        if step is None:
            missing.append(name)
            continue
        at = step["at_ms"]
        print(f"  {(at - start['at_ms']) / 1000:7.3f} s  +{max(at - before, 0) / 1000:.3f}  {name:<13} {step['node']}: {meaning}")
        print(f"                              {step['text']}")
        before = at
    live = next((e["at_ms"] for e in events if e["event"] == "live" and e["rank"] == rank), None)
    if live is not None:
        print(f"\n  From the death until it was live: {(live - start['at_ms']) / 1000:.3f} s. Only rank {rank} went back; the others waited.")
    return f"no event: {', '.join(missing)}" if missing else None


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
