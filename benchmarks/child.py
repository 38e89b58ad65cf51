"""One engine on one model, in a process of its own: ``child.py MODEL ENGINE``.

Says ``{"ready": true}``, then answers each whole number on standard input with the seconds of that many steps and
the peak memory so far, as one line of JSON. ``race.py`` starts it, so an engine that takes its process down,
or leaves the allocator in a bad state, harms no other. With ``--beside OTHER`` a second engine takes steps for as
long in this process, from the same weights: what differs from process to process, or from one place in memory to
another, is then no part of the two's ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
import warnings

import torch
from cases import CASES
from engines import Step, team


def reason(error: Exception) -> str:
    """The first line of an error, short enough for a table's footnote."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:160]


def peak_mb() -> float:
    """The most memory that this process has held so far; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


def stretch(step: Step, steps: int = 1) -> float:
    """Seconds for a step, as the mean of ``steps``."""
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - started) / steps


def as_long(long: Step, short: Step) -> int:
    """How many steps of the second take as long as one of the first.

    What disturbs a machine comes seldom and takes long, so the median of two steps' time is more than twice that of
    one step's. Only equally long stretches of two engines can be compared by their medians.
    """
    long_seconds, short_seconds = (min(stretch(step) for _ in range(3)) for step in (long, short))
    return max(1, round(long_seconds / short_seconds))


def turn(team: dict[str, Step], times: int, lengths: dict[str, int]) -> dict[str, list[float]]:
    """Every engine's seconds for a step: ``times`` stretches of its length each, by turns, in an order left to chance.

    A step of each comes first and is not timed: others used the cache.
    """
    for step in team.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in team}
    for _ in range(times):
        for name in random.sample(sorted(team), len(team)):
            seconds[name].append(stretch(team[name], lengths[name]))
    return seconds


def main() -> None:
    """Build the engine, then take turns until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=CASES)
    parser.add_argument("engine")
    parser.add_argument("--beside", metavar="OTHER")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever an engine prints is not an answer
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    case = CASES[given.model]
    try:
        steps = team([given.engine, *filter(None, [given.beside])], case.model(), case.batch())
        lengths = dict.fromkeys(steps, 1)
        if given.beside:
            lengths[given.beside] = as_long(steps[given.engine], steps[given.beside])
        print(json.dumps({"ready": True}), file=answers)
        for line in sys.stdin:
            seconds = turn(steps, int(line), lengths)
            found = {"seconds": seconds[given.engine], "beside": seconds.get(given.beside, [])}
            print(json.dumps({**found, "peak_mb": peak_mb()}), file=answers)
    except Exception as error:
        print(json.dumps({"error": reason(error)}), file=answers)


if __name__ == "__main__":
    main()
