"""Pictures of distributions: eigenvalues, gradient norms, and what noise does to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from saltflat.report.chart import (
    Axis,
    Series,
    all_of,
    chart,
    finite_range,
    legend,
    rounded,
    set_axis,
    sheet,
    spans_decades,
    tick,
)
from saltflat.report.draw import Picture
from saltflat.report.folder import Kept
from saltflat.report.look import Look
from saltflat.report.shapes import Array, Gradients
from saltflat.runs.layout import number
from saltflat.runs.measures import pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 600  # points of a spectrum
FLOOR = 1e-7  # of the highest density: below it the tails of the smoothing kernel fill the page


def spectra(runs: Sequence[Kept]) -> Picture | None:
    """The density of the Hessian's eigenvalues, on a logarithmic axis: the bulk is at 0, flat minima end early."""
    found = [(place, run.name, run.shapes.spectrum.value) for place, run in enumerate(runs)]
    there = [(place, name, *_peaks(s.grid, s.density)) for place, name, s in found if s is not None]
    if not there:
        return None
    floor = FLOOR * max(finite_range(density)[1] for *_, density in there)
    series = [
        Series(place, name, grid, np.where(density > floor, density, np.nan))
        for place, name, grid, density in there
    ]
    words = "; ".join(_reach_in_words(runs[s.place], s) for s in series)
    return Picture(
        "spectrum",
        "Spectral density of the Hessian",
        words,
        lambda look: chart(look, series, x=Axis(label="eigenvalue"), y=Axis(label="density", log=True)),
    )


def _reach_in_words(run: Kept, series: Series) -> str:
    """The largest eigenvalue as it was measured; the density is smoothed, and reaches further than any eigenvalue."""
    largest = number((run.shapes.measures.value or {}).get("lambda_max"))
    if largest is not None:
        return f"{series.name}: largest eigenvalue {rounded(largest, 4)}"
    low, high = finite_range(series.x[np.isfinite(series.y)])
    return f"{series.name}: range of the smoothed density {rounded(low)} to {rounded(high)}"


def _peaks(grid: Array, density: Array) -> tuple[Array, Array]:
    """At most :data:`MOST` points; of each group the highest, so that no outlier is lost."""
    order = np.argsort(grid)
    groups = np.array_split(order, min(MOST, len(order)))
    tops = np.array([group[np.argmax(np.nan_to_num(density[group], nan=-np.inf))] for group in groups])
    return grid[tops], density[tops]


def noise_tolerance(runs: Sequence[Kept]) -> Picture | None:
    """By how much the loss rises after so many steps' worth of DP noise, as the last phase adds it."""
    series = []
    for place, run in enumerate(runs):
        taken = pairs((run.shapes.measures.value or {}).get("noise_tolerance"))
        if taken:
            series.append(Series(place, run.name, [a for a, _ in taken], [b for _, b in taken]))
    if not series:
        return None
    log = spans_decades(all_of(series, lambda each: each.x))
    words = "; ".join(
        f"{s.name}: loss rises by {s.y[-1]:.3g} after {s.x[-1]:g} steps ({_momentum(runs[s.place])})"
        for s in series
    )
    return Picture(
        "noise-tolerance",
        "Loss after steps of the last phase's noise alone",
        words,
        lambda look: chart(
            look, series, x=Axis(label="steps of noise", log=log), y=Axis(label="rise of the loss")
        ),
    )


def _momentum(run: Kept) -> str:
    """What handed the noise on; files of earlier versions left momentum out, and must not be read as if it were in."""
    momentum = number((run.shapes.measures.value or {}).get("noise_momentum"))
    return "momentum left out: measure anew" if momentum is None else f"momentum {momentum:g}"


def gradient_norms(runs: Sequence[Kept]) -> Picture | None:
    """How large single examples' gradients are: the share in each bin, bins drawn equally wide."""
    found = [(place, run.name, run.shapes.gradients.value) for place, run in enumerate(runs)]
    there = [(place, name, gradients) for place, name, gradients in found if gradients is not None]
    if not there:
        return None
    return Picture(
        "gradient-norms",
        "Norms of per-example gradients",
        "; ".join(_share_in_words(name, gradients) for _, name, gradients in there),
        lambda look: _histogram(look, there),
    )


def _share_in_words(name: str, gradients: Gradients) -> str:
    if gradients.clipped_share is None or gradients.clip_norm is None:
        return f"{name}: clip norm not given"
    return f"{name}: {tick(gradients.clipped_share, percent=True)} are above the clip norm {gradients.clip_norm:g}"


def _histogram(look: Look, found: Sequence[tuple[int, str, Gradients]]) -> Figure:
    from matplotlib.lines import Line2D

    figure, axes = sheet(legend=[name for _, name, _ in found])
    edges = max((gradients.edges for *_, gradients in found), key=len)
    bins = np.arange(len(edges), dtype=float)
    for place, _, gradients in found:
        style = {key: value for key, value in look.line(place).items() if key != "marker"}
        places = np.interp(gradients.edges, edges, bins)
        shares = np.append(gradients.counts, gradients.overflow)
        shares = shares / max(shares.sum(), 1.0)
        axes.stairs(shares, np.append(places, bins[-1] + 1), linewidth=1.7, **style)
        if gradients.clip_norm is not None:
            axes.axvline(float(np.interp(gradients.clip_norm, edges, bins)), linewidth=0.9, **style)
    set_axis(axes, "x", Axis(label="norm (vertical lines: clip norms)"))
    set_axis(axes, "y", Axis(label="share of examples", percent=True))
    _ticks_at_edges(axes, edges)
    axes.set_ylim(bottom=0)
    lines = [Line2D([], [], **{**look.line(place), "marker": ""}) for place, *_ in found]
    legend(figure, lines, [name for _, name, _ in found])
    return figure


def _ticks_at_edges(axes: Any, edges: Array) -> None:
    """About five edges by name, and the bin of everything beyond the last."""
    count = len(edges) - 1
    shown = np.unique(np.linspace(0, 0.85 * count, min(count, 5)).round().astype(int))
    names = [*(rounded(edges[k]) for k in shown), f"> {rounded(edges[-1])}"]
    axes.set_xticks([*shown, count + 0.5], names)
