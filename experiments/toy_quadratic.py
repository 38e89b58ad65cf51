"""A quadratic with ten outliers: does noisy SGD spread as its formula says, and is its curvature found?

python experiments/toy_quadratic.py            # tables and a figure, in a minute
python experiments/toy_quadratic.py --quick    # the same in some seconds, with few steps: no result
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import toy_command
from rich.console import Console
from toy_door import walk

import saltflat as sf
from saltflat.door import AnyMethod
from saltflat.privacy.noise import SeededNoise

OUTLIERS, BULK = 10, 190
ALLOWED = 0.02  # of S3's correction, which takes the length of a release for constant


@dataclass(frozen=True, kw_only=True)
class Settings:
    """L(w) = w' H w / 2 and SGD on it; the clip is far above any gradient."""

    lr: float = 1.0
    noise_multiplier: float = 1.0
    clip_norm: float = 10.0
    size: int = 100
    seed: int = 0
    chains: int = 16
    burn: int = 1000
    steps: int = 3000
    probe_runs: int = 16
    probe_steps: int = 300

    @property
    def noise_std(self) -> float:
        """s = sigma C / size."""
        return self.noise_multiplier * self.clip_norm / self.size

    def plan(
        self, method: AnyMethod, *, steps: int, lr: float | None = None, momentum: float = 0.0
    ) -> sf.Plan:
        phase = sf.Phase(
            method=method,
            steps=steps,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            optimizer=sf.optimizers.SGD(lr=lr or self.lr, momentum=momentum),
        )
        return sf.Plan(phases=(phase,), rate=1.0, size=self.size)


@dataclass(frozen=True)
class Quadratic:
    """H = basis diag(values) basis', turned so that no eigenvector is a coordinate axis."""

    values: np.ndarray  # outliers first
    basis: np.ndarray  # its columns are the eigenvectors

    def __post_init__(self) -> None:
        object.__setattr__(self, "hessian", (self.basis * self.values) @ self.basis.T)

    def gradient(self, points: np.ndarray) -> np.ndarray:
        return points @ self.hessian

    def curvature(self, directions: np.ndarray) -> np.ndarray:
        """d' H d / ||d||^2, row by row."""
        return (self.gradient(directions) * directions).sum(-1) / (directions * directions).sum(-1)

    def stationary(self, lr: float, noise_std: float) -> np.ndarray:
        """lr s^2 / (lambda (2 - lr lambda)): the variance that SGD ends with along each eigenvector."""
        return lr * noise_std**2 / (self.values * (2 - lr * self.values))


@dataclass
class Watched:
    """A quadratic's gradient, and the longest that was ever taken: it must stay below the clip."""

    problem: Quadratic
    longest: float = 0.0

    def __call__(self, points: np.ndarray) -> np.ndarray:
        found = self.problem.gradient(points)
        self.longest = max(self.longest, float(np.sqrt((found * found).sum(-1)).max()))
        return found


def quadratic(seed: int) -> Quadratic:
    """Outliers 0.3 ... 1.7, bulk 0.01 ... 0.1."""
    values = np.concatenate([np.linspace(1.7, 0.3, OUTLIERS), np.geomspace(0.1, 0.01, BULK)])
    normal = np.random.default_rng(seed).normal(size=(len(values), len(values)))
    return Quadratic(values, np.linalg.qr(normal)[0])


@dataclass(frozen=True)
class Spread:
    """Measured and predicted variance along each eigenvector, and the relative standard error of the measured."""

    values: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    relative_error: np.ndarray

    @property
    def z(self) -> np.ndarray:
        return (self.measured / self.predicted - 1) / self.relative_error

    def groups(self) -> Iterator[dict[str, float]]:
        """Every outlier by itself, the bulk in five parts: means, and the error of the mean ratio."""
        ratio = self.measured / self.predicted
        parts = [[k] for k in range(OUTLIERS)] + np.array_split(np.arange(OUTLIERS, len(ratio)), 5)
        for part in map(np.asarray, parts):
            error = float(np.sqrt((self.relative_error[part] ** 2).sum()) / len(part))
            yield {
                "directions": len(part),
                "low": float(self.values[part].min()),
                "high": float(self.values[part].max()),
                "measured": float(self.measured[part].mean()),
                "predicted": float(self.predicted[part].mean()),
                "ratio": float(ratio[part].mean()),
                "error": error,
                "z": float((ratio[part].mean() - 1) / error),
            }

    def summary(self) -> dict[str, Any]:
        """If the formula holds, mean z^2 is 1 within about 3 sqrt(2 / directions), and few |z| pass 3."""
        return {
            "groups": list(self.groups()),
            "largest_z": float(np.abs(self.z).max()),
            "beyond_3": int((np.abs(self.z) > 3).sum()),
            "mean_square_z": float(np.mean(self.z**2)),
            "directions": len(self.z),
        }


def variance_error(values: np.ndarray, settings: Settings) -> np.ndarray:
    """Relative standard error of the mean of x^2 over all steps and chains of an AR(1), x <- r x + noise.

    sqrt(2 (1 + r^2) / ((1 - r^2) steps chains)),   r = 1 - lr lambda
    """
    kept = (1 - settings.lr * values) ** 2
    return np.sqrt(2 * (1 + kept) / ((1 - kept) * settings.steps * settings.chains))


def spread(problem: Quadratic, settings: Settings, gradient: Watched) -> Iterator[Spread | None]:
    """DP-SGD from the minimum, in many chains; None after each step, and the result at the end."""
    width, total = len(problem.values), np.zeros(len(problem.values))
    plan = settings.plan(sf.methods.DPSGD(), steps=settings.burn + settings.steps)
    start = torch.zeros(settings.chains, width, dtype=torch.float64)
    for step, stand in enumerate(walk(plan, start, gradient, SeededNoise(settings.seed))):
        if step >= settings.burn:
            total += ((stand.params.numpy() @ problem.basis) ** 2).mean(0)
        yield None
    predicted = problem.stationary(settings.lr, settings.noise_std)
    error = variance_error(problem.values, settings)
    yield Spread(problem.values, total / settings.steps, predicted, error)


def stationary_start(problem: Quadratic, settings: Settings, run: int) -> torch.Tensor:
    """(1, d), drawn from what plain SGD ends with: nothing to wait for."""
    std = np.sqrt(problem.stationary(settings.lr, settings.noise_std))
    drawn = std * np.random.default_rng([settings.seed, run]).normal(size=len(std))
    return torch.from_numpy(problem.basis @ drawn).unsqueeze(0)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Readings of an estimator beside the truth, one number for each independent run or pair."""

    name: str
    measured: np.ndarray
    truth: np.ndarray
    bias: np.ndarray | float = 0.0  # what theory adds to the truth
    slack: float = 0.0  # what is allowed beside three standard errors
    uncorrected: float | None = None  # what S3 would say without its correction
    noise_std: tuple[float, float] | None = None  # S4: measured and predicted

    def summary(self) -> dict[str, Any]:
        off = self.measured - self.truth - self.bias
        error = float(off.std(ddof=1) / math.sqrt(len(off)))
        allowed = 3 * error + self.slack
        return {
            "name": self.name,
            "measured": float(self.measured.mean()),
            "truth": float(self.truth.mean()),
            "bias": float(np.mean(self.bias)),
            "difference": float(off.mean()),
            "error": error,
            "allowed": allowed,
            "within": bool(abs(off.mean()) <= allowed),
            "uncorrected": self.uncorrected,
            "noise_std": self.noise_std,
        }


@dataclass(frozen=True, kw_only=True)
class Secant:
    """S3 along runs of DP-SAT; the truth is the curvature along each step that was asked about."""

    radius: float
    momentum: float
    lr: float

    def __call__(self, gradient: Watched, settings: Settings) -> Probe:
        runs = [self._run(gradient, settings, run) for run in range(settings.probe_runs)]
        measured, truth, correction = (np.array(column) for column in zip(*runs, strict=True))
        return Probe(
            name=f"S3, radius {self.radius:g}, momentum {self.momentum:g}, lr {self.lr:g}",
            measured=measured,
            truth=truth,
            slack=ALLOWED * float(np.abs(correction).mean()),
            uncorrected=float((measured - correction).mean()),
        )

    def _run(self, gradient: Watched, settings: Settings, run: int) -> tuple[float, float, float]:
        """Means over one run of the reading, of the curvature along the way, and of c D s^2 / ||d||^2."""
        method = sf.methods.Secant(sf.methods.SAT(self.radius), lr=self.lr)
        plan = settings.plan(method, steps=settings.probe_steps, lr=self.lr, momentum=self.momentum)
        start = stationary_start(gradient.problem, settings, run)
        stands = list(walk(plan, start, gradient, SeededNoise(1000 + run)))
        points = np.concatenate([stand.state.point["w"].numpy() for stand in stands])
        answers = np.concatenate([stand.state.answer["w"].numpy() for stand in stands])
        moved = np.diff(points, axis=0)
        entered = self.radius / np.linalg.norm(answers[:-1], axis=1) - self.lr
        correction = entered * points.shape[1] * settings.noise_std**2 / (moved**2).sum(1)
        truth = gradient.problem.curvature(moved)
        return float(np.mean(stands[-1].state.readings)), float(truth.mean()), float(correction.mean())


@dataclass(frozen=True, kw_only=True)
class Antithetic:
    """S4 along runs of DP-SGD; the truth is u' H u for each pair's own u.

    The random order averages out the move between a pair's two steps, but for what the first probe itself adds to
    it, -+lr radius H u: that turns with the order, and leaves E[k] = u' H u + lr ||H u||^2 / 2.
    """

    radius: float
    lr: float
    every: int = 10

    def __call__(self, gradient: Watched, settings: Settings) -> Probe:
        pairs = [pair for run in range(settings.probe_runs) for pair in self._pairs(gradient, settings, run)]
        measured, truth, square, drift = (np.array(column) for column in zip(*pairs, strict=True))
        predicted = settings.noise_std / (math.sqrt(2) * self.radius)
        return Probe(
            name=f"S4, radius {self.radius:g}, lr {self.lr:g}",
            measured=measured,
            truth=truth,
            bias=self.lr * square / 2,
            noise_std=(float((measured - truth - drift).std(ddof=1)), predicted),
        )

    def _pairs(self, gradient: Watched, settings: Settings, run: int) -> Iterator[tuple[float, ...]]:
        """Each pair's reading, its u' H u and ||H u||^2, and what the move between its two steps adds."""
        method = sf.methods.Antithetic(
            method=sf.methods.DPSGD(), radius=self.radius, every=self.every, seed=run
        )
        plan = settings.plan(method, steps=settings.probe_steps, lr=self.lr)
        opened, before = None, stationary_start(gradient.problem, settings, run)
        for stand in walk(plan, before, gradient, SeededNoise(2000 + run)):
            state = stand.state
            if state.along is not None:
                opened = (state.along["w"].numpy()[0], -state.sign, (before - stand.params).numpy()[0])
            elif opened is not None:
                along, first_sign, moved = opened
                unit = along / np.linalg.norm(along)
                turned = gradient.problem.gradient(unit)
                drift = first_sign * float(turned @ moved) / (2 * self.radius)
                yield state.readings[-1], float(turned @ unit), float(turned @ turned), drift
                opened = None
            before = stand.params


PROBES = (
    # With momentum the learning rate is a tenth: at 1 the climb, a step late, would swing the top direction up.
    *(Secant(radius=r, momentum=m, lr=lr) for r in (0.0, 0.5) for m, lr in ((0.0, 1.0), (0.9, 0.1))),
    *(Antithetic(radius=r, lr=lr) for r, lr in ((0.5, 1.0), (2.0, 1.0), (2.0, 0.1))),
)


def everything(settings: Settings, console: Console) -> tuple[Spread, list[Probe], float]:
    """The spread, all probes, and the longest gradient of them all."""
    gradient = Watched(quadratic(settings.seed))
    with toy_command.bar(console) as progress:
        count = settings.burn + settings.steps + 1
        steps = spread(gradient.problem, settings, gradient)
        *_, found = progress.track(steps, total=count, description="spread of SGD")
        probes = [probe(gradient, settings) for probe in progress.track(PROBES, description="curvature")]
    assert found is not None
    return found, probes, gradient.longest


def told(result: dict[str, Any]) -> str:
    """The tables."""
    clip = result["settings"]["clip_norm"]
    unclipped = f"The longest gradient was {result['longest_gradient']:.2f}; the clip norm is {clip:g}."
    return "\n\n".join([spread_table(result["spread"]), probe_table(result["probes"]), unclipped])


def spread_table(summary: dict[str, Any]) -> str:
    """Markdown, and a line on all directions."""
    rows = [
        (
            f"{g['low']:.4g}" if g["directions"] == 1 else f"{g['low']:.4f} ... {g['high']:.4f}",
            str(g["directions"]),
            f"{g['measured']:.6f}",
            f"{g['predicted']:.6f}",
            f"{g['ratio']:.4f}",
            f"{g['error']:.4f}",
            f"{g['z']:+.2f}",
        )
        for g in summary["groups"]
    ]
    head = ("eigenvalue", "directions", "variance measured", "predicted", "ratio", "standard error", "z")
    line = (
        f"Of {summary['directions']} directions {summary['beyond_3']} have |z| > 3 (the largest: "
        f"{summary['largest_z']:.2f}); the mean of z^2 is {summary['mean_square_z']:.3f}, where 1 is expected."
    )
    return f"{toy_command.markdown(head, rows)}\n\n{line}"


def probe_table(summaries: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    rows = []
    for one in summaries:
        plain = "" if one["uncorrected"] is None else f"{one['uncorrected']:.4f}"
        noise = "" if one["noise_std"] is None else "{:.4f} / {:.4f}".format(*one["noise_std"])
        keys = ("measured", "truth", "bias", "difference", "error", "allowed")
        numbers = [f"{one[key]:.5f}" for key in keys]
        rows.append((one["name"], *numbers, "yes" if one["within"] else "NO", plain, noise))
    head = ("estimator", "mean reading", "curvature", "known bias", "difference", "standard error", "allowed")
    return toy_command.markdown((*head, "within", "without correction", "noise measured / predicted"), rows)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, or ``words`` in its place."""
    parser = toy_command.parser(__doc__ or "")
    parser.add_argument("--seed", type=int, default=0, help="of problem and noise (default: %(default)s)")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run; 0 if it ended, 130 if it was interrupted, 1 if something is wrong."""
    given = arguments(words)
    less = {"chains": 8, "burn": 300, "steps": 300, "probe_runs": 4, "probe_steps": 60} if given.quick else {}
    settings = Settings(seed=given.seed, **less)

    def work(console: Console) -> str:
        if not given.no_figures:
            toy_command.check_figures()
        found, probes, longest = everything(settings, console)
        result = {
            "settings": {**asdict(settings), "noise_std": settings.noise_std},
            "longest_gradient": longest,
            "spread": found.summary(),
            "probes": [probe.summary() for probe in probes],
        }
        toy_command.keep(given.out, "toy_quadratic.json", result)
        if not given.no_figures:
            import toy_figures

            toy_figures.spread(given.out, found)
        return json.dumps(result) if given.json else told(result)

    return toy_command.run(work)


if __name__ == "__main__":
    sys.exit(main())
