"""A step of every method against a step of DP-SGD, in one run.

python benchmarks/methods.py --quick
python benchmarks/methods.py --models tutorial-cnn --methods dp-sat dplis --json methods.json
python benchmarks/methods.py --models tutorial-cnn cnn-tanh wrn-16-4 --methods augmentation-16 multiplicity-16
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cases import CASES
from method_engines import BASE, METHODS
from race import Heats, Runner, run
from report import machine
from rich.console import Console
from rich.table import Table
from step import Effort, positive, save

MODELS = ("tutorial-cnn", "cnn-tanh")
NO_FIGURE = "–"
NO_PEAKS: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a method's step takes on one model; ``None`` where it does not run, or has no target.

    ``ratio`` is to the engine ``beside`` it, which is DP-SGD unless the method has a target beside another, and
    ``memory_ratio`` to the peak of the engine ``weighed_by``.
    """

    model: str
    method: str
    ratio_to_dp_sgd: float | None = None
    beside: str = BASE
    ratio: float | None = None
    most: float | None = None
    met: bool | None = None
    weighed_by: str = BASE
    memory_ratio: float | None = None
    most_memory: float | None = None
    memory_met: bool | None = None
    median_ms: float | None = None
    timed_steps: int = 0
    peak_mb: float | None = None
    note: str = ""


def measured_model(effort: Effort, model: str, methods: Sequence[str]) -> list[Cost]:
    """Every method on one model, by turns; nobody leaves early for being slow, as K copies should be."""
    start = lambda name: Runner(model, name, threads=effort.threads, beside=beside(name))
    found = run(start, methods, budget=effort.budget, least=effort.least, heats=effort.heats, slow=math.inf)
    weighed = [name for name in methods if METHODS[name].most_memory is not None and not found.error(name)]
    pairs = (each for name in weighed for each in (METHODS[name].weighed_by, name))
    peaks = peaks_alone(model, dict.fromkeys(pairs), effort.threads)
    return [cost(CASES[model].title, name, found, peaks) for name in methods]


def beside(name: str) -> str | None:
    """Who has a place in a method's process, to be compared with it."""
    return None if name == BASE else METHODS[name].beside


def peaks_alone(model: str, methods: Iterable[str], threads: int) -> dict[str, float]:
    """Peak memory in MB, each in a fresh process that nobody else has a place in."""
    found: dict[str, float] = {}
    for name in methods:
        runner = Runner(model, name, threads=threads)
        found[name] = runner.turn().peak_mb
        runner.leave()
    return found


def cost(title: str, method: str, found: Heats, peaks: Mapping[str, float] = NO_PEAKS) -> Cost:
    """One method's figures beside those of DP-SGD, or of whom it is held to; ``peaks`` are of processes alone."""
    entry, mine, base = METHODS[method], found.median(method), found.median(BASE)
    ratio = 1.0 if method == BASE and mine else found.ratio(method)
    apart = mine / base if mine and base else None  # of two processes: not as exact as one
    weighed = entry.most_memory is not None and {method, entry.weighed_by} <= peaks.keys()
    memory = peaks[method] / peaks[entry.weighed_by] if weighed else None
    return Cost(
        model=title,
        method=method,
        ratio_to_dp_sgd=ratio if entry.beside == BASE else apart,
        beside=entry.beside,
        ratio=ratio,
        most=entry.most,
        met=within(ratio, entry.most),
        weighed_by=entry.weighed_by,
        memory_ratio=memory,
        most_memory=entry.most_memory,
        memory_met=within(memory, entry.most_memory),
        median_ms=1000 * mine if mine else None,
        timed_steps=found.timed(method),
        peak_mb=peaks.get(method, found.peak_mb(method)) if mine else None,
        note=found.error(method),
    )


def within(ratio: float | None, most: float | None) -> bool | None:
    """Whether a ratio meets its target, if there are both."""
    return None if ratio is None or most is None else ratio <= most


def cell(found: Cost) -> str:
    """The ratio, and whether it is within the target; three decimals, so that a verdict is not a riddle."""
    if found.ratio is None:
        return NO_FIGURE
    verdict = {None: "", True: " met", False: " not met"}
    words = f"{found.ratio:.3f}x{verdict[found.met]}"
    if found.memory_ratio is None:
        return words
    return f"{words}, memory {found.memory_ratio:.2f}x{verdict[found.memory_met]}"


def target(method: str) -> str:
    """What a method is held to, in words."""
    entry = METHODS[method]
    if entry.most is None:
        return NO_FIGURE
    whose = "" if entry.beside == BASE else f" of {entry.beside}"
    memory = (
        "" if entry.most_memory is None else f", memory <= {entry.most_memory:.2f}x of {entry.weighed_by}"
    )
    return f"<= {entry.most:.2f}x{whose}{memory}"


def table(costs: Sequence[Cost]) -> Table:
    """One line for each method, one column for each model."""
    models = list(dict.fromkeys(found.model for found in costs))
    grid = Table(title="one step: time against DP-SGD")
    grid.add_column("method", no_wrap=True)
    for name in ("target", *models):
        grid.add_column(name, justify="right", no_wrap=True)
    for method in dict.fromkeys(found.method for found in costs):
        cells = [cell(found) for found in costs if found.method == method]
        grid.add_row(METHODS[method].title, target(method), *cells)
    return grid


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the tutorial CNN only, a few rounds")
    parser.add_argument("--models", nargs="+", choices=CASES, metavar="MODEL", help=", ".join(CASES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument(
        "--threads", type=positive, default=os.cpu_count(), help="threads of every process (default: all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    return parser.parse_args(words)


def main() -> None:
    """Measure, print the table, and write the figures if asked to."""
    given = arguments()
    console = Console()
    effort = Effort(given.threads, *((20.0, 3, 1) if given.quick else (300.0, 2, 3)))
    models = dict.fromkeys(given.models or (MODELS[:1] if given.quick else MODELS))
    methods = tuple(dict.fromkeys((BASE, *(given.methods or METHODS))))  # DP-SGD is there to divide by
    console.print(machine(given.threads), highlight=False)
    costs: list[Cost] = []
    save(costs, given.json)  # a file that cannot be written is refused now, not at the end
    for model in models:
        console.print(f"measuring {CASES[model].title} ...", highlight=False)
        costs += measured_model(effort, model, methods)
        save(costs, given.json)
    Console(width=max(console.width, 84 + 36 * len(models))).print(table(costs))
    for found in costs:
        if found.note:
            console.print(f"{found.model}, {found.method}: {found.note}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
