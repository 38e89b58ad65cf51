"""What a row of a paper's table is here: a recipe for each arm, with the published number beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from saltflat.methods import DPLIS
from saltflat.recipes import Recipe, read

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Published:
    """A published test accuracy in percent, and its printed spread; None where the paper prints none."""

    accuracy: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.accuracy:.2f}" + ("" if self.spread is None else f" ± {self.spread:.2f}")


@dataclass(frozen=True)
class Arm:
    """One method of a row: a shipped recipe, and other entries of it by their dotted keys.

    Args:
        name: What it is called on the command line.
        title: What the page calls it.
        recipe: The name of a shipped recipe, or a file.
        changes: Other entries of that recipe.
        published: What the paper prints for it; None for our own controls.
    """

    name: str
    title: str
    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    published: Published | None = None

    def made(self, seed: int) -> Recipe:
        """The recipe of a run; DPLIS's jitter, which is public, follows the seed of the first weights."""
        recipe = read(self.recipe, {**self.changes, "seed": seed})
        stages = (
            replace(stage, method=replace(stage.method, seed=seed))
            if isinstance(stage.method, DPLIS)
            else stage
            for stage in recipe.phase
        )
        return replace(recipe, phase=tuple(stages))


@dataclass(frozen=True)
class Row:
    """Arms that are compared on one data set, with one network and one epsilon.

    Args:
        name: What it is called on the command line.
        title: What the page calls it.
        source: Where the published numbers stand.
        arms: In the order in which they are run. The first one is what the others are compared with.
        same_network: Whether the published numbers are of this very network, so that they can be compared.
        baseline: The arm that the published differences are to; the first one if left out.
        parts: What a gain is made of: words, the arm with it, the arm without it.
        minutes: What a run takes on one thread of an otherwise idle processor, as far as known before any run.
        seeds: Of the first weights.
    """

    name: str
    title: str
    source: str
    arms: tuple[Arm, ...]
    minutes: float
    same_network: bool = True
    baseline: str = ""
    parts: tuple[tuple[str, str, str], ...] = ()
    seeds: Sequence[int] = SEEDS

    def arm(self, name: str) -> Arm:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True)
class Paper:
    """A paper and its rows.

    Args:
        name: What it is called on the command line.
        title: Authors, title, place and year.
        rows: In the order in which they are run.
    """

    name: str
    title: str
    rows: tuple[Row, ...]


def phase(
    method: Any, epochs: int, lr: Any, *, clip_norm: float = 0.1, portion: float | None = None
) -> dict[str, Any]:
    """A phase of a recipe, by SGD with momentum 0.9 as the DP-SAT and SAI papers train."""
    found = {
        "epochs": epochs,
        "method": method,
        "clip_norm": clip_norm,
        "optimizer": {"SGD": {"lr": lr, "momentum": 0.9}},
    }
    return found if portion is None else {**found, "portion": portion}
