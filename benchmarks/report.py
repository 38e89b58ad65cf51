"""The benchmark's rows, and how they are printed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean

from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one engine on one model; ``None`` where it does not run."""

    model: str
    engine: str
    ratio_to_sgd: float | None = None
    peak_mb: float | None = None
    median_ms: float | None = None
    note: str = ""


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return geometric_mean(known) if known else None


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


@dataclass(frozen=True)
class Board:
    """All rows, looked up by (model, engine), with the ratios that the table shows."""

    rows: tuple[Row, ...]

    def row(self, model: str, engine: str) -> Row:
        found = (row for row in self.rows if (row.model, row.engine) == (model, engine))
        return next(found, Row(model=model, engine=engine))

    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    def engines(self) -> list[str]:
        return list(dict.fromkeys(row.engine for row in self.rows))

    def gain(self, model: str) -> float | None:
        """How many times slower the fastest Opacus mode is than saltflat."""
        peers = (row for row in self.rows if row.model == model and row.engine.startswith("opacus"))
        fastest = min((row.ratio_to_sgd for row in peers if row.ratio_to_sgd is not None), default=None)
        return _over(fastest, self.row(model, "saltflat").ratio_to_sgd)

    def memory_ratio(self, model: str, engine: str) -> float | None:
        return _over(self.row(model, engine).peak_mb, self.row(model, "sgd").peak_mb)


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}{unit}" if unit == "x" else f"{value:.0f}{unit}"


def summary(board: Board, engine: str) -> str:
    """Geometric means of time and memory against plain SGD, and over how many models."""
    ratios = [board.row(model, engine).ratio_to_sgd for model in board.models()]
    memories = [board.memory_ratio(model, engine) for model in board.models()]
    ran = sum(ratio is not None for ratio in ratios)
    return f"{_cell(_mean(ratios), 'x')}\n{_cell(_mean(memories), 'x')}\n{ran} of {len(ratios)}"


def table(board: Board) -> Table:
    """One line for each model: time against plain SGD above, peak memory below; then geometric means."""
    grid = Table(title="one step: time against plain SGD, and peak memory", show_lines=True)
    grid.add_column("model", no_wrap=True)
    for engine in board.engines():
        grid.add_column(engine, justify="right", no_wrap=True)
    grid.add_column("fastest Opacus\n/ saltflat", justify="right", no_wrap=True)
    for model in board.models():
        rows = [board.row(model, engine) for engine in board.engines()]
        cells = [f"{_cell(row.ratio_to_sgd, 'x')}\n{_cell(row.peak_mb, ' MB')}" for row in rows]
        grid.add_row(model, *cells, _cell(board.gain(model), "x"))
    means = [summary(board, engine) for engine in board.engines()]
    gain = _mean(board.gain(model) for model in board.models())
    grid.add_row("geometric mean\n(time, memory,\nmodels it runs on)", *means, _cell(gain, "x"))
    return grid


def notes(board: Board) -> list[str]:
    """Why an engine has no figure, one line for each."""
    return [f"{row.model}, {row.engine}: {row.note}" for row in board.rows if row.note]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def machine(threads: int) -> str:
    """The line that belongs beside every figure."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {threads} thread(s); Python {platform.python_version()}, "
        f"torch {_version('torch')}, Opacus {_version('opacus')}"
    )
