"""The benchmark's rows, and how they are printed."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from race import mean
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of one engine on one model; ``None`` where it does not run."""

    model: str
    engine: str
    ratio_to_sgd: float | None = None
    ratio_to_dp_sgd: float | None = None  # within one process; for the methods of this library
    peak_mb: float | None = None
    median_ms: float | None = None
    note: str = ""


MOST_MEAN, MOST, LEAST_GAIN, MOST_MEMORY, MOST_SAT, MOST_SAM = 1.10, 1.25, 2.0, 1.25, 1.02, 2.0  # the targets


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

    def ratios(self) -> dict[str, list[float | None]]:
        """The columns beside the engines' own: a title, and a figure for each model."""
        models = self.models()
        times = {name: [self.row(model, name).ratio_to_sgd for model in models] for name in self.engines()}
        columns: dict[str, list[float | None]] = {}
        if any(gains := [self.gain(model) for model in models]):
            columns["fastest Opacus / saltflat"] = gains
        if "saltflat" in times and "sgd-kept" in times:
            columns["saltflat / sgd-kept"] = list(map(_over, times["saltflat"], times["sgd-kept"]))
        for engine in ("saltflat-sat", "saltflat-sam"):
            if engine in times:
                found = [self.row(model, engine).ratio_to_dp_sgd for model in models]
                columns[f"{engine} / saltflat"] = found
        return columns


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}{unit}" if unit in ("x", "") else f"{value:.0f}{unit}"


def summary(board: Board, engine: str) -> str:
    """Geometric means of time and memory against plain SGD, and over how many models."""
    ratios = [board.row(model, engine).ratio_to_sgd for model in board.models()]
    memories = [board.memory_ratio(model, engine) for model in board.models()]
    ran = sum(ratio is not None for ratio in ratios)
    return f"{_cell(mean(ratios), 'x')}\n{_cell(mean(memories), 'x')}\n{ran} of {len(ratios)}"


def table(board: Board) -> Table:
    """One line for each model: time against plain SGD above, peak memory below; then geometric means."""
    grid = Table(title="one step: time against plain SGD, and peak memory", show_lines=True)
    grid.add_column("model", no_wrap=True)
    ratios = board.ratios()
    for title in (*board.engines(), *(title.replace(" / ", "\n/ ") for title in ratios)):
        grid.add_column(title, justify="right", no_wrap=True)
    for i, model in enumerate(board.models()):
        rows = [board.row(model, engine) for engine in board.engines()]
        cells = [f"{_cell(row.ratio_to_sgd, 'x')}\n{_cell(row.peak_mb, ' MB')}" for row in rows]
        grid.add_row(model, *cells, *(_cell(column[i], "x") for column in ratios.values()))
    means = [summary(board, engine) for engine in board.engines()]
    last = [_cell(mean(column), "x") for column in ratios.values()]
    grid.add_row("geometric mean\n(time, memory,\nmodels it runs on)", *means, *last)
    return grid


def markdown(board: Board) -> list[str]:
    """The same table for a page: time, peak memory in MB in brackets, and the means with three decimals."""
    engines, models, ratios = board.engines(), board.models(), board.ratios()
    line = lambda *cells: f"| {' | '.join(cells)} |"
    fine = lambda value: "–" if value is None else f"{value:.3f}"
    lines = [
        line("model", "plain SGD, ms", *engines, *ratios),
        line(*["---"] * (2 + len(engines) + len(ratios))),
    ]
    for i, model in enumerate(models):
        rows = [board.row(model, engine) for engine in engines]
        cells = [
            "–" if row.ratio_to_sgd is None else f"{row.ratio_to_sgd:.2f} ({row.peak_mb:.0f})" for row in rows
        ]
        plain = board.row(model, "sgd").median_ms
        shown = "–" if plain is None else f"{plain:.1f}"
        lines.append(line(model, shown, *cells, *(_cell(column[i], "") for column in ratios.values())))
    times = [fine(mean(board.row(model, engine).ratio_to_sgd for model in models)) for engine in engines]
    memory = [fine(mean(board.memory_ratio(model, engine) for model in models)) for engine in engines]
    lines.append(line("mean, time", "", *times, *(fine(mean(column)) for column in ratios.values())))
    return [*lines, line("mean, memory", "", *memory, *[""] * len(ratios))]


def verdicts(board: Board) -> list[str]:
    """The targets, what was measured, and whether it is within them; over the models of this run."""
    models = board.models()
    times = [board.row(model, "saltflat").ratio_to_sgd for model in models]
    gains = [board.gain(model) for model in models]
    means = {title: mean(column) for title, column in board.ratios().items()}
    lines = [
        _verdict("time against plain SGD, mean", mean(times), most=MOST_MEAN),
        _verdict("time against plain SGD, most", max(filter(None, times), default=None), most=MOST),
        _verdict("fastest Opacus / saltflat, mean", mean(gains), least=LEAST_GAIN),
        _verdict("fastest Opacus / saltflat, least", min(filter(None, gains), default=None), least=1.0),
        _verdict(
            "memory against plain SGD, mean",
            mean(board.memory_ratio(model, "saltflat") for model in models),
            most=MOST_MEMORY,
        ),
        _verdict("DP-SAT / DP-SGD, mean", means.get("saltflat-sat / saltflat"), most=MOST_SAT),
        _verdict("DP-SAM / DP-SGD, mean", means.get("saltflat-sam / saltflat"), most=MOST_SAM),
    ]
    return list(filter(None, lines))


def _verdict(title: str, value: float | None, *, most: float = math.inf, least: float = 0.0) -> str:
    if value is None:
        return ""
    target = f"at most {most:g}" if most < math.inf else f"at least {least:g}"
    return f"{title}: {value:.3f} ({target}: {'met' if least <= value <= most else 'NOT MET'})"


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
