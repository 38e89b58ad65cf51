"""Pictures of loss landscapes: along a line, over a plane, between two models; one scale for all runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from saltflat.report.chart import (
    HEIGHT,
    WIDTH,
    Axis,
    Series,
    all_of,
    chart,
    finite_range,
    rounded,
    set_axis,
    sheet,
    shortened,
    spans_decades,
    tick,
)
from saltflat.report.draw import Picture
from saltflat.report.folder import Kept, short_names
from saltflat.report.look import MAP, Look
from saltflat.report.shapes import Array, Line, Surface

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = 13
STEP = Axis(label="distance, in filter norms")
MOST = 41  # points along a side of the surface that turns; more would only make the page slow


@dataclass(frozen=True)
class Scale:
    """How losses become heights between 0 and 1: the same for all runs, so that they can be compared."""

    low: float
    high: float
    log: bool

    def heights(self, loss: Array) -> Array:
        """Heights in [0, 1]; not a number where the loss is not finite."""
        low, high = (np.log(self.low), np.log(self.high)) if self.log else (self.low, self.high)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(loss) if self.log else loss
        return np.where(np.isfinite(values), np.clip((values - low) / (high - low), 0, 1), np.nan)

    def levels(self) -> Array:
        """Losses at equal distances in height."""
        return (np.geomspace if self.log else np.linspace)(self.low, self.high, LEVELS)

    def __str__(self) -> str:
        return f"{rounded(self.low)} to {rounded(self.high)}" + (", logarithmic" if self.log else "")


def common_scale(surfaces: Sequence[Surface]) -> Scale:
    """The scale that holds all finite losses of all surfaces.

    >>> str(common_scale([Surface(np.arange(2), np.arange(2), np.array([[1.0, 2.0], [np.inf, 4.0]]), "")]))
    '1 to 4'
    """
    losses = np.concatenate([surface.loss.ravel() for surface in surfaces])
    low, high = finite_range(losses)
    if not high > low:
        high = low + max(1.0, abs(low))  # a plane has no height
    return Scale(low, high, spans_decades(losses))


def along_a_line(runs: Sequence[Kept]) -> list[Picture]:
    """Loss, and accuracy where it was taken, along one direction through each run's end."""
    lines = [(place, run.name, run.shapes.line.value) for place, run in enumerate(runs)]
    right = [
        Series(place, name, line.alphas, line.accuracy)
        for place, name, line in lines
        if line is not None and line.accuracy is not None
    ]
    return [
        *_pictures("line-loss", "Loss along a direction", _losses(lines), x=STEP, percent=False),
        *_pictures("line-accuracy", "Accuracy along a direction", right, x=STEP, percent=True),
    ]


def smoothed(runs: Sequence[Kept]) -> list[Picture]:
    """The same direction through the landscape that DPLIS sees: the loss averaged over jittered weights."""
    lines = [(place, run.name, run.shapes.smoothed.value) for place, run in enumerate(runs)]
    return _pictures(
        "smoothed-loss", "Smoothed loss along a direction", _losses(lines), x=STEP, percent=False
    )


def _losses(lines: Sequence[tuple[int, str, Line | None]]) -> list[Series]:
    return [Series(place, name, line.alphas, line.loss) for place, name, line in lines if line is not None]


def between_models(runs: Sequence[Kept]) -> list[Picture]:
    """Loss and accuracy on the straight way from one model to another, 0 and 1 being the models."""
    made = next(
        (r.shapes.interpolation.value for r in runs if r.shapes.interpolation.value is not None), None
    )
    if made is None:
        return []
    pairs = list(enumerate(_ways(made.names, runs)))
    loss = [Series(k, name, made.alphas, made.loss[k]) for k, name in pairs]
    right = [Series(k, name, made.alphas, made.accuracy[k]) for k, name in pairs if made.accuracy is not None]
    way = Axis(label="from the first model (0) to the second (1)")
    return [
        *_pictures("between-loss", "Loss between models", loss, x=way, percent=False),
        *_pictures("between-accuracy", "Accuracy between models", right, x=way, percent=True),
    ]


def _ways(names: Sequence[str], runs: Sequence[Kept]) -> list[str]:
    """The names of "one to another", each end by its short name: runs may have been given as paths."""
    ends = [name.split(" to ") for name in names]
    short = short_names((end for pair in ends for end in pair), runs)
    return [" to ".join(short[end] for end in pair) for pair in ends]


def _pictures(key: str, title: str, series: Sequence[Series], *, x: Axis, percent: bool) -> list[Picture]:
    """The picture of these series, if there are any."""
    if not series:
        return []
    log = not percent and spans_decades(all_of(series, lambda each: each.y))
    y = Axis(label="accuracy" if percent else "loss", percent=percent, log=log)
    words = "; ".join(f"{each.name}: {_ends(each, percent=percent)}" for each in series)
    return [Picture(key, title, words, lambda look: chart(look, series, x=x, y=y))]


def _ends(series: Series, *, percent: bool) -> str:
    low, high = finite_range(series.y)
    return f"{tick(low, percent=percent)} to {tick(high, percent=percent)}"


def contours(runs: Sequence[Kept]) -> list[Picture]:
    """A map of the loss around each run's end, all in the same colours."""
    return _each(runs, "surface", _Kind("contours", "Loss around the end of {}", _contours))


def trajectories(runs: Sequence[Kept]) -> list[Picture]:
    """A map of the loss in the plane that each run's way lies in as nearly as possible, with the way."""
    return _each(runs, "trajectory", _Kind("trajectory", "Way of {} through its own plane", _contours))


def stills(runs: Sequence[Kept]) -> list[Picture]:
    """The same as a surface seen from one side, for paper and for files."""
    return _each(runs, "surface", _Kind("surface", "Loss surface of {}", _still))


@dataclass(frozen=True)
class _Kind:
    """One kind of picture of a surface."""

    key: str
    title: str
    draw: Callable[[Look, Surface, Scale, str], Figure]


def _each(runs: Sequence[Kept], part: str, kind: _Kind) -> list[Picture]:
    there = [(place, run, getattr(run.shapes, part).value) for place, run in enumerate(runs)]
    found = [(place, run, surface) for place, run, surface in there if surface is not None]
    scale = common_scale([surface for _, _, surface in found]) if found else None

    def picture(place: int, run: Kept, surface: Surface) -> Picture:
        assert scale is not None
        return Picture(
            f"{kind.key}-{place + 1}",
            kind.title.format(run.name),
            _in_words(surface),
            lambda look: kind.draw(look, surface, scale, run.name),
        )

    return [picture(*each) for each in found]


def _in_words(surface: Surface) -> str:
    low, high = finite_range(surface.loss)
    away = int((~np.isfinite(surface.loss)).sum())
    rest = f"; not finite at {away} of {surface.loss.size} points" if away else ""
    return f"loss from {rounded(low)} to {rounded(high)}{rest}"


def _contours(look: Look, surface: Surface, scale: Scale, name: str) -> Figure:
    figure, axes = sheet(legend=[name])
    loss = np.ma.masked_invalid(surface.loss.T)
    settings: dict[str, Any] = {"levels": scale.levels()}
    if scale.log:
        from matplotlib.colors import LogNorm

        settings["norm"] = LogNorm(scale.low, scale.high)
    filled = axes.contourf(surface.alphas, surface.betas, loss, cmap=MAP, **settings)
    filled.set_edgecolor("face")  # else thin gaps between the bands
    axes.contour(surface.alphas, surface.betas, loss, colors="#00000055", linewidths=0.5, **settings)
    if surface.places is not None:
        for colour, width in (("#000000", 2.6), ("#ffffff", 1.2)):  # seen on dark and on light ground
            axes.plot(*surface.places.T, color=colour, linewidth=width, marker=".", markersize=4 + width)
    axes.plot(0, 0, marker="o", markersize=5, color="#ffffff", markeredgecolor="#000000")
    axes.grid(False)
    axes.set_aspect("equal" if surface.places is None else "auto")
    axes.set_title(shortened(name), fontsize=9)
    set_axis(axes, "x", Axis(label="first direction"))
    set_axis(axes, "y", Axis(label="second direction"))
    _colour_bar(figure, filled, axes, scale)
    return figure


def _colour_bar(figure: Figure, filled: Any, axes: Any, scale: Scale) -> None:
    shown = scale.levels()[:: (LEVELS - 1) // 4]
    bar = figure.colorbar(filled, ax=axes, ticks=shown, label="loss")
    bar.ax.minorticks_off()
    bar.ax.set_yticks(shown, [rounded(value) for value in shown])


def _still(look: Look, surface: Surface, scale: Scale, name: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT + 0.6))
    room: Any = figure.add_axes((0.0, 0.07, 0.94, 0.87), projection="3d")
    small = thinned(surface)
    first, second = np.meshgrid(small.alphas, small.betas, indexing="ij")
    room.plot_surface(
        first,
        second,
        scale.heights(small.loss),
        cmap=MAP,
        vmin=0,
        vmax=1,
        rcount=MOST,
        ccount=MOST,
        linewidth=0.2,
    )
    room.set_zlim(0, 1)
    room.set_zticks([0, 0.5, 1], [rounded(scale.levels()[k]) for k in (0, LEVELS // 2, -1)])
    room.view_init(elev=32, azim=-55)
    room.set_box_aspect((1, 1, 0.7), zoom=1.0)
    room.set_xticks(_three(small.alphas))
    room.set_yticks(_three(small.betas))
    room.set_title(shortened(name), fontsize=9)
    room.set(xlabel="first direction", ylabel="second direction", zlabel="loss")
    room.tick_params(labelsize=7, pad=-1)
    return figure


def _three(values: Array) -> list[float]:
    """The ends and the middle of an axis."""
    low, high = finite_range(values)
    return [low, (low + high) / 2, high]


def thinned(surface: Surface) -> Surface:
    """The surface with at most :data:`MOST` points along each side."""
    rows, columns = (
        np.unique(np.linspace(0, size - 1, min(size, MOST)).round().astype(int))
        for size in surface.loss.shape
    )
    return Surface(
        surface.alphas[rows], surface.betas[columns], surface.loss[np.ix_(rows, columns)], surface.mark
    )


def turning(runs: Sequence[Kept]) -> dict[str, Any] | None:
    """What the script of the page needs to draw surfaces that can be turned; None if there is no surface."""
    found = [(run.name, run.shapes.surface.value) for run in runs]
    there = [(name, thinned(surface)) for name, surface in found if surface is not None]
    if not there:
        return None
    scale = common_scale([surface for _, surface in there])
    return {
        "low": rounded(scale.low),
        "high": rounded(scale.high),
        "surfaces": [
            {
                "name": name,
                "x": _unit(surface.alphas),
                "y": _unit(surface.betas),
                "z": [_cells(row) for row in scale.heights(surface.loss)],
            }
            for name, surface in there
        ],
    }


def _unit(values: Array) -> list[float]:
    """Places along an axis, moved to [-1, 1]."""
    low, high = finite_range(values)
    wide = (high - low) or 1.0
    return [round(float(2 * (value - low) / wide - 1), 4) for value in values]


def _cells(row: Array) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in row]
