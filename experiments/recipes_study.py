"""What flat minima add to good geometry: every method on each of five networks, at equal tuning.

Every method has three tries on MNIST at epsilon 1, DP-SGD too, and the best of them runs on Fashion-MNIST with three
seeds. What a method does not try stands at what DP-SGD's tries chose. Batches and numbers of steps are small for all
alike, so that a run takes seconds: 1.5 to 2 epochs, where the papers train for 30 to 40.

Not all of it is what the papers do. `SAT(drift=4)` without `AntiNoise` is half of the public DP-SAT code: it asks at
several climbs, and the weights keep none of them. DPLIS's jitter is a fifth or less of its paper's. Weight
multiplicity climbs on white noise, and not on images. The papers' own settings are in `experiments/papers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import results

Changes = dict[str, Any]  # of a recipe that ships
Wanted = tuple[str, Changes, int]  # a recipe, its changes, a seed

TRIED, COMPARED = "best-mnist", "best-fashion-mnist"
SEEDS = (0, 1, 2)
LR = "phase.0.optimizer.SGD.lr"
MAPS = [  # the scattering alone, whitened by channel
    "Scattering",
    {"Grouped": {"groups": 27}},
    {"Whitened": {"power": 0.5, "floor": 1.0, "channels_only": True}},
    "RowScaled",
]


@dataclass(frozen=True)
class Ground:
    """What a method stands on: a network, what it sees, and between which numbers its tries are."""

    title: str
    changes: Changes  # of both recipes, whatever the method
    steps: int = 90
    batch: int = 1024
    lrs: tuple[float, ...] = (2.0, 4.0, 8.0)
    radii: tuple[float, ...] = (0.01, 0.03, 0.1)
    copies: int = 4  # of DPLIS and of weight multiplicity
    controls: bool = False  # whether what the papers left out runs here as well

    @property
    def common(self) -> Changes:
        return {**self.changes, "batch_size": self.batch, "epsilon": 1.0, "phase.0.steps": self.steps}


GROUNDS = (
    Ground(
        "a linear model on scattering features",
        {"features": MAPS},
        lrs=(4.0, 8.0, 16.0),
        radii=(0.003, 0.01, 0.03),  # its weights' length is about 1 in the end
        controls=True,
    ),
    Ground(
        "a perceptron with 64 hidden units on the same features",
        {"features": MAPS, "model": {"mlp": {"width": 64}}},
    ),
    Ground(
        "a convolution and a linear layer on the same features",
        {"features": MAPS, "model": {"maps_cnn": {}}},
    ),
    Ground(
        "the tanh network of 26,010 parameters on images",
        {"features": [], "model": {"tanh_cnn_mnist": {}}},
        steps=120,
        lrs=(1.0, 2.0, 4.0),
        copies=2,
    ),
    Ground(
        "the same network, its layers but the last warmed up on dead leaves",
        {
            "features": [],
            "model": {"tanh_cnn_mnist": {}},
            "warmup": [{"Contrast": {"images": 3000, "epochs": 10, "lr": 0.1}}],
        },
        steps=120,
        lrs=(1.0, 2.0, 4.0),
        copies=2,
    ),
)


def plain(ground: Ground) -> list[Changes]:
    """DP-SGD: its tries choose the learning rate that all others start from."""
    return [{LR: lr} for lr in ground.lrs]


def methods(ground: Ground, lr: float) -> dict[str, list[Changes]]:
    """Three tries of every other method, around this learning rate."""
    noise = {"public": {"name": "noise"}, "copies": ground.copies}
    found = {
        "DP-SAT": _climbs(ground, lr, "SAT"),
        "DP-SAM": _climbs(ground, lr, "SAM"),
        "SAI": _plans(ground, lr, "SAT", portions=(0.9, 0.1)),
        "DPLIS, mean": _smoothed(ground, lr, total=False),
        "weight multiplicity on white noise": _climbs(ground, lr, "WeightMultiplicity", **noise),
    }
    controls = {
        "DPLIS, sum": _smoothed(ground, lr, total=True),
        "DP-SAT asked at four climbs": _climbs(ground, lr, "SAT", drift=4),
        "SAI's learning rates, no SAM": _plans(ground, lr, "DPSGD", portions=(0.9, 0.1)),
        "SAM first, no reallocation": _plans(ground, lr, "SAT", portions=None),
    }
    return {**found, **controls} if ground.controls else found


def _climbs(ground: Ground, lr: float, name: str, **more: Any) -> list[Changes]:
    """A method that climbs, at three radii."""
    return [{LR: lr, "phase.0.method": {name: {"radius": radius, **more}}} for radius in ground.radii]


def _smoothed(ground: Ground, lr: float, *, total: bool) -> list[Changes]:
    """DPLIS; the sum of copies' gradients is clipped anyway, so that it wants no other learning rate."""
    own = {"lr": lr, "copies": ground.copies, "total": total}
    return [{LR: lr, "phase.0.method": {"DPLIS": {**own, "reach": reach}}} for reach in (0.3, 1.0, 3.0)]


def _plans(ground: Ground, lr: float, first: str, *, portions: tuple[float, float] | None) -> list[Changes]:
    """Two phases, the second at three learning rates; ``portions`` of the budget, or equal noise."""
    method: Any = {first: {"radius": ground.radii[1]}} if first == "SAT" else first
    tried = [lr, lr / 4, lr / 20]
    if portions is None:
        return [{"phase": _two_phases(ground, method, lr, second)} for second in tried]
    return [
        {"phase": _two_phases(ground, method, lr, second, portions), "budget_split": "joint_ratio"}
        for second in tried
    ]


def _two_phases(
    ground: Ground, first: Any, lr: float, second: float, portions: tuple[float, ...] = ()
) -> list[Changes]:
    """Three eighths of the steps with one method, then DP-SGD at another learning rate."""
    begin = round(ground.steps * 3 / 8)
    parts = zip((begin, ground.steps - begin), (first, "DPSGD"), (lr, second), strict=True)
    phases = [
        {
            "steps": steps,
            "method": method,
            "clip_norm": 0.1,
            "optimizer": {"SGD": {"lr": rate, "momentum": 0.9}},
        }
        for steps, method, rate in parts
    ]
    return (
        [{**phase, "portion": each} for phase, each in zip(phases, portions, strict=True)]
        if portions
        else phases
    )


def kept(wanted: Wanted, found: Sequence[results.Result]) -> results.Result | None:
    """The finished run with these settings, if there is one."""
    settings = dict(zip(("recipe", "changes", "seed"), wanted, strict=True))
    return next((one for one in found if one["settings"] == settings), None)


def tries(ground: Ground, own: Sequence[Changes]) -> list[Wanted]:
    """A method's settings, on MNIST."""
    return [(TRIED, {**ground.common, **each}, 0) for each in own]


def best(ground: Ground, own: Sequence[Changes], found: Sequence[results.Result]) -> Changes | None:
    """The try that did best; None while one is missing."""
    done = [kept(each, found) for each in tries(ground, own)]
    if any(one is None for one in done):
        return None
    scores = [one["test_accuracy"] for one in done if one is not None]
    return own[scores.index(max(scores))]


def known_methods(ground: Ground, found: Sequence[results.Result]) -> dict[str, list[Changes]]:
    """Every method with its tries, as far as they are known: DP-SGD's come first."""
    own = plain(ground)
    first = best(ground, own, found)
    return {"DP-SGD": own} | ({} if first is None else methods(ground, first[LR]))


def studied(ground: Ground, read: Callable[[], Sequence[results.Result]]) -> Iterator[Wanted]:
    """All runs on one ground, in an order in which the next depends on finished ones, which ``read`` gives."""
    yield from tries(ground, plain(ground))
    for own in known_methods(ground, read()).values():
        yield from tries(ground, own)
    for seed in SEEDS:
        for own in known_methods(ground, read()).values():
            chosen = best(ground, own, read())
            if chosen is not None:
                yield COMPARED, {**ground.common, **chosen}, seed
