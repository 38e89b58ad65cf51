"""Two minima in the plane, one flat and one sharp: where private methods end, and what that costs.

python experiments/toy_minima.py             # both losses, five seed sets of 1000 runs, tables and figures
python experiments/toy_minima.py --quick     # the same in some seconds, with few runs: no result
python experiments/toy_minima.py --tune      # what was tried for the settings, on other seeds
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import toy_command
from rich.console import Console
from toy_door import draws, ends

import saltflat as sf
from saltflat.door import AnyMethod
from saltflat.errors import SettingError

FLAT, SHARP = np.array([2.5, 2.5]), np.array([7.5, 7.5])  # the centres
NEAR = 1.0  # a descent that comes so near to a centre has found its basin: the ridge is at least twice as far
CORE = 0.2  # so near to a centre the loss is a cone, and ||H|| grows as slope / distance
BASINS = ("flat", "sharp", "neither")
STARTS = ("uniform", "bisector")
TUNING = 100  # the seed set on which settings were chosen; none of those that are reported


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow."""
    return np.exp(-np.logaddexp(0, -z))


@dataclass(frozen=True)
class Landscape:
    """L(w) = p F_flat + (1 - p) F_sharp,   F_c = S(r_c / q_c - q_c / r_c),   p = S((r_sharp - r_flat) / fade).

    r_c is the distance to centre c, q_c its width, S the sigmoid. p is a / (a + b) with a = exp(-r_flat / fade) and
    b = exp(-r_sharp / fade). Distances are at least 1e-8. Both F are smooth at their centres, where all their
    derivatives tend to 0; p is not: it makes each minimum the tip of a cone, if a blunt one.
    """

    name: str
    flat_width: float
    sharp_width: float
    fade: float

    def loss(self, points: np.ndarray) -> np.ndarray:
        """(..., 2) -> (...)."""
        (_, near), (_, far) = _polar(points, FLAT), _polar(points, SHARP)
        share = sigmoid((far - near) / self.fade)
        flat, sharp = _well(near, self.flat_width)[0], _well(far, self.sharp_width)[0]
        return share * flat + (1 - share) * sharp

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """(..., 2) -> (..., 2)."""
        (toward, near), (away, far) = _polar(points, FLAT), _polar(points, SHARP)
        share = sigmoid((far - near) / self.fade)
        flat, flat_slope = _well(near, self.flat_width)
        sharp, sharp_slope = _well(far, self.sharp_width)
        turn = share * (1 - share) * (flat - sharp) / self.fade  # what moving the share does
        along_near, along_far = share * flat_slope - turn, (1 - share) * sharp_slope + turn
        return along_near[..., None] * toward + along_far[..., None] * away

    def sharpness(self, points: np.ndarray, *, h: float = 1e-5) -> np.ndarray:
        """||H||_2, (..., 2) -> (...): the exact gradient's central differences, made symmetric."""
        sides = [self.gradient(points + h * e) - self.gradient(points - h * e) for e in np.eye(2)]
        hessian = np.stack(sides, axis=-1) / (2 * h)
        return np.linalg.norm((hessian + hessian.swapaxes(-1, -2)) / 2, ord=2, axis=(-2, -1))


def _polar(points: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The unit vectors away from a centre, and the distances."""
    offset = points - centre
    distance = np.maximum(np.sqrt((offset * offset).sum(-1)), 1e-8)
    return offset / distance[..., None], distance


def _well(distance: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """F and dF / dr."""
    value = sigmoid(distance / width - width / distance)
    return value, value * (1 - value) * (1 / width + width / distance**2)


LANDSCAPES = {
    "dplis": Landscape("dplis", flat_width=5.0, sharp_width=2.5, fade=2.0),
    "dp-sat": Landscape("dp-sat", flat_width=5.0, sharp_width=1.0, fade=1.0),
}


@dataclass(frozen=True, kw_only=True)
class Common:
    """What all methods share: the same steps and the same cost."""

    lr: float
    steps: int = 100
    noise_multiplier: float = 10.0
    size: int = 200  # identical units, all in every step
    clip_norm: float = 1.0
    delta: float = 1e-5

    @property
    def noise_std(self) -> float:
        """s = sigma C / size, the noise on each coordinate of an answer."""
        return self.noise_multiplier * self.clip_norm / self.size

    @property
    def epsilon(self) -> float:
        """What DP-SGD costs; all others cost no more."""
        return single(sf.methods.DPSGD(), self).epsilon(self.delta)


@dataclass(frozen=True, kw_only=True)
class Own:
    """What each method has of its own."""

    sam_radius: float
    sat_radius: float
    sai_radius: float
    sai_steps: int  # of the first phase
    sai_drop: float  # the first learning rate over the second
    smoothing: float  # the standard deviation of DPLIS's jitter
    copies: int = 10


def single(method: AnyMethod, common: Common) -> sf.Plan:
    """All steps with one method."""
    phase = sf.Phase(
        method=method,
        steps=common.steps,
        noise_multiplier=common.noise_multiplier,
        clip_norm=common.clip_norm,
        optimizer=sf.optimizers.SGD(lr=common.lr),
    )
    return sf.Plan(phases=(phase,), rate=1.0, size=common.size)


def two_phases(first: AnyMethod, common: Common, own: Own) -> sf.Plan:
    """The library's SAI with DP-SGD's epsilon; ``first`` is the method of its first phase."""
    return sf.sai(
        steps=(own.sai_steps, common.steps - own.sai_steps),
        rate=1.0,
        size=common.size,
        epsilon=common.epsilon,
        delta=common.delta,
        portion=0.9,
        methods=(first, sf.methods.DPSGD()),
        clip_norms=(common.clip_norm, common.clip_norm),
        optimizers=(sf.optimizers.SGD(lr=common.lr), sf.optimizers.SGD(lr=common.lr / own.sai_drop)),
    )


def smoothed(common: Common, own: Own, seed: int) -> sf.Plan:
    """DPLIS; its reach counts steps of noise, lr s."""
    reach = own.smoothing / (common.lr * common.noise_std)
    return single(sf.methods.DPLIS(lr=common.lr, copies=own.copies, reach=reach, seed=seed), common)


METHODS: dict[str, Callable[[Common, Own, int], sf.Plan]] = {
    "dp-sgd": lambda common, own, seed: single(sf.methods.DPSGD(), common),
    "dp-sam": lambda common, own, seed: single(sf.methods.SAM(own.sam_radius), common),
    "dp-sat": lambda common, own, seed: single(sf.methods.SAT(own.sat_radius), common),
    "sai": lambda common, own, seed: two_phases(sf.methods.SAT(own.sai_radius), common, own),
    "sai, radius 0": lambda common, own, seed: two_phases(sf.methods.DPSGD(), common, own),
    "dplis": smoothed,
}

# Chosen on the seed set TUNING; `--tune` shows what was tried.
COMMON = {"dplis": Common(lr=8.0), "dp-sat": Common(lr=4.0)}
OWN = {
    "dplis": Own(sam_radius=2.0, sat_radius=0.3, sai_radius=0.1, sai_steps=80, sai_drop=20.0, smoothing=2.5),
    "dp-sat": Own(sam_radius=1.0, sat_radius=2.0, sai_radius=0.1, sai_steps=50, sai_drop=20.0, smoothing=2.0),
}


def start_points(kind: str, runs: int, seeds: int) -> np.ndarray:
    """(runs, 2): uniform in [0, 10]^2, or uniform on the part of x + y = 10 that lies in it."""
    unit = np.random.default_rng([seeds, STARTS.index(kind)]).random((runs, 2))
    along = 10 * unit[:, 0]
    return 10 * unit if kind == "uniform" else np.stack([along, 10 - along], axis=1)


def basin(landscape: Landscape, points: np.ndarray, *, steps: int = 600, stride: float = 0.05) -> np.ndarray:
    """Where descent without noise leads from each point: 0 flat, 1 sharp, 2 neither within steps x stride."""
    found = np.full(len(points), 2)
    for _ in range(steps):
        for which, centre in enumerate((FLAT, SHARP)):
            found[(found == 2) & (np.linalg.norm(points - centre, axis=1) < NEAR)] = which
        if (found < 2).all():
            break
        gradient = landscape.gradient(points)
        length = np.linalg.norm(gradient, axis=1, keepdims=True)
        points = points - stride * gradient / np.maximum(length, 1e-12)
    return found


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One cell of the table."""

    landscape: str
    start: str
    method: str
    seeds: int
    runs: int


@functools.lru_cache(maxsize=1)
def noise(seeds: int, runs: int, steps: int) -> torch.Tensor:
    """(runs, questions, 2): the same for all methods; DP-SAM puts two questions in a step."""
    streams = [seeds * 1_000_000 + run for run in range(runs)]
    return draws(streams, questions=2 * steps, width=2)


@dataclass(frozen=True)
class Ended:
    """A trial's final positions, their losses and their basins."""

    trial: Trial
    positions: np.ndarray
    losses: np.ndarray
    basins: np.ndarray

    def row(self) -> dict[str, Any]:
        """What the table says of it."""
        shares = {f"p_{name}": float(np.mean(self.basins == k)) for k, name in enumerate(BASINS)}
        tail = float(np.quantile(self.losses, 0.95))
        return {**asdict(self.trial), **shares, "mean": float(self.losses.mean()), "q95": tail}


def attempt(trial: Trial, common: Common, own: Own) -> Ended:
    """Run a trial; a run's start and noise depend on its number and its seed set, not on the method."""
    landscape = LANDSCAPES[trial.landscape]
    starts = torch.from_numpy(start_points(trial.start, trial.runs, trial.seeds))
    blocks = noise(trial.seeds, trial.runs, common.steps)
    plan = METHODS[trial.method](common, own, trial.seeds)
    where = ends(plan, starts, landscape.gradient, blocks)
    return Ended(trial, where, landscape.loss(where), basin(landscape, where))


@dataclass(frozen=True)
class Paths:
    """Sharpness along descents without noise, and what one step's noise does to the next gradient there.

    ``turned`` is Delta, the mean over draws of ||grad L(w - lr g) - grad L(w - lr (g + s xi))||. Both are (steps,
    paths), and nan from where a path is nearer than CORE to a centre; ``basins`` is (paths,).
    """

    basins: np.ndarray
    sharpness: np.ndarray
    turned: np.ndarray

    def summary(self) -> dict[str, float]:
        """Means in each basin over all steps, and Pearson's correlation over all steps and paths."""
        each = {
            f"{what}_{name}": float(np.nanmean(values[:, self.basins == k]))
            for k, name in enumerate(BASINS[:2])
            for what, values in (("sharpness", self.sharpness), ("turned", self.turned))
        }
        on = np.isfinite(self.sharpness)
        correlation = np.corrcoef(self.sharpness[on], self.turned[on])[0, 1]
        return {"correlation": float(correlation), **each}


def descend(
    landscape: Landscape, noise_std: float, *, paths: int, steps: int = 100, lr: float = 1.0
) -> Paths:
    """Descents from uniform starts, at a learning rate that is small enough for the sharp basin."""
    points = start_points("uniform", paths, TUNING + 1)
    which = basin(landscape, points)
    points, which = points[which < 2], which[which < 2]
    noise = np.random.default_rng(TUNING + 1).normal(0, noise_std, (200, len(points), 2))
    sharpness, turned, core = [], [], np.zeros(len(points), bool)
    for _ in range(steps):
        core |= np.minimum(*(np.linalg.norm(points - centre, axis=1) for centre in (FLAT, SHARP))) < CORE
        clear = points - lr * landscape.gradient(points)
        change = landscape.gradient(clear) - landscape.gradient(clear - lr * noise)
        sharpness.append(np.where(core, np.nan, landscape.sharpness(points)))
        turned.append(np.where(core, np.nan, np.linalg.norm(change, axis=-1).mean(0)))
        points = clear
    return Paths(which, np.array(sharpness), np.array(turned))


def trials(given: argparse.Namespace, landscape: str) -> Iterator[Trial]:
    """Everything that is run on one loss; one seed set after the other, as all methods share its noise."""
    for seeds, start, method in itertools.product(given.sets, STARTS, METHODS):
        yield Trial(landscape=landscape, start=start, method=method, seeds=seeds, runs=given.runs)


def accepted(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether in every seed set DPLIS is in the flat basin more often than DP-SGD, with a smaller 95 % loss."""
    found = {(row["method"], row["seeds"]): row for row in rows if row["start"] == "uniform"}
    pairs = [(found["dplis", seeds], plain) for (method, seeds), plain in found.items() if method == "dp-sgd"]
    return all(smooth["p_flat"] > plain["p_flat"] and smooth["q95"] < plain["q95"] for smooth, plain in pairs)


def sets_table(rows: Sequence[dict[str, Any]], start: str) -> str:
    """Markdown, a line for every method; each cell has one number for every seed set."""
    keys = {"p_flat": "P(flat)", "mean": "mean loss", "q95": "95 % loss"}
    lines = []
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method and row["start"] == start]
        lines.append((method, *(" ".join(f"{row[key]:.3f}" for row in mine) for key in keys)))
    return toy_command.markdown((f"{start} starts", *keys.values()), lines)


def tried_table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, a line for everything that was tried."""
    first, keys = ("landscape", "method", "tried"), ("p_flat", "p_neither", "mean", "q95")
    lines = [(*(row[key] for key in first), *(f"{row[key]:.3f}" for key in keys)) for row in rows]
    return toy_command.markdown((*first, "P(flat)", "P(neither)", "mean loss", "95 % loss"), lines)


def path_table(summary: dict[str, float]) -> str:
    """Markdown."""
    keys = ("correlation", "sharpness_flat", "sharpness_sharp", "turned_flat", "turned_sharp")
    headings = ("correlation", "sharpness, to flat", "to sharp", "Delta, to flat", "to sharp")
    return toy_command.markdown(headings, [[f"{summary[key]:.3g}" for key in keys]])


def noise_of(common: Common, own: Own) -> dict[str, list[float]]:
    """Each method's noise multipliers, phase by phase."""
    plans = {name: make(common, own, 0) for name, make in METHODS.items()}
    return {name: [phase.noise_multiplier for phase in plan.phases] for name, plan in plans.items()}


def study(name: str, given: argparse.Namespace, tick: Callable[[Trial], None]) -> dict[str, Any]:
    """All trials and paths on one loss; a file of results and figures go to ``given.out``."""
    common, own, ended = COMMON[name], OWN[name], []
    for trial in trials(given, name):
        ended.append(attempt(trial, common, own))
        tick(trial)
    paths, rows = descend(LANDSCAPES[name], common.noise_std, paths=60), [one.row() for one in ended]
    result = {
        "common": {**asdict(common), "noise_std": common.noise_std, "epsilon": common.epsilon},
        "own": asdict(own),
        "noise_multipliers": noise_of(common, own),
        "rows": rows,
        "paths": paths.summary(),
        "accepted": accepted(rows),
    }
    toy_command.keep(given.out, f"toy_minima_{name}.json", result)
    if not given.no_figures:
        import toy_figures

        toy_figures.minima(given.out, LANDSCAPES[name], ended, paths)
    return result


def everything(given: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    """Every loss that was asked for."""
    with toy_command.bar(console) as progress:
        total = sum(len(list(trials(given, name))) for name in given.losses)
        task = progress.add_task("trials", total=total)

        def tick(trial: Trial) -> None:
            text = f"{trial.landscape} loss, set {trial.seeds}, {trial.start} starts, {trial.method}"
            progress.update(task, description=text, advance=1)

        return {name: study(name, given, tick) for name in given.losses}


def candidates(name: str) -> Iterator[tuple[str, str, Common, Own]]:
    """What `--tune` tries: (method, what is tried, settings). First what all share, then each method's own."""
    own, chosen = OWN[name], COMMON[name]
    for steps, lr, noise_multiplier in itertools.product((50, 100), (2.0, 4.0, 8.0), (10.0, 20.0)):
        common = Common(steps=steps, lr=lr, noise_multiplier=noise_multiplier)
        text = f"{steps} steps, lr {lr:g}, sigma {noise_multiplier:g}"
        yield "dp-sgd", text, common, own
        for smoothing in (1.5, 2.0, 2.5, 3.0):
            yield "dplis", f"{text}, smoothing {smoothing:g}", common, replace(own, smoothing=smoothing)
    for radius in (0.1, 0.3, 1.0, 2.0):
        yield "dp-sam", f"radius {radius:g}", chosen, replace(own, sam_radius=radius)
        yield "dp-sat", f"radius {radius:g}", chosen, replace(own, sat_radius=radius)
    for radius, steps, drop in itertools.product((0.1, 0.3, 1.0), (50, 80), (4.0, 20.0)):
        changed = replace(own, sai_radius=radius, sai_steps=steps, sai_drop=drop)
        yield "sai", f"radius {radius:g}, first {steps}, lr / {drop:g}", chosen, changed


def tune(given: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """The grid, on the seed set TUNING."""
    wanted = [(name, *candidate) for name in given.losses for candidate in candidates(name)]
    rows = []
    with toy_command.bar(console) as progress:
        for name, method, text, common, own in progress.track(wanted, description="tuning"):
            trial = Trial(landscape=name, start="uniform", method=method, seeds=TUNING, runs=given.runs)
            rows.append({**attempt(trial, common, own).row(), "tried": text})
    toy_command.keep(given.out, "toy_minima_tuning.json", {"rows": rows})
    return rows


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = toy_command.parser(__doc__ or "")
    add = parser.add_argument
    add("--losses", nargs="+", choices=LANDSCAPES, default=list(LANDSCAPES), help="(default: both)")
    add("--runs", type=toy_command.positive, default=1000, help="in each seed set (default: %(default)s)")
    add("--sets", nargs="+", type=int, default=[0, 1, 2, 3, 4], help="seed sets (default: 0 1 2 3 4)")
    add("--tune", action="store_true", help=f"try settings on seed set {TUNING}, and show what they give")
    given = parser.parse_args(words)
    if given.quick:
        given.runs, given.sets = min(given.runs, 20), given.sets[:2]
    return given


def check(given: argparse.Namespace) -> None:
    """What is wrong is said before anything runs."""
    if bad := [seeds for seeds in given.sets if not 0 <= seeds < TUNING]:
        raise SettingError(f"seed sets lie in 0 ... {TUNING - 1}; got {bad}: {TUNING} chose the settings")
    if not (given.no_figures or given.tune):
        toy_command.check_figures()


def told(results: dict[str, dict[str, Any]]) -> str:
    """All tables."""
    parts = []
    for name, result in results.items():
        parts += [f"{name} loss, epsilon {result['common']['epsilon']:.2f} for all"]
        parts += [sets_table(result["rows"], start) for start in STARTS]
        neither = sum(round(row["p_neither"] * row["runs"]) for row in result["rows"])
        parts += [f"Runs that end in neither basin: {neither}.", path_table(result["paths"])]
        verdict = "yes" if result["accepted"] else "NO"
        parts += [
            f"DPLIS oftener in the flat basin than DP-SGD and with a smaller 95 % loss, in all sets: {verdict}"
        ]
    return "\n\n".join(parts)


def main(words: Sequence[str] | None = None) -> int:
    """Run; 0 if it ended, 130 if it was interrupted, 1 if something is wrong."""
    given = arguments(words)

    def work(console: Console) -> str:
        check(given)
        if given.tune:
            rows = tune(given, console)
            return json.dumps(rows) if given.json else tried_table(rows)
        result = everything(given, console)
        return json.dumps(result) if given.json else told(result)

    return toy_command.run(work)


if __name__ == "__main__":
    sys.exit(main())
