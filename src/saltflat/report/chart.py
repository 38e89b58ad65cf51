"""Lines over one pair of axes, one for each run: what most pictures of the report are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from saltflat.report.look import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = (
    4.2,
    2.7,
)  # inches: 302 points, so that letters stay legible when a phone shows the whole width
_LONGEST = 30  # letters of a name in a legend
_UP = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, eq=False)
class Series:
    """One line: ``place`` decides its look, on the whole page. ``end`` is a point of its own.

    ``at`` marks places on the x axis with a word each. With ``error`` it is the mean of several runs, and a band of one
    standard error is drawn around it.
    """

    place: int
    name: str
    x: Any
    y: Any
    end: tuple[float, float] | None = None
    at: tuple[tuple[float, str], ...] = field(default=())
    error: Any = None
    shown: Any = (
        None  # what to call the places on the x axis when they are pointed at, if not by their numbers
    )


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis says, and how it counts."""

    label: str
    percent: bool = False
    log: bool = False
    switch: bool = False  # whether the other scale makes sense too
    ticks: tuple[tuple[float, str], ...] = ()  # by name; empty: where they fall
    breaks: tuple[tuple[float, str], ...] = ()  # where the axis changes its meaning, and to what
    diagonal: bool = False  # of the upright axis: whether y = x is drawn, dashed

    @property
    def other(self) -> Axis:
        """The same axis with the other scale."""
        return replace(self, log=not self.log)

    @property
    def named(self) -> str:
        """The label, with the scale where there are two."""
        return f"{self.label} ({'logarithmic' if self.log else 'linear'})" if self.switch else self.label


def chart(look: Look, series: Sequence[Series], *, x: Axis, y: Axis) -> Figure:
    """All series over one pair of axes, with a legend below."""
    figure, axes = sheet(legend=[each.name for each in series])
    handles = [_line(axes, look, each) for each in series]
    if y.diagonal:
        axes.plot([0, 1], [0, 1], color=look.ink, linestyle=(0, (4, 3)), linewidth=0.8)
    set_axis(axes, "x", x)
    set_axis(axes, "y", y)
    legend(figure, handles, [each.name for each in series])
    return figure


def _line(axes: Axes, look: Look, series: Series) -> Any:
    from matplotlib.lines import Line2D

    style = look.line(series.place)
    every = max(1, len(series.x) // 7)
    axes.plot(series.x, series.y, markevery=(min(series.place, every - 1), every), **style)
    if series.error is not None:
        mean, error = np.asarray(series.y, dtype=float), np.asarray(series.error, dtype=float)
        axes.fill_between(series.x, mean - error, mean + error, color=style["color"], alpha=0.25, linewidth=0)
    for place, word in series.at:
        axes.axvline(place, color=style["color"], linestyle=style["linestyle"], linewidth=0.8)
        axes.annotate(
            word, (place, 1.0), xycoords=("data", "axes fraction"), fontsize=7, va="bottom", ha="center"
        )
    if series.end is not None:
        axes.plot(*series.end, **{**style, "markersize": 9, "markeredgecolor": look.ink, "linestyle": "none"})
    return Line2D([], [], **style)


def sheet(*, legend: Sequence[str] = (), **kind: Any) -> tuple[Figure, Axes]:
    """An empty figure, taller by the rows that its legend takes."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(legend) / _columns(legend))
    figure = Figure(figsize=(WIDTH, HEIGHT + 0.19 * rows), layout="constrained")
    return figure, figure.add_subplot(**kind)


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Names under the axes. They are set afterwards: matplotlib would leave out one that begins with "_"."""
    stand_ins = [f"run {place}" for place in range(len(names))]
    made = figure.legend(
        handles,
        stand_ins,
        loc="outside lower left",
        ncols=_columns(names),
        handlelength=3.2,
        columnspacing=1.2,
    )
    for entry, name in zip(made.get_texts(), names, strict=True):
        entry.set_text(shortened(name))


def _columns(names: Sequence[str]) -> int:
    return 2 if len(names) > 1 and max(map(len, names)) <= 17 else 1


def shortened(name: str) -> str:
    """A name that fits beside a line; its two ends tell runs apart best.

    >>> shortened("runs/fashion-mnist/dp-sat/epsilon-3/seed-17")
    'runs/fashion-m…epsilon-3/seed-17'
    """
    half = _LONGEST // 2
    return name if len(name) <= _LONGEST + 2 else f"{name[: half - 1]}…{name[-half - 2 :]}"


def set_axis(axes: Axes, which: str, axis: Axis) -> None:
    """Label and numbers of one axis; powers of ten are written out, as mathematical text is switched off."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{which}label")(axis.named)
    its, few = getattr(axes, f"{which}axis"), False
    if axis.log:
        getattr(axes, f"set_{which}scale")("log")
        low, high = its.get_view_interval()
        few = low > 0 and high < 1e3 * low  # powers of ten alone would be too few to read values from
        its.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=7))
        its.set_minor_formatter(NullFormatter())
    if axis.ticks:
        getattr(axes, f"set_{which}ticks")(
            [place for place, _ in axis.ticks], [word for _, word in axis.ticks]
        )
        return
    power = axis.log and not few
    its.set_major_formatter(FuncFormatter(lambda value, _: tick(value, percent=axis.percent, power=power)))


def tick(value: float, *, percent: bool = False, power: bool = False) -> str:
    """A number beside an axis.

    >>> tick(0.25), tick(0.25, percent=True), tick(1e-6), tick(-20.0), tick(0.01, power=True)
    ('0.25', '25 %', '10⁻⁶', '−20', '10⁻²')
    """
    if percent:
        return f"{100 * value:.4g} %"
    size = abs(value)
    if size and not (0.5 if power else 1e-3) <= size < 1e4:
        tens = math.floor(math.log10(size) + 1e-9)
        front = value / 10.0**tens
        head = "" if abs(front - 1) < 1e-6 else f"{front:.3g}·"
        return (head + "10" + str(tens).translate(_UP)).replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def rounded(value: float, digits: int = 3) -> str:
    """A number to so many digits.

    >>> rounded(2.7591), rounded(-0.000123)
    ('2.76', '−1.23·10⁻⁴')
    """
    return tick(float(f"{value:.{digits}g}"))


def spans_decades(values: Any, *, above: float = 30.0) -> bool:
    """Whether positive values differ so much that only their logarithm shows all of them."""
    low, high = finite_range(values)
    return low > 0 and high / low > above


def finite_range(values: Any) -> tuple[float, float]:
    """The smallest and the largest finite value; (0, 1) if there is none."""
    good = np.asarray(values, dtype=float)
    good = good[np.isfinite(good)]
    return (float(good.min()), float(good.max())) if good.size else (0.0, 1.0)


def all_of(series: Sequence[Series], part: Callable[[Series], Any]) -> Any:
    """One part of all series, as one array."""
    return np.concatenate([np.asarray(part(each), dtype=float).ravel() for each in series])
