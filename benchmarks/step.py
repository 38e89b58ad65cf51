"""One private step against plain SGD and every mode of Opacus, on twelve models.

python benchmarks/step.py --quick
python benchmarks/step.py --models mlp small-vit --engines sgd opacus-ghost saltflat --json step.json
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cases import CASES, QUICK
from engines import BESIDE, NAMES, missing
from race import Heats, Runner, run
from report import Board, Row, machine, markdown, notes, table, verdicts
from rich.console import Console


@dataclass(frozen=True)
class Effort:
    """How long to measure: seconds of timed rounds for each model, how many heats, and each one's fewest rounds."""

    threads: int
    budget: float
    least: int
    heats: int


def measured_model(effort: Effort, model: str, engines: Sequence[str]) -> list[Row]:
    """Time and peak memory of every engine on one model; plain SGD is the first of them."""
    able = [name for name in engines if not missing(name)]
    start = lambda name: Runner(model, name, threads=effort.threads, beside=BESIDE.get(name))
    peers = [name for name in able if name.startswith("opacus")]  # far enough away for one heat to decide
    found = run(start, able, budget=effort.budget, least=effort.least, heats=effort.heats, once=peers)
    return [row(CASES[model].title, name, found) for name in engines]


def row(title: str, engine: str, found: Heats) -> Row:
    """One engine's figures, beside those of plain SGD."""
    mine, plain = found.median(engine), found.median("sgd")
    return Row(
        model=title,
        engine=engine,
        ratio_to_sgd=mine / plain if mine and plain else None,
        ratio_to_dp_sgd=found.ratio(engine),
        peak_mb=found.peak_mb(engine) if mine else None,
        median_ms=1000 * mine if mine else None,
        note=found.error(engine) or missing(engine),
    )


def positive(text: str) -> int:
    """A whole number of at least 1, or argparse's refusal."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three small models, a few rounds")
    parser.add_argument("--models", nargs="+", choices=CASES, metavar="MODEL", help=", ".join(CASES))
    parser.add_argument("--engines", nargs="+", choices=NAMES, metavar="ENGINE", help=", ".join(NAMES))
    parser.add_argument(
        "--threads", type=positive, default=os.cpu_count(), help="threads of every process (default: all)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown, too")
    return parser.parse_args(words)


def save(rows: Sequence[Any], file: Path | None) -> None:
    """Rows (dataclasses) as JSON; after every model, so that a run that is stopped leaves what it has measured."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def main() -> None:
    """Measure, print the table, and write the rows if asked to."""
    given = arguments()
    console = Console()
    effort = Effort(given.threads, *((10.0, 3, 1) if given.quick else (60.0, 2, 3)))
    models = given.models or (QUICK if given.quick else tuple(CASES))
    for name in [name for name in models if CASES[name].missing]:
        console.print(f"{CASES[name].title} is left out: {CASES[name].needs} is not installed")
    models = [name for name in models if not CASES[name].missing]
    engines = tuple(dict.fromkeys(("sgd", *(given.engines or NAMES))))  # SGD is always there to divide by
    console.print(machine(given.threads), highlight=False)
    rows: list[Row] = []
    save(rows, given.json)  # a file that cannot be written is refused now, not after an hour
    for model in models:
        console.print(f"measuring {CASES[model].title} ...", highlight=False)
        rows += measured_model(effort, model, engines)
        save(rows, given.json)
    board = Board(tuple(rows))
    Console(width=max(console.width, 60 + 19 * len(engines))).print(table(board))
    for line in (*notes(board), *verdicts(board), *(markdown(board) if given.markdown else ())):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
