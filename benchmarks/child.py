"""One measurement in a fresh process: ``child.py memory MODEL ENGINE`` or ``child.py time MODEL ENGINE...``.

Answers with one line of JSON. ``step.py`` starts it, so an engine that takes its process down harms no other.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, field

import torch
from cases import CASES, Case
from engines import Step, engine

WARM_UP = 1
SLOW, SLOW_ROUNDS = 10, 3  # engines this many times slower than the fastest take part in so many rounds only
MEMORY_STEPS = 3


def reason(error: Exception) -> str:
    """The first line of an error, short enough for a table's footnote."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:160]


def peak_mb() -> float:
    """The most memory that this process has held so far; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e6 / 1024)


def memory(case: Case, name: str) -> dict[str, object]:
    """Peak resident memory of a process that does nothing but a few steps of one engine."""
    try:
        step = engine(name)(case.model(), case.batch())
        for _ in range(MEMORY_STEPS):
            step()
    except Exception as error:
        return {"error": reason(error)}
    return {"peak_mb": peak_mb()}


@dataclass
class Race:
    """Engines that take turns; one that fails is out, and the others go on."""

    steps: dict[str, Step]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def round(self, turn: int) -> float:
        """A turn of every engine still running, in an order of its own for each ``turn``."""
        names = [name for name in self.steps if turn < SLOW_ROUNDS or not self._is_slow(name)]
        started = time.perf_counter()
        for name in random.Random(turn).sample(names, len(names)):
            self._take(name)
        return time.perf_counter() - started

    def _is_slow(self, name: str) -> bool:
        medians = {each: statistics.median(times) for each, times in self.seconds.items() if times}
        return medians.get(name, 0.0) > SLOW * min(medians.values(), default=1.0)

    def _take(self, name: str) -> None:
        try:
            self.steps[name]()  # not timed: the one before left its own numbers in the cache
            started = time.perf_counter()
            self.steps[name]()
        except Exception as error:
            self.errors[name] = reason(error)
            del self.steps[name]
        else:
            self.seconds.setdefault(name, []).append(time.perf_counter() - started)


def enter(case: Case, names: list[str]) -> Race:
    """Build every engine on its own copy of the model."""
    race, batch = Race({}), case.batch()
    for name in names:
        try:
            race.steps[name] = engine(name)(case.model(), batch)
        except Exception as error:
            race.errors[name] = reason(error)
    return race


def rounds_within(budget: float, one_round: float, *, least: int, most: int) -> int:
    """As many rounds as the budget of seconds allows, between ``least`` and ``most``."""
    return max(least, min(most, int(budget / max(one_round, 1e-9))))


def times(case: Case, names: list[str], *, budget: float, least: int) -> dict[str, object]:
    """Median seconds of a step for every engine, all measured in turns in this one process."""
    race = enter(case, names)
    for turn in range(WARM_UP):
        race.round(turn)
    race.seconds.clear()
    for turn in range(SLOW_ROUNDS):
        race.round(turn)
    rounds = SLOW_ROUNDS + rounds_within(budget, race.round(SLOW_ROUNDS), least=least, most=8 * least)
    for turn in range(SLOW_ROUNDS + 1, rounds):
        race.round(turn)
    medians = {name: statistics.median(race.seconds[name]) for name in race.steps}
    return {"seconds": medians, "errors": race.errors, "rounds": rounds}


def main() -> None:
    """Measure what the arguments ask for, and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "time"))
    parser.add_argument("model", choices=CASES)
    parser.add_argument("engines", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for the timed rounds")
    parser.add_argument("--least", type=int, default=9, help="fewest timed rounds")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    case = CASES[given.model]
    if given.what == "memory":
        answer = memory(case, given.engines[0])
    else:
        answer = times(case, given.engines, budget=given.budget, least=given.least)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
