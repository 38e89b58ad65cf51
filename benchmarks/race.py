"""Engines that take turns, each in its own process: a slow minute of the machine hits all of them."""

from __future__ import annotations

import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("child.py")
PATIENCE = 900  # seconds after which an engine that does not answer is given up
SLOW, SLOW_TURNS = 3.0, 3  # an engine this many times slower than the first takes so many turns, then leaves
TIMED_STEPS = 2  # of every turn
PAIRED_STEPS = 5  # of a turn of two engines that are compared: their ratio is to be known to a percent
HEATS = 3  # how often everybody starts afresh


class Dropped(Exception):
    """An engine cannot go on; its text is the reason."""


@dataclass(frozen=True)
class Turn:
    """Seconds of the timed steps, peak memory in MB so far, and the seconds of the engine beside, if there is one."""

    seconds: list[float]
    peak_mb: float
    beside: list[float] = field(default_factory=list)


class Runner:
    """One engine's process, which waits between its turns; ``beside`` names a second engine in it."""

    def __init__(self, model: str, engine: str, *, threads: int, beside: str | None = None) -> None:
        self._steps = PAIRED_STEPS if beside else TIMED_STEPS
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the engine leaves)
        limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), model, engine, f"--threads={threads}"]
            + ([f"--beside={beside}"] if beside else []),
            env=os.environ | limits,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answer()

    def turn(self) -> Turn:
        """Let it take its steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self._steps}\n")
        self._process.stdin.flush()
        return Turn(**self._answer())

    def leave(self) -> None:
        """End the process and give its memory back."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], PATIENCE)[0]:
            self.leave()
            raise Dropped(f"gave up after {PATIENCE} s")
        line = pipe.readline()
        answer = json.loads(line) if line else {"error": self._cause_of_death()}
        if "error" in answer:
            self.leave()
            raise Dropped(answer["error"])
        return answer

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"killed by signal {-code}, out of memory perhaps"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return next(reversed(lines), "no reason given")[:160]


@dataclass
class Race:
    """One process for each engine, and what it has shown so far; one that fails is out, and the others go on."""

    start: Callable[[str], Any]  # the engine's name -> its Runner
    slow: float = SLOW
    runners: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    beside: dict[str, list[float]] = field(default_factory=dict)  # of the second engine in a process
    peak_mb: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    slow_ones: set[str] = field(default_factory=set)

    def enter(self, names: Sequence[str]) -> None:
        """Start every engine and let it warm up; the first one is the yardstick of slowness.

        A slow engine takes its turns here, each after one of the yardstick, and leaves: it would make every
        round long, and the memory of several such engines would not fit side by side.
        """
        for name in names:
            try:
                self.runners[name] = self.start(name)
                warm = self.runners[name].turn()
            except Dropped as error:
                self._drop(name, str(error))
                continue
            self.seconds[name], self.beside[name] = [], []
            if self._is_slow(name, min(warm.seconds), names[0]):
                for _ in range(SLOW_TURNS):
                    self._take(names[0])
                    self._take(name)
                self._out(name)
                self.slow_ones.add(name)

    def round(self, turn: int) -> float:
        """A turn of every engine still running, in an order of its own for each ``turn``; its seconds."""
        started = time.perf_counter()
        for name in random.Random(turn).sample(sorted(self.runners), len(self.runners)):
            self._take(name)
        return time.perf_counter() - started

    def medians(self) -> dict[str, float]:
        """Each engine's seconds for a step."""
        return {name: statistics.median(times) for name, times in self.seconds.items() if times}

    def ratio(self, name: str) -> float | None:
        """An engine's median over that of the engine beside it in the same process."""
        mine, other = self.seconds.get(name), self.beside.get(name)
        return statistics.median(mine) / statistics.median(other) if mine and other else None

    def leave(self) -> None:
        """End all processes."""
        for name in list(self.runners):
            self._out(name)

    def _is_slow(self, name: str, seconds: float, yardstick: str) -> bool:
        if name == yardstick or yardstick not in self.runners:
            return False
        self._take(yardstick)
        return seconds > self.slow * statistics.median(self.seconds[yardstick])

    def _take(self, name: str) -> None:
        if name not in self.runners:
            return
        try:
            turn = self.runners[name].turn()
        except Dropped as error:
            self._drop(name, str(error))
        else:
            self.seconds[name] += turn.seconds
            self.beside[name] += turn.beside
            self.peak_mb[name] = turn.peak_mb

    def _drop(self, name: str, why: str) -> None:
        self.errors[name] = why
        self.runners.pop(name, None)
        self.seconds.pop(name, None)

    def _out(self, name: str) -> None:
        runner = self.runners.pop(name, None)
        if runner is not None:
            runner.leave()


@dataclass(frozen=True)
class Heats:
    """What several races have shown together: every one of them had processes of its own."""

    races: Sequence[Race]

    def median(self, name: str) -> float | None:
        """An engine's seconds for a step: the geometric mean of its processes' medians."""
        return mean(race.medians().get(name) for race in self.races)

    def ratio(self, name: str) -> float | None:
        """An engine's time over that of the engine beside it, process by process; their geometric mean."""
        return mean(race.ratio(name) for race in self.races)

    def peak_mb(self, name: str) -> float | None:
        return max((race.peak_mb[name] for race in self.races if name in race.peak_mb), default=None)

    def timed(self, name: str) -> int:
        return sum(len(race.seconds.get(name, ())) for race in self.races)

    def error(self, name: str) -> str:
        return next((race.errors[name] for race in self.races if name in race.errors), "")


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of what there is, or None."""
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known else None


def run(
    start: Callable[[str], Any],
    names: Sequence[str],
    *,
    budget: float,
    least: int,
    heats: int = HEATS,
    slow: float = SLOW,
    once: Collection[str] = (),
) -> Heats:
    """``heats`` races, each of at least ``least`` rounds, more while its part of ``budget`` seconds lasts.

    One process is faster than the next by luck of its memory's layout, and stays so: several are needed. Those in
    ``once`` take part in the first race only, and so does who is slow there or fails.
    """
    races: list[Race] = []
    for heat in range(heats):
        out = {name for race in races for name in (*race.slow_ones, *race.errors, *once)}
        races.append(Race(start, slow))
        _run(races[-1], [name for name in names if name not in out], budget / heats, least, heat)
    return Heats(races)


def _run(race: Race, names: Sequence[str], budget: float, least: int, heat: int) -> None:
    try:
        race.enter(names)
        rounds, left = 0, budget
        while race.runners and (rounds < least or left > 0):
            left -= race.round(1000 * heat + rounds)  # an order of its own for every round
            rounds += 1
    finally:
        race.leave()
