"""Loss surfaces in the page: maps with levels that show the basin, and a still view for paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from saltflat.report.chart import finite_range, rounded, tick
from saltflat.report.html import Html, tag
from saltflat.report.look import SHADES
from saltflat.report.plot import WIDE, linear_ticks
from saltflat.report.shapes import Array, Surface

PARTS = (0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.22, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
SIDE, LEFT, TOP = 216.0, 52.0, 10.0
TALL = 270
TURN, TILT = -0.95, 0.55  # as surface.js begins


def basin_levels(surfaces: Sequence[Surface]) -> Array:
    """Losses that bound equal shares of all surfaces' area, narrower towards the lowest: so the basin is seen.

    Equal distances in loss would give the basin one band wherever the walls are high.

    >>> side = np.linspace(-1, 1, 41)
    >>> bowl = Surface(side, side, 0.3 + 1000 * np.add.outer(side**2, side**2) ** 3, "")
    >>> [float(level) for level in basin_levels([bowl])[:4]]
    [0.3, 0.302, 0.377, 0.894]
    """
    losses = np.concatenate([surface.loss.ravel() for surface in surfaces])
    good = losses[np.isfinite(losses)]
    if not good.size or good.min() == good.max():
        low = float(good[0]) if good.size else 0.0
        return np.linspace(low, low + max(1.0, abs(low)), 3)
    levels = np.array([float(f"{value:.3g}") for value in np.quantile(good, PARTS)])
    levels[0], levels[-1] = min(levels[0], good.min()), max(levels[-1], good.max())
    return np.unique(levels)


def map_of(surface: Surface, levels: Array, words: str, *, number: int) -> Html:
    """The map: bands between levels, the model, the way there, ticks on both axes, and a bar of levels.

    ``number`` is that of the surface's data in the page, from which a script tells the loss where one points; -1: none.
    """
    inside = tag(
        "svg",
        _bands(surface, levels),
        _way(surface),
        x=LEFT,
        y=TOP,
        width=SIDE,
        height=SIDE,
        viewBox=f"0 0 {SIDE:g} {SIDE:g}",
    )
    frame = tag("rect", x=LEFT, y=TOP, width=SIDE, height=SIDE, class_="axis")
    return tag(
        "svg",
        inside,
        tag("g", frame, *_axes(surface), class_="grid"),
        _bar(levels),
        viewBox=f"0 0 {WIDE} {TALL}",
        role="img",
        tabindex=0,
        aria_label=words,
        class_="map",
        data_surface=number if number >= 0 else None,
        data_box=f"{LEFT:g} {TOP:g} {SIDE:g}",
    )


def _place(value: float, values: Array, *, up: bool = False) -> float:
    low, high = finite_range(values)
    part = (value - low) / ((high - low) or 1.0)
    return SIDE * (1 - part if up else part)


def _bands(surface: Surface, levels: Array) -> Html:
    """A filled path for each pair of levels; points whose loss is not finite stay empty."""
    from contourpy import FillType, contour_generator

    x = np.array([_place(value, surface.alphas) for value in surface.alphas])
    y = np.array([_place(value, surface.betas, up=True) for value in surface.betas])
    heights = np.ma.masked_invalid(surface.loss.T)
    lines = contour_generator(x=x, y=y, z=heights, fill_type=FillType.OuterOffset)
    parts = []
    for place, (low, high) in enumerate(pairwise(levels)):
        top = high if place < len(levels) - 2 else high + abs(high) * 1e-9 + 1e-12
        points, offsets = cast(Any, lines.filled)(float(low) if place else -math.inf, float(top))
        rings = [points[k][a:b] for k in range(len(points)) for a, b in pairwise(offsets[k])]
        if rings:
            way = "".join(_ring(ring) for ring in rings)
            parts.append(tag("path", d=way, style=f"fill:{shade(place, len(levels) - 1)}"))
    return tag("g", *parts, class_="bands")


def _ring(points: Any) -> str:
    """A closed way in steps from point to point, which are shorter to write than places."""
    whole = np.round(np.asarray(points, dtype=float) * 2).astype(int)  # half a unit is finer than a screen
    steps = np.diff(whole, axis=0)
    steps = steps[(steps != 0).any(axis=1)]
    short = lambda value: f"{value / 2:g}"
    moved = "".join(f"l{short(a)} {short(b)}".replace(" -", "-") for a, b in steps)
    return f"M{short(whole[0][0])} {short(whole[0][1])}{moved}z"


def shade(place: int, count: int) -> str:
    """The colour of a band: the first of few bands and of many is the same."""
    return f"var(--map-{round(place / max(1, count - 1) * (SHADES - 1))})"


def _way(surface: Surface) -> Html:
    """Where the run came from, as far as it lies in this plane, and where it ended."""
    parts: list[Html] = []
    ends = [_place(0.0, surface.alphas), _place(0.0, surface.betas, up=True)]
    if surface.places is not None and len(surface.places) > 1:
        points = [(_place(a, surface.alphas), _place(b, surface.betas, up=True)) for a, b in surface.places]
        ends = list(points[-1])
        line = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts += [tag("path", d=line, class_="under"), tag("path", d=line, class_="over")]
        first = points[0]
        parts.append(
            tag("rect", x=f"{first[0] - 4:.1f}", y=f"{first[1] - 4:.1f}", width=8, height=8, class_="dot")
        )
    x, y = ends
    parts.append(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=5, class_="dot"))
    left = x > SIDE / 2
    spot = {"x": f"{x + (-9 if left else 9):.1f}", "y": f"{y - 7:.1f}"}
    parts.append(tag("text", "model", text_anchor="end" if left else None, class_="halo", **spot))
    return tag("g", *parts, class_="way")


def _axes(surface: Surface) -> list[Html]:
    parts = []
    for value in linear_ticks(*finite_range(surface.alphas), wanted=4):
        at = LEFT + _place(value, surface.alphas)
        parts.append(tag("path", d=f"M{at:.1f},{TOP + SIDE}v4"))
        parts.append(tag("text", tick(value), x=f"{at:.1f}", y=TOP + SIDE + 16, text_anchor="middle"))
    for value in linear_ticks(*finite_range(surface.betas), wanted=4):
        at = TOP + _place(value, surface.betas, up=True)
        parts.append(tag("path", d=f"M{LEFT - 4},{at:.1f}h4"))
        parts.append(tag("text", tick(value), x=LEFT - 7, y=f"{at + 4:.1f}", text_anchor="end"))
    middle = TOP + SIDE / 2
    parts += [
        tag("text", "first direction", x=LEFT + SIDE / 2, y=TALL - 6, text_anchor="middle"),
        tag("text", "second direction", transform=f"translate(12,{middle})rotate(-90)", text_anchor="middle"),
    ]
    return parts


def _bar(levels: Array) -> Html:
    """Every band as a step of equal height, with the losses that bound it."""
    count = len(levels) - 1
    tall, x = SIDE / count, LEFT + SIDE + 26
    parts = []
    for place in range(count):
        y = TOP + SIDE - (place + 1) * tall
        style = f"fill:{shade(place, count)}"
        parts.append(tag("rect", x=x, y=f"{y:.1f}", width=16, height=f"{tall + 0.4:.1f}", style=style))
    for place in range(0, count + 1, 2 if count > 8 else 1):
        y = TOP + SIDE - place * tall
        parts.append(tag("path", d=f"M{x + 16},{y:.1f}h4"))
        parts.append(tag("text", rounded(levels[place]), x=x + 24, y=f"{y + 4:.1f}"))
    parts.append(tag("text", "loss, at levels", x=x, y=TALL - 20))
    parts.append(tag("text", "that show the basin", x=x, y=TALL - 6))
    return tag("g", *parts, class_="bar grid")


def still(surface: Surface, heights: Array, ends: tuple[str, str], words: str) -> Html:
    """The surface from one side, for paper: small, and without a script."""
    rows = np.unique(np.linspace(0, heights.shape[0] - 1, min(heights.shape[0], 15)).round().astype(int))
    columns = np.unique(np.linspace(0, heights.shape[1] - 1, min(heights.shape[1], 15)).round().astype(int))
    small = heights[np.ix_(rows, columns)]
    x, y = np.linspace(-1, 1, len(rows)), np.linspace(-1, 1, len(columns))
    cells = []
    for i in range(len(rows) - 1):
        for j in range(len(columns) - 1):
            corners = [(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)]
            if all(math.isfinite(small[a, b]) for a, b in corners):
                seen = [_seen(x[a], y[b], float(small[a, b])) for a, b in corners]
                height = sum(float(small[a, b]) for a, b in corners) / 4
                cells.append((sum(each[2] for each in seen), seen, height))
    cells.sort(key=lambda cell: cell[0])
    shapes = [_cell(seen, height) for _, seen, height in cells]
    foot, top = _seen(-1, -1, 0), _seen(-1, -1, 1)
    labels = [
        tag("path", d=f"M{foot[0]:.0f},{foot[1]:.0f}L{top[0]:.0f},{top[1]:.0f}"),
        *(
            tag("text", word, x=f"{at[0] - 6:.0f}", y=f"{at[1] + 4:.0f}", text_anchor="end")
            for at, word in zip((foot, top), ends, strict=True)
        ),
        tag("text", "loss", x=f"{top[0] - 6:.0f}", y=f"{top[1] - 10:.0f}", text_anchor="end"),
        *_floor(surface),
    ]
    return tag(
        "svg",
        tag("g", *shapes, class_="cells"),
        _way_above(surface, heights),
        tag("g", *labels, class_="grid"),
        viewBox=f"0 0 {WIDE} {TALL}",
        role="img",
        aria_label=words,
    )


def _way_above(surface: Surface, heights: Array) -> Html:
    """The way of training on the surface, and the model at its end."""
    places = np.zeros((1, 2)) if surface.places is None else surface.places
    seen = [spot for a, b in places if (spot := _above(surface, heights, float(a), float(b))) is not None]
    parts = []
    if len(seen) > 1:
        line = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b, _ in seen)
        parts += [tag("path", d=line, class_="under"), tag("path", d=line, class_="over")]
    model = _above(surface, heights, 0.0, 0.0)
    if model is not None:
        parts.append(tag("circle", cx=f"{model[0]:.1f}", cy=f"{model[1]:.1f}", r=4, class_="dot"))
        parts.append(tag("text", "model", x=f"{model[0] + 8:.1f}", y=f"{model[1] - 6:.1f}", class_="halo"))
    return tag("g", *parts, class_="way")


def _above(surface: Surface, heights: Array, a: float, b: float) -> tuple[float, float, float] | None:
    """Where a point of the plane is on the sheet, on the surface; None outside, or where there is no surface."""
    spots = []
    for value, values in ((a, surface.alphas), (b, surface.betas)):
        if not values.min() <= value <= values.max():
            return None
        spots.append(float(np.interp(value, values, np.arange(len(values)))))
    i, j = (min(int(spot), size - 2) for spot, size in zip(spots, heights.shape, strict=True))
    s, t = spots[0] - i, spots[1] - j
    z = (1 - s) * (1 - t) * heights[i, j] + s * (1 - t) * heights[i + 1, j]
    z += (1 - s) * t * heights[i, j + 1] + s * t * heights[i + 1, j + 1]
    x, y = (2 * spot / (size - 1) - 1 for spot, size in zip(spots, heights.shape, strict=True))
    return _seen(x, y, float(z)) if math.isfinite(z) else None


def _cell(seen: Sequence[tuple[float, float, float]], height: float) -> Html:
    points = " ".join(f"{a:.0f},{b:.0f}" for a, b, _ in seen)
    return tag("polygon", points=points, style=f"fill:var(--map-{round(height * (SHADES - 1))})")


def _floor(surface: Surface) -> list[Html]:
    """Names and ticks of the two directions along the near edges of the floor, away from the corners."""
    spots: list[tuple[float, float, str]] = []
    for values, at in ((surface.alphas, lambda t: (t, -1.15)), (surface.betas, lambda t: (1.15, t))):
        low, high = finite_range(values)
        for value in linear_ticks(low, high, wanted=4) if high > low else []:
            part = 2 * (value - low) / (high - low) - 1
            spots += [(*at(part), tick(value))] if abs(part) < 0.84 else []
    corners = [_seen(x, y, 0) for x, y in ((-1, -1), (1, -1), (1, 1))]
    line = "M" + "L".join(f"{a:.0f},{b:.0f}" for a, b, _ in corners)
    found = [tag("path", d=line)]
    for x, y, word, anchor in ((0, -1.35, "first direction", "end"), (1.35, 0, "second direction", "start")):
        a, b, _ = _seen(x, y, 0)
        found.append(tag("text", word, x=f"{a:.0f}", y=f"{b + 4:.0f}", text_anchor=anchor))
    for x, y, word in spots:
        a, b, _ = _seen(x, y, 0)
        found.append(tag("text", word, x=f"{a:.0f}", y=f"{b + 4:.0f}", text_anchor="middle"))
    return found


def _seen(x: float, y: float, z: float) -> tuple[float, float, float]:
    """A point of [-1, 1] x [-1, 1] x [0, 1] on the sheet, and how near it is; as surface.js has it."""
    c, s = math.cos(TURN), math.sin(TURN)
    across, away, up = x * c - y * s, x * s + y * c, 1.3 * (z - 0.5)
    low, high = math.sin(TILT), math.cos(TILT)
    unit = TALL / 2.9
    return WIDE / 2 + across * unit, TALL / 2 + (-away * low - up * high) * unit, up * low - away * high
