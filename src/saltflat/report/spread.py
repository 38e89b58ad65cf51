"""Pictures of distributions: eigenvalues, gradient norms, and what noise does to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from saltflat.privacy.limits import rounded_up
from saltflat.report.chart import Axis, Series, all_of, finite_range, rounded, spans_decades, tick
from saltflat.report.draw import Picture, of_lines
from saltflat.report.folder import Kept
from saltflat.report.groups import grouped, lines
from saltflat.report.shapes import Array, Gradients
from saltflat.report.words import correction
from saltflat.runs.layout import number
from saltflat.runs.measures import pairs

MOST = 600  # points of a spectrum
FLOOR = 1e-7  # of the highest density: below it the tails of the smoothing kernel fill the page


def spectra(runs: Sequence[Kept]) -> Picture | None:
    """The density of the Hessian's eigenvalues: the bulk is at 0, flat minima end early."""
    there = [found for run in runs if (found := run.shapes.spectrum.value) is not None]
    if not there:
        return None
    floor = FLOOR * max(finite_range(found.density)[1] for found in there)

    def curve(run: Kept) -> Series | None:
        found = run.shapes.spectrum.value
        if found is None:
            return None
        grid, density = _peaks(found.grid, found.density)
        return Series(0, "", grid, np.where(density > floor, density, np.nan))

    series = lines(grouped(runs), curve)
    named = {run.name: run for run in runs}
    words = "; ".join(_reach_in_words(named.get(s.name), s) for s in series)
    return of_lines(
        "spectrum",
        "Spectral density of the Hessian",
        words,
        series,
        x=Axis(label="eigenvalue"),
        y=Axis(label="density", log=True, switch=True),
    )


def _reach_in_words(run: Kept | None, series: Series) -> str:
    """The largest eigenvalue as it was measured; the density is smoothed, and reaches further than any eigenvalue."""
    largest = None if run is None else number((run.shapes.measures.value or {}).get("lambda_max"))
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

    def curve(run: Kept) -> Series | None:
        taken = pairs((run.shapes.measures.value or {}).get("noise_tolerance"))
        return Series(0, "", [a for a, _ in taken], [b for _, b in taken]) if taken else None

    series = lines(grouped(runs), curve)
    if not series:
        return None
    log = spans_decades(all_of(series, lambda each: each.x))
    named = {run.name: run for run in runs}
    words = "; ".join(
        f"{s.name}: loss rises by {s.y[-1]:.3g} after {s.x[-1]:g} steps{_momentum(named.get(s.name))}"
        for s in series
    )
    rises = all_of(series, lambda each: each.y)
    return of_lines(
        "noise-tolerance",
        "Loss after steps of the last phase's noise alone",
        words,
        series,
        x=Axis(label="steps of noise, logarithmic" if log else "steps of noise", log=log),
        y=Axis(label="rise of the loss", switch=bool((rises > 0).all())),
    )


def _momentum(run: Kept | None) -> str:
    """What handed the noise on; files of earlier versions left momentum out, and must not be read as if it were in."""
    if run is None:
        return ""
    momentum = number((run.shapes.measures.value or {}).get("noise_momentum"))
    return " (momentum left out: measure anew)" if momentum is None else f" (momentum {momentum:g})"


def tradeoffs(runs: Sequence[Kept]) -> Picture | None:
    """The most that any attack finds at each rate of false accusations; of repeats the run that is protected least."""
    series = []
    for group in grouped(runs):
        curves = [curve for run in group.runs if (curve := _tradeoff(run))]
        if curves:
            most = max(curves, key=lambda curve: sum(true for _, true in curve))
            series.append(Series(group.place, group.name, *zip(*most, strict=True)))
    if not series:
        return None
    words = "; ".join(
        f"{s.name}: at most {rounded_up(100 * float(np.interp(0.01, s.x, s.y)))} % found at 1 % false positives"
        for s in series
    )
    return of_lines(
        "trade-off",
        "What any attack on one unit can achieve at most",
        f"{words}; dashed: accusing at random",
        series,
        x=Axis(label="false positive rate", percent=True),
        y=Axis(label="true positive rate", percent=True, diagonal=True),
    )


def _tradeoff(run: Kept) -> list[tuple[float, float]]:
    """The curve of the statement, if it holds: not of a run with a stamp, or one that cost more than it says."""
    if run.spent.stamp or correction(run):
        return []
    return pairs((run.statement.value or {}).get("tradeoff"))


def gradient_norms(runs: Sequence[Kept]) -> Picture | None:
    """How large single examples' gradients are: the share in each bin, bins drawn equally wide."""
    there = [(run.name, found) for run in runs if (found := run.shapes.gradients.value) is not None]
    if not there:
        return None
    edges = max((found.edges for _, found in there), key=len)
    series = lines(grouped(runs), partial(_stairs, edges))
    label = "norm (dashed uprights: clip norms; bins equally wide)"
    x = Axis(label=label, ticks=_named_edges(edges), breaks=_breaks(edges))
    return of_lines(
        "gradient-norms",
        "Norms of per-example gradients",
        "; ".join(_share_in_words(name, found) for name, found in there),
        series,
        x=x,
        y=Axis(label="share of examples", percent=True),
    )


def _share_in_words(name: str, gradients: Gradients) -> str:
    if gradients.clipped_share is None or gradients.clip_norm is None:
        return f"{name}: clip norm not given"
    return f"{name}: {tick(gradients.clipped_share, percent=True)} are above the clip norm {gradients.clip_norm:g}"


def _stairs(edges: Array, run: Kept) -> Series | None:
    """The shares as steps over bins, each told by the norm at which it begins."""
    found = run.shapes.gradients.value
    if found is None:
        return None
    bins = np.arange(len(edges), dtype=float)
    places = np.append(np.interp(found.edges, edges, bins), bins[-1] + 1)
    shares = np.append(found.counts, found.overflow)
    shares = shares / max(shares.sum(), 1.0)
    clip = () if found.clip_norm is None else ((float(np.interp(found.clip_norm, edges, bins)), "clip norm"),)
    inner = 1e-6  # a step goes up at its edge: two points at almost one place
    x = np.stack([places[:-1], places[1:] - inner], axis=1).ravel()
    return Series(0, "", x, np.repeat(shares, 2), at=clip, shown=np.repeat(found.edges, 2))


def _named_edges(edges: Array) -> tuple[tuple[float, str], ...]:
    """About five edges by name, and the bin of everything beyond the last."""
    count = len(edges) - 1
    shown = np.unique(np.linspace(0, 0.85 * count, min(count, 5)).round().astype(int))
    return (*((float(k), rounded(edges[k])) for k in shown), (count + 0.5, f"> {rounded(edges[-1])}"))


def _breaks(edges: Array) -> tuple[tuple[float, str], ...]:
    """Where bins become wider, and how wide; the last holds everything beyond."""
    widths = np.diff(edges)
    found = [
        (float(k + 1), f"bins of {rounded(b)}")
        for k, (a, b) in enumerate(pairwise(widths))
        if not np.isclose(a, b, rtol=1e-3)
    ]
    return (*found[:3], (float(len(edges) - 1), ""))
