"""A step of every method against a step of DP-SGD, in one run.

python benchmarks/methods.py --quick
python benchmarks/methods.py --models tutorial-cnn --methods dp-sat dplis --json methods.json
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
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


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a method's step takes on one model; ``None`` where it does not run, or has no target."""

    model: str
    method: str
    ratio_to_dp_sgd: float | None = None
    most: float | None = None
    met: bool | None = None
    median_ms: float | None = None
    timed_steps: int = 0
    peak_mb: float | None = None
    note: str = ""


def measured_model(effort: Effort, model: str, methods: Sequence[str]) -> list[Cost]:
    """Every method on one model, by turns; nobody leaves early for being slow, as K copies should be."""
    others = {name: BASE for name in methods if name != BASE}  # who has DP-SGD beside it
    start = lambda name: Runner(model, name, threads=effort.threads, beside=others.get(name))
    found = run(start, methods, budget=effort.budget, least=effort.least, heats=effort.heats, slow=math.inf)
    return [cost(CASES[model].title, name, found) for name in methods]


def cost(title: str, method: str, found: Heats) -> Cost:
    """One method's figures beside those of DP-SGD."""
    mine, most = found.median(method), METHODS[method].most
    ratio = 1.0 if method == BASE and mine else found.ratio(method)
    return Cost(
        model=title,
        method=method,
        ratio_to_dp_sgd=ratio,
        most=most,
        met=None if ratio is None or most is None else ratio <= most,
        median_ms=1000 * mine if mine else None,
        timed_steps=found.timed(method),
        peak_mb=found.peak_mb(method) if mine else None,
        note=found.error(method),
    )


def cell(found: Cost) -> str:
    """The ratio, and whether it is within the target; three decimals, so that a verdict is not a riddle."""
    if found.ratio_to_dp_sgd is None:
        return NO_FIGURE
    verdict = {None: "", True: " met", False: " not met"}[found.met]
    return f"{found.ratio_to_dp_sgd:.3f}x{verdict}"


def table(costs: Sequence[Cost]) -> Table:
    """One line for each method, one column for each model."""
    models = list(dict.fromkeys(found.model for found in costs))
    grid = Table(title="one step: time against DP-SGD")
    grid.add_column("method", no_wrap=True)
    for name in ("target", *models):
        grid.add_column(name, justify="right", no_wrap=True)
    for method in dict.fromkeys(found.method for found in costs):
        most = METHODS[method].most
        cells = [cell(found) for found in costs if found.method == method]
        grid.add_row(METHODS[method].title, NO_FIGURE if most is None else f"<= {most:.2f}x", *cells)
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
    Console(width=max(console.width, 36 + 20 * len(models))).print(table(costs))
    for found in costs:
        if found.note:
            console.print(f"{found.model}, {found.method}: {found.note}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
