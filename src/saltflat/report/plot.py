"""Charts of the page as small SVGs: each value can be pointed at, each run hidden, and colours come from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saltflat.report.chart import Axis, Series, finite_range, tick
from saltflat.report.html import Html, join, tag
from saltflat.report.look import DASHES, LIGHT, MARKERS

WIDE, TALL = 420, 262
LEFT, RIGHT, TOP, BOTTOM = 54.0, 410.0, 26.0, 222.0
MOST_POINTS = 240  # of a line: more would be nearer together than a pixel
SHAPES = {  # around (0, 0)
    "o": "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0z",
    "s": "M-2.7,-2.7h5.4v5.4h-5.4z",
    "^": "M0,-3.4L3.2,2.6L-3.2,2.6z",
    "D": "M0,-3.8L3.8,0L0,3.8L-3.8,0z",
    "v": "M0,3.4L3.2,-2.6L-3.2,-2.6z",
    "P": "M-1.1,-3.3h2.2v2.2h2.2v2.2h-2.2v2.2h-2.2v-2.2h-2.2v-2.2h2.2z",
    "X": "M-3,-1.6L-1.6,-3L0,-1.4L1.6,-3L3,-1.6L1.4,0L3,1.6L1.6,3L0,1.4L-1.6,3L-3,1.6L-1.4,0z",
}


@dataclass(frozen=True)
class Scale:
    """Numbers between ``low`` and ``high`` as places between ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a number is; NaN for one that has no place."""
        if self.log:
            if not value > 0:
                return math.nan
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def colour(place: int) -> str:
    """The colour of a run, on the whole page."""
    return f"var(--run-{place % len(LIGHT.runs)})"


def dashes(place: int) -> str | None:
    """The dashes of a run's lines."""
    dash = DASHES[place % len(DASHES)]
    return None if dash == "-" else " ".join(f"{1.6 * length:g}" for length in dash[1])


def symbols() -> Html:
    """The marks of runs, once for the whole page."""
    shapes = [tag("path", d=SHAPES[mark], id=f"mark-{place}") for place, mark in enumerate(MARKERS)]
    return tag("svg", tag("defs", *shapes), width=0, height=0, aria_hidden="true", class_="symbols")


def mark(place: int, x: float, y: float, *, large: bool = False) -> Html:
    """The mark of a run at a point."""
    where = f"translate({x:.1f},{y:.1f})scale(1.7)" if large else None
    spot = {} if large else {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    kind = "end" if large else None
    return tag("use", href=f"#mark-{place % len(MARKERS)}", transform=where, class_=kind, **spot)


def swatch(place: int) -> Html:
    """How the lines of a run look, beside its name."""
    line = tag("path", d="M1,7H39", stroke_dasharray=dashes(place))
    return tag(
        "svg",
        line,
        mark(place, 20, 7),
        viewBox="0 0 40 14",
        class_="swatch",
        style=f"color:{colour(place)}",
        aria_hidden="true",
    )


def linear_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from low to high, about as many as wanted.

    >>> linear_ticks(0.0, 1.0), linear_ticks(0.83, 0.91)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.84, 0.86, 0.88, 0.9])
    """
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where there are few.

    >>> log_ticks(0.5, 30.0), log_ticks(1e-3, 1e5)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [0.001, 0.1, 10.0, 1000.0, 100000.0])
    """
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(bottom, top + 1)
    parts = (1, 2, 5) if top - bottom <= 3 else (1,)
    found = [part * 10.0**power for power in powers for part in parts]
    inside = [round(value, 12) for value in found if low * 0.999 <= value <= high * 1.001]
    return inside[:: max(1, math.ceil(len(inside) / 7))]


def charts(series: Sequence[Series], *, x: Axis, y: Axis, words: str) -> Html:
    """The chart, and the same with the other scale of its upright axis if that makes sense; a switch shows one."""
    if not y.switch:
        return _chart(series, x, y, words)
    both = [(y, None), (y.other, True)]
    return join(_chart(series, x, axis, words, hidden=hidden) for axis, hidden in both)


def _chart(series: Sequence[Series], x: Axis, y: Axis, words: str, *, hidden: bool | None = None) -> Html:
    across, up = _scale(_all_x(series, x), x, LEFT, RIGHT), _scale(_all_y(series), y, BOTTOM, TOP, room=0.05)
    parts = [
        _grid(across, up, x, y),
        *(_series(each, across, up) for each in series),
        *(_marks(each, across) for each in series),  # last: their words are read over lines
    ]
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDE} {TALL}",
        role="img",
        tabindex=0,
        aria_label=words,
        class_="chart" + (" log" if y.log else ""),
        hidden=hidden,
        data_x=x.label,
        data_y=y.label,
        data_percent="x" * x.percent + "y" * y.percent or None,
    )


def _all_x(series: Sequence[Series], axis: Axis) -> Any:
    ends = [each.end[0] for each in series if each.end]
    named = [place for place, _ in axis.ticks]
    return np.concatenate([*(np.asarray(each.x, dtype=float).ravel() for each in series), ends, named])


def _all_y(series: Sequence[Series]) -> Any:
    parts = []
    for each in series:
        middle = np.asarray(each.y, dtype=float).ravel()
        wide = 0.0 if each.error is None else np.nan_to_num(np.asarray(each.error, dtype=float).ravel())
        parts += [middle - wide, middle + wide, [each.end[1]] if each.end else []]
    return np.concatenate(parts)


def _scale(values: Any, axis: Axis, start: float, end: float, *, room: float = 0.0) -> Scale:
    if axis.log:
        good = values[np.isfinite(values) & (values > 0)]
        low, high = finite_range(good)
        low = low if low > 0 else 1e-12
        stretch = (high / low) ** room if high > low else 2.0
        return Scale(low / stretch, high * stretch, start, end, log=True)
    low, high = finite_range(values)
    wide = (high - low) or max(abs(low), 1.0) * 0.5
    if not high > low:
        low, high = low - wide / 2, high + wide / 2
    return Scale(low - room * wide, high + room * wide, start, end)


def _grid(across: Scale, up: Scale, x: Axis, y: Axis) -> Html:
    """Lines, numbers and names of both axes."""
    parts = [
        *(_upright(across.at(value), word) for value, word in _ticks(across, x)),
        *(_level(up.at(value), word) for value, word in _ticks(up, y)),
        tag("path", d=f"M{LEFT},{TOP}V{BOTTOM}H{RIGHT}", class_="axis"),
        tag("text", x.named, x=(LEFT + RIGHT) / 2, y=TALL - 4, text_anchor="middle"),
        tag("text", y.named, x=2, y=13),
        *(_break(across.at(place), word) for place, word in x.breaks),
        _diagonal(across, up) if y.diagonal else None,
    ]
    return tag("g", *parts, class_="grid")


def _ticks(scale: Scale, axis: Axis) -> list[tuple[float, str]]:
    if axis.ticks:
        return list(axis.ticks)
    values = log_ticks(scale.low, scale.high) if scale.log else linear_ticks(scale.low, scale.high)
    return [(value, tick(value, percent=axis.percent)) for value in values]


def _upright(at: float, word: str) -> Html:
    line = tag("path", d=f"M{at:.1f},{TOP}V{BOTTOM + 4}")
    return join((line, tag("text", word, x=f"{at:.1f}", y=BOTTOM + 17, text_anchor="middle")))


def _level(at: float, word: str) -> Html:
    line = tag("path", d=f"M{LEFT - 4},{at:.1f}H{RIGHT}")
    return join((line, tag("text", word, x=LEFT - 7, y=f"{at + 4:.1f}", text_anchor="end")))


def _diagonal(across: Scale, up: Scale) -> Html:
    """y = x, from 0 to 1."""
    way = f"M{across.at(0):.1f},{up.at(0):.1f}L{across.at(1):.1f},{up.at(1):.1f}"
    return tag("path", d=way, class_="break", stroke_dasharray="4 3")


def _break(at: float, word: str) -> Html:
    """Two strokes through the axis, and what holds from there on."""
    strokes = tag("path", d=f"M{at - 4:.1f},{BOTTOM + 5}l4,-10M{at:.1f},{BOTTOM + 5}l4,-10", class_="break")
    line = tag("path", d=f"M{at:.1f},{TOP}V{BOTTOM}", class_="break", stroke_dasharray="2 3")
    return join((line, strokes, tag("text", word, x=f"{at + 4:.1f}", y=TOP + 10, class_="small")))


def _marks(series: Series, across: Scale) -> Html | None:
    """Where something changes on the way, with a word."""
    if not series.at:
        return None
    parts = []
    for k, (place, word) in enumerate(series.at):
        at = across.at(place)
        right = at > (LEFT + RIGHT) / 2
        parts.append(tag("path", d=f"M{at:.1f},{TOP}V{BOTTOM}", stroke_dasharray="4 3"))
        spot = {"x": f"{at + (-4 if right else 4):.1f}", "y": f"{TOP + 10 + 11 * ((series.place + k) % 4):g}"}
        parts.append(tag("text", word, text_anchor="end" if right else None, class_="small halo", **spot))
    return tag("g", *parts, class_="s phases", data_run=series.place, style=f"color:{colour(series.place)}")


def _series(series: Series, across: Scale, up: Scale) -> Html:
    """A line with its marks, its band and its end; the values are there for whoever points at it."""
    x, y, error, shown = _thinned(series)
    places = [(across.at(a), up.at(b)) for a, b in zip(x, y, strict=True)]
    seen = [place for place in places if not any(map(math.isnan, place))]
    every = max(1, len(seen) // 6)
    parts = [
        _band(x, y, error, across, up),
        tag("path", d=_path(places), stroke_dasharray=dashes(series.place), class_="line"),
        *(mark(series.place, *place) for place in seen[min(series.place, every - 1) :: every]),
    ]
    if series.end is not None:
        parts.append(mark(series.place, across.at(series.end[0]), up.at(series.end[1]), large=True))
    return tag(
        "g",
        *parts,
        class_="s",
        data_run=series.place,
        data_name=series.name,
        style=f"color:{colour(series.place)}",
        data_vx=_listed(shown),
        data_vy=_listed(y),
        data_ve=None if error is None else _listed(error),
        data_px=" ".join(_short(a) for a, _ in places),
        data_py=" ".join(_short(b) for _, b in places),
    )


def _thinned(series: Series) -> tuple[Any, Any, Any, Any]:
    """x, y, error and what to call x, at most so many points of them."""
    x, y = np.asarray(series.x, dtype=float).ravel(), np.asarray(series.y, dtype=float).ravel()
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).round().astype(int))
    error = None if series.error is None else np.asarray(series.error, dtype=float).ravel()[kept]
    shown = x if series.shown is None else np.asarray(series.shown, dtype=float).ravel()
    return x[kept], y[kept], error, shown[kept]


def _band(x: Any, y: Any, error: Any, across: Scale, up: Scale) -> Html | None:
    if error is None:
        return None
    lowest = up.low if up.log else -math.inf
    upper = [(across.at(a), up.at(b + e)) for a, b, e in zip(x, y, error, strict=True)]
    lower = [(across.at(a), up.at(max(b - e, lowest))) for a, b, e in zip(x, y, error, strict=True)]
    good = [p for p in (*upper, *reversed(lower)) if not any(map(math.isnan, p))]
    return tag("path", d=_path(good) + "z", class_="band") if good else None


def _path(places: Sequence[tuple[float, float]]) -> str:
    """A way through the points; one that is missing breaks it."""
    words, pen = [], "M"
    for a, b in places:
        if math.isnan(a) or math.isnan(b):
            pen = "M"
            continue
        words.append(f"{pen}{_short(a)},{_short(b)}")
        pen = "L"
    return "".join(words) or "M0,0"


def _short(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f}".removesuffix(".0")


def _listed(values: Any) -> str:
    return " ".join(f"{value:.5g}" if math.isfinite(value) else "" for value in values)
