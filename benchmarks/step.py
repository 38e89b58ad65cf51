"""One private step against plain SGD and every mode of Opacus, on nine models.

python benchmarks/step.py --quick
python benchmarks/step.py --models mlp small-vit --engines sgd opacus-ghost saltflat --json step.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cases import CASES, QUICK
from engines import NAMES, missing
from report import Board, Row, machine, notes, table
from rich.console import Console

CHILD = Path(__file__).with_name("child.py")
PATIENCE = 3600  # seconds after which a measurement is given up


@dataclass(frozen=True)
class Effort:
    """How long to measure: seconds of timed rounds for each model, and the fewest rounds."""

    threads: int
    budget: float
    least: int


def measure(effort: Effort, *arguments: str) -> dict[str, Any]:
    """Run ``child.py`` in a fresh process; whatever happens to it becomes ``{"error": reason}``."""
    options = [f"--{name}={value}" for name, value in asdict(effort).items()]
    threads = {"OMP_NUM_THREADS": str(effort.threads), "MKL_NUM_THREADS": str(effort.threads)}
    command = [sys.executable, str(CHILD), *options, *arguments]
    try:
        done = subprocess.run(
            command, env=os.environ | threads, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"gave up after {PATIENCE} s"}
    if done.returncode < 0:
        return {"error": f"killed by signal {-done.returncode}, out of memory perhaps"}
    if done.returncode > 0:
        return {"error": next(reversed(done.stderr.strip().splitlines()), "no reason given")[:160]}
    return json.loads(done.stdout.strip().splitlines()[-1])  # engines may print before the answer


def measured_model(effort: Effort, model: str, engines: Sequence[str]) -> list[Row]:
    """Memory first, each engine in its own process: what fails there is kept out of the timed rounds."""
    found: dict[str, dict[str, Any]] = {}
    for name in engines:
        skipped = missing(name)
        found[name] = {"error": skipped} if skipped else measure(effort, "memory", model, name)
    running = [name for name in engines if "error" not in found[name]]
    timed = measure(effort, "time", model, *running) if running else {}
    for name in running:
        found[name]["seconds"] = timed.get("seconds", {}).get(name)
        found[name]["error"] = timed.get("error") or timed.get("errors", {}).get(name)
    return [row(CASES[model].title, name, found=found) for name in engines]


def row(title: str, engine: str, *, found: dict[str, dict[str, Any]]) -> Row:
    """One engine's figures, beside those of plain SGD."""
    mine, plain = found[engine].get("seconds"), found.get("sgd", {}).get("seconds")
    return Row(
        model=title,
        engine=engine,
        ratio_to_sgd=mine / plain if mine and plain else None,
        peak_mb=found[engine].get("peak_mb"),
        median_ms=1000 * mine if mine else None,
        note=found[engine].get("error") or "",
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
    return parser.parse_args(words)


def save(rows: Sequence[Row], file: Path | None) -> None:
    """After every model, so that a run that is stopped leaves what it has measured."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def main() -> None:
    """Measure, print the table, and write the rows if asked to."""
    given = arguments()
    console = Console()
    effort = Effort(given.threads, *((10.0, 5) if given.quick else (45.0, 9)))
    models = given.models or (QUICK if given.quick else tuple(CASES))
    engines = tuple(dict.fromkeys(("sgd", *(given.engines or NAMES))))  # SGD is always there to divide by
    console.print(machine(given.threads), highlight=False)
    rows: list[Row] = []
    save(rows, given.json)  # a file that cannot be written is refused now, not after an hour
    for model in models:
        console.print(f"measuring {CASES[model].title} ...", highlight=False)
        rows += measured_model(effort, model, engines)
        save(rows, given.json)
    board = Board(tuple(rows))
    Console(width=max(console.width, 38 + 19 * len(engines))).print(table(board))
    for note in notes(board):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
