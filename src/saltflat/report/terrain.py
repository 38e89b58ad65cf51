"""Pictures of loss landscapes: along a line, over a plane, between two models; one scale for all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from saltflat.report.chart import (
    HEIGHT,
    WIDTH,
    Axis,
    Series,
    all_of,
    finite_range,
    rounded,
    set_axis,
    sheet,
    shortened,
    spans_decades,
    tick,
)
from saltflat.report.draw import Picture, of_lines
from saltflat.report.folder import Kept, short_names
from saltflat.report.groups import Group, grouped, lines, place_of
from saltflat.report.look import Look
from saltflat.report.maps import basin_levels, map_of, still
from saltflat.report.shapes import Array, Line, Surface

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 8  # runs whose surfaces are drawn on one page
STEP = Axis(label="distance, in filter norms")
SEEN = 0.01  # of a way that must lie in a plane for a line there to show anything
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
        """Three losses at equal distances in height."""
        return (np.geomspace if self.log else np.linspace)(self.low, self.high, 3)

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


def shown(runs: Sequence[Kept]) -> list[tuple[Group, Kept]]:
    """The runs whose surfaces are drawn: all, or of many the first of each of the best recipes, :data:`FEW` at most."""
    groups = grouped(runs)
    every = [(group, run) for group in groups for run in group.runs if _has_surface(run)]
    if len(every) <= FEW:
        return every
    firsts = [next(((group, run) for run in group.runs if _has_surface(run)), None) for group in groups]
    there = [each for each in firsts if each is not None]
    best = sorted(there, key=lambda each: -(each[0].accuracy or 0.0))[:FEW]
    return [each for each in there if each in best]


def _has_surface(run: Kept) -> bool:
    return run.shapes.surface.value is not None or run.shapes.trajectory.value is not None


def along_a_line(runs: Sequence[Kept]) -> list[Picture]:
    """Loss, and accuracy where it was taken, along one direction through each run's end."""
    loss, right = partial(_line, "line", "loss"), partial(_line, "line", "accuracy")
    groups = grouped(runs)
    return [
        *_pictures("line-loss", "Loss along a direction", lines(groups, loss), x=STEP, percent=False),
        *_pictures("line-accuracy", "Accuracy along a direction", lines(groups, right), x=STEP, percent=True),
    ]


def smoothed(runs: Sequence[Kept]) -> list[Picture]:
    """The same direction through the landscape that DPLIS sees: the loss averaged over jittered weights."""
    found = lines(grouped(runs), partial(_line, "smoothed", "loss"))
    return _pictures("smoothed-loss", "Smoothed loss along a direction", found, x=STEP, percent=False)


def _line(part: str, what: str, run: Kept) -> Series | None:
    line: Line | None = getattr(run.shapes, part).value
    values = None if line is None else getattr(line, what)
    return None if line is None or values is None else Series(0, "", line.alphas, values)


def between_models(runs: Sequence[Kept]) -> list[Picture]:
    """Loss and accuracy on the straight way from one model to another, 0 and 1 being the models.

    A way has the colour of the model that it leads to: the first one is at the start of all of them.
    """
    made = next(
        (r.shapes.interpolation.value for r in runs if r.shapes.interpolation.value is not None), None
    )
    if made is None:
        return []
    ways, groups = _ways(made.names, runs), grouped(runs)
    places = [_leads_to(name, runs, groups, k + 1) for k, name in enumerate(ways)]
    pairs = list(zip(places, ways, strict=True))
    loss = [Series(place, name, made.alphas, made.loss[k]) for k, (place, name) in enumerate(pairs)]
    right = [
        Series(place, name, made.alphas, made.accuracy[k])
        for k, (place, name) in enumerate(pairs)
        if made.accuracy is not None
    ]
    way = Axis(label="from the first model (0) to the second (1)")
    return [
        *_pictures("between-loss", "Loss between models", loss, x=way, percent=False),
        *_pictures("between-accuracy", "Accuracy between models", right, x=way, percent=True),
    ]


def _leads_to(way: str, runs: Sequence[Kept], groups: Sequence[Group], otherwise: int) -> int:
    """The colour of the run at a way's end; one of its own if that run is not listed."""
    end = way.split(" to ")[-1]
    found = [run for run in runs if run.name == end]
    return place_of(found[0], groups) if found else len(groups) + otherwise


def _ways(names: Sequence[str], runs: Sequence[Kept]) -> list[str]:
    """The names of "one to another", each end by its short name: runs may have been given as paths."""
    ends = [name.split(" to ") for name in names]
    short = short_names((end for pair in ends for end in pair), runs)
    return [" to ".join(short[end] for end in pair) for pair in ends]


def _pictures(key: str, title: str, series: Sequence[Series], *, x: Axis, percent: bool) -> list[Picture]:
    """The picture of these series, if there are any."""
    if not series:
        return []
    values = all_of(series, lambda each: each.y)
    low, high = finite_range(values)
    log = not percent and spans_decades(values)
    y = Axis(
        label="accuracy" if percent else "loss",
        percent=percent,
        log=log,
        switch=not percent and low > 0 and high > 1.5 * low,
    )
    words = "; ".join(f"{each.name}: {_ends(each, percent=percent)}" for each in series)
    return [of_lines(key, title, words, series, x=x, y=y)]


def _ends(series: Series, *, percent: bool) -> str:
    low, high = finite_range(series.y)
    return f"{tick(low, percent=percent)} to {tick(high, percent=percent)}"


def contours(runs: Sequence[Kept]) -> list[Picture]:
    """A map of the loss around each run's end, all with the same levels."""
    return _each(runs, "surface", "contours", "Loss around the end of {}")


def trajectories(runs: Sequence[Kept]) -> list[Picture]:
    """A map of the loss in the plane that each run's way lies in as nearly as possible, with the way."""
    return _each(runs, "trajectory", "trajectory", "Way of {} through its own plane")


def stills(runs: Sequence[Kept], part: str = "surface") -> list[Picture]:
    """The same as a surface seen from one side, for paper and for files; also of the plane of the way."""
    if part == "surface":
        return _each(runs, part, "surface", "Loss surface of {}")
    return _each(runs, part, "way", "Way of {} over the plane that holds most of it")


def _each(runs: Sequence[Kept], part: str, key: str, title: str) -> list[Picture]:
    """One picture for each run that is shown; ``key`` says of which kind."""
    there = [(group, run, getattr(run.shapes, part).value) for group, run in shown(runs)]
    found = [(group, run, _way_if_seen(surface)) for group, run, surface in there if surface is not None]
    if not found:
        return []
    surfaces = [surface for *_, surface in found]
    scale, levels = common_scale(surfaces), basin_levels(surfaces)
    number_of = {"surface": 0, "trajectory": len(_drawn(runs, "surface"))}  # as `turning` lists them

    def picture(number: int, group: Group, run: Kept, surface: Surface) -> Picture:
        named = title.format(run.name)
        words = f"{named}: {_in_words(surface)}"
        own = number_of[part] + number
        if key in ("surface", "way"):
            heights, ends = scale.heights(surface.loss), (rounded(scale.low), rounded(scale.high))
            draw = lambda look: _still(look, surface, scale, run.name)
            made = lambda: still(surface, heights, ends, words)
        else:
            draw = lambda look: _contours(look, surface, levels, run.name)
            made = lambda: map_of(surface, levels, words, number=own)
        names = ((group.place, run.name),)
        place = next(k for k, each in enumerate(runs) if each is run) + 1
        return Picture(f"{key}-{place}", named, _in_words(surface), draw, made, names)

    return [picture(number, *each) for number, each in enumerate(found)]


def _way_if_seen(surface: Surface) -> Surface:
    """Without the way of training where almost none of it lies in this plane: what is left is a blot at the model."""
    hidden = surface.share is not None and surface.share < SEEN
    return replace(surface, places=None) if hidden else surface


def _in_words(surface: Surface) -> str:
    low, high = finite_range(surface.loss)
    away = int((~np.isfinite(surface.loss)).sum())
    rest = f"; not finite at {away} of {surface.loss.size} points" if away else ""
    if surface.share is not None and surface.share < SEEN:
        rest += f"; the way of training is not drawn: this plane holds {100 * surface.share:.2g} % of it"
    elif surface.places is not None and surface.share is not None:
        rest += f"; the line is the way of training, of which this plane holds {100 * surface.share:.3g} %"
    return f"loss from {rounded(low)} to {rounded(high)}{rest}"


def _contours(look: Look, surface: Surface, levels: Array, name: str) -> Figure:
    from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap

    figure, axes = sheet(legend=[name])
    loss = np.ma.masked_invalid(surface.loss.T)
    colours = LinearSegmentedColormap.from_list("ramp", list(look.ramp), N=max(len(levels) - 1, 2))
    settings: dict[str, Any] = {"levels": levels}
    norm = BoundaryNorm(levels, colours.N)
    filled = axes.contourf(surface.alphas, surface.betas, loss, cmap=colours, norm=norm, **settings)
    filled.set_edgecolor("face")  # else thin gaps between the bands
    if surface.places is not None:
        for colour, width in (("#000000", 2.6), ("#ffffff", 1.2)):  # seen on dark and on light ground
            axes.plot(*surface.places.T, color=colour, linewidth=width, marker=".", markersize=4 + width)
    axes.plot(0, 0, marker="o", markersize=5, color="#ffffff", markeredgecolor="#000000")
    axes.set_xlim(*finite_range(surface.alphas))
    axes.set_ylim(*finite_range(surface.betas))
    axes.grid(False)
    axes.set_aspect("equal" if surface.share is None or surface.places is None else "auto")
    axes.set_title(shortened(name), fontsize=9)
    set_axis(axes, "x", Axis(label="first direction"))
    set_axis(axes, "y", Axis(label="second direction"))
    bar = figure.colorbar(filled, ax=axes, label="loss, at levels that show the basin", spacing="uniform")
    every = max(1, (len(levels) - 1) // 4)
    bar.ax.set_yticks(levels[::every], [rounded(value) for value in levels[::every]])
    bar.ax.minorticks_off()
    return figure


def _still(look: Look, surface: Surface, scale: Scale, name: str) -> Figure:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT + 0.6))
    room: Any = figure.add_axes((0.0, 0.07, 0.94, 0.87), projection="3d")
    small = thinned(surface)
    first, second = np.meshgrid(small.alphas, small.betas, indexing="ij")
    room.plot_surface(
        first,
        second,
        scale.heights(small.loss),
        cmap=LinearSegmentedColormap.from_list("ramp", list(look.ramp)),
        vmin=0,
        vmax=1,
        rcount=MOST,
        ccount=MOST,
        linewidth=0.2,
    )
    room.set_zlim(0, 1)
    room.set_zticks([0, 0.5, 1], [rounded(value) for value in scale.levels()])
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
    return replace(
        surface,
        alphas=surface.alphas[rows],
        betas=surface.betas[columns],
        loss=surface.loss[np.ix_(rows, columns)],
    )


def _drawn(runs: Sequence[Kept], part: str) -> list[tuple[Group, str, Surface]]:
    """The surfaces of one kind that the page draws, in their order."""
    there = [(group, run.name, getattr(run.shapes, part).value) for group, run in shown(runs)]
    return [(group, name, _way_if_seen(surface)) for group, name, surface in there if surface is not None]


def turning(runs: Sequence[Kept]) -> dict[str, Any] | None:
    """What the script of the page needs to draw surfaces that can be turned; None if there is no surface.

    Those of random planes have one scale, those of the planes of ways another.
    """
    kinds = [_drawn(runs, part) for part in ("surface", "trajectory")]
    if not any(kinds):
        return None
    scales = [common_scale([surface for *_, surface in each]) if each else None for each in kinds]
    return {
        "scales": [
            None if each is None else {"low": each.low, "high": each.high, "log": each.log} for each in scales
        ],
        "surfaces": [
            _turned(group, name, thinned(surface), kind)
            for kind, each in enumerate(kinds)
            for group, name, surface in each
        ],
    }


def _turned(group: Group, name: str, surface: Surface, kind: int) -> dict[str, Any]:
    return {
        "name": name,
        "run": group.place,
        "scale": kind,
        "x": [float(f"{value:.5g}") for value in surface.alphas],
        "y": [float(f"{value:.5g}") for value in surface.betas],
        "loss": [_cells(row) for row in surface.loss],
        "way": [] if surface.places is None else surface.places.round(4).tolist(),
    }


def _cells(row: Array) -> list[float | None]:
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in row]
