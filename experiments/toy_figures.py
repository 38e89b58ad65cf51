"""The toy problems' figures, as PNG. Colours are told apart without red and green, and by line or place too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")  # no screen is needed
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

if TYPE_CHECKING:
    from toy_minima import Ended, Landscape, Paths
    from toy_quadratic import Spread

BLUE, ORANGE, GREEN, PURPLE, SKY, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000"
LINES = {
    "dp-sgd": (BLACK, "-"),
    "dp-sam": (PURPLE, "--"),
    "dp-sat": (GREEN, "-."),
    "sai": (SKY, "-"),
    "sai, radius 0": (SKY, ":"),
    "dplis": (ORANGE, "-"),
}
CENTRES = {"flat": (2.5, 2.5), "sharp": (7.5, 7.5)}
MARKS = ((BLUE, "o", "flat basin"), (ORANGE, "^", "sharp basin"), (BLACK, "x", "neither"))
SHOWN = 100  # final positions
DPI = 110


def minima(out: Path, landscape: Landscape, ended: Sequence[Ended], paths: Paths) -> None:
    """Three figures: final positions, losses, sharpness along descents."""
    mine, name = [one for one in ended if one.trial.start == "uniform"], landscape.name
    _save(positions(landscape, mine), out / f"toy_minima_{name}_positions.png")
    _save(tails(mine), out / f"toy_minima_{name}_losses.png")
    _save(sharpness(paths), out / f"toy_minima_{name}_sharpness.png")


def positions(landscape: Landscape, ended: Sequence[Ended]) -> Any:
    """Where the first hundred runs of the first seed set end, method by method, on the loss's contours."""
    first = {e.trial.method: e for e in reversed(ended)}
    figure, axes = plt.subplots(2, 3, figsize=(10, 7.2), sharex=True, sharey=True, layout="constrained")
    side = np.linspace(-1, 11, 121)
    grid = landscape.loss(np.stack(np.meshgrid(side, side), axis=-1))
    for axis, method in zip(axes.flat, LINES, strict=True):
        filled = axis.contourf(side, side, grid, levels=np.linspace(0, 1, 11), cmap="Greys", alpha=0.55)
        _scatter(axis, first[method])
        axis.set_title(method, fontweight="bold")
        axis.set(xlim=(-1, 11), ylim=(-1, 11), aspect="equal")
        for text, (x, y) in CENTRES.items():
            axis.annotate(text, (x, y), (x, y - 3.0), ha="center", fontsize=9)
    figure.supxlabel("first weight")
    figure.supylabel("second weight")
    figure.colorbar(filled, ax=axes, label="loss", shrink=0.7)
    shown = sorted({int(k) for one in first.values() for k in one.basins[:SHOWN]})
    keys = [Line2D([], [], color=c, marker=m, linestyle="", label=text) for c, m, text in MARKS]
    figure.legend(handles=[keys[k] for k in shown], loc="outside upper center", ncols=3)
    return figure


def _scatter(axis: Any, ended: Ended) -> None:
    where, basins = ended.positions[:SHOWN], ended.basins[:SHOWN]
    for k, (color, marker, _) in enumerate(MARKS):
        x, y = where[basins == k].T
        axis.scatter(x, y, s=16, c=color, marker=marker, linewidths=0.8, alpha=0.85)


def tails(ended: Sequence[Ended]) -> Any:
    """How many runs end with a larger loss: one line for every seed set, none averaged; and a histogram."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for one in ended:
        color, style = LINES[one.trial.method]
        rest = 1 - np.arange(1, len(one.losses) + 1) / len(one.losses)
        left.plot(np.sort(one.losses), rest, color=color, linestyle=style, linewidth=1)
    most = 1.03 * max(float(one.losses.max()) for one in ended)
    for method, (color, style) in LINES.items():
        losses = np.concatenate([one.losses for one in ended if one.trial.method == method])
        share = np.full(len(losses), 1 / len(losses))
        right.hist(
            losses,
            bins=40,
            range=(0, most),
            weights=share,
            histtype="step",
            color=color,
            linestyle=style,
            linewidth=1.4,
        )
    least = 1 / min(len(one.losses) for one in ended)
    left.axhline(0.05, color="grey", linewidth=0.8)
    left.text(0.99 * most, 0.053, "95 % loss", ha="right", va="bottom", color="dimgrey", fontsize=9)
    left.set(
        xlabel="final loss", ylabel="share of runs above it", yscale="log", xlim=(0, most), ylim=(least, 1.1)
    )
    right.set(xlabel="final loss", ylabel="share of runs", yscale="log", xlim=(0, most))
    left.set_title("each seed set by itself")
    right.set_title("all seed sets together")
    keys = [Line2D([], [], color=c, linestyle=s, label=method) for method, (c, s) in LINES.items()]
    figure.legend(handles=keys, loc="outside lower center", ncols=6)
    return figure


def sharpness(paths: Paths) -> Any:
    """Sharpness and Delta along the descents, and one against the other."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained")
    for k, (color, marker, name) in enumerate(MARKS[:2]):
        mine = paths.basins == k
        style = "-" if k == 0 else "--"
        for axis, values in zip(axes[:2], (paths.sharpness, paths.turned), strict=True):
            axis.plot(values[:, mine], color=color, linestyle=style, linewidth=0.7, alpha=0.35)
        x, y = paths.sharpness[:, mine].ravel(), paths.turned[:, mine].ravel()
        axes[2].scatter(x, y, s=7, c=color, marker=marker, alpha=0.35, linewidths=0, label=name)
    axes[0].set(xlabel="step of the descent", ylabel="sharpness $||H||_2$", ylim=(0, None))
    axes[1].set(
        xlabel="step of the descent", ylabel="change of the gradient by noise, $\\Delta_t$", ylim=(0, None)
    )
    axes[2].set(xlabel="sharpness $||H||_2$", ylabel="$\\Delta_t$")
    axes[2].set_title(f"correlation {paths.summary()['correlation']:.2f}", fontsize=10)
    keys = [
        Line2D([], [], color=c, marker=m, linestyle="-" if k == 0 else "--", label=f"into the {text}")
        for k, (c, m, text) in enumerate(MARKS[:2])
    ]
    figure.legend(handles=keys, loc="outside upper center", ncols=2)
    return figure


def spread(out: Path, found: Spread) -> None:
    """Measured against predicted variance, and how many standard errors lie between them."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    order = np.argsort(found.values)
    left.plot(found.values[order], found.predicted[order], color=BLACK, linewidth=1, label="predicted")
    left.scatter(found.values, found.measured, s=14, color=ORANGE, label="measured", zorder=3)
    left.set(xlabel="eigenvalue", ylabel="stationary variance", xscale="log", yscale="log")
    left.legend()
    right.axhspan(-3, 3, color="0.92", label="three standard errors")
    right.axhline(0, color=BLACK, linewidth=0.8)
    right.scatter(found.values, found.z, s=14, color=ORANGE, zorder=3)
    right.set(
        xlabel="eigenvalue", ylabel="(measured - predicted) / standard error", xscale="log", ylim=(-5, 5)
    )
    right.legend(loc="upper right")
    _save(figure, out / "toy_quadratic_spread.png")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
