"""The library's door on a problem that has a formula: many units, all with the same known gradient.

Runs are the rows of one leaf, ``{"w": (runs, d)}``, so that a thousand of them cost little more than one. The clip, the
noise, the methods and the optimizers are the library's; only the gradient is given here. A climb takes a norm over
the whole tree, which would tie the runs together: `rows_apart` makes it one norm for each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saltflat.core.ask import Ask, Release
from saltflat.core.mechanism import Noise
from saltflat.core.plan import Plan
from saltflat.errors import SettingError
from saltflat.methods import sam, sat
from saltflat.privacy.noise import SeededNoise
from saltflat.tree import Tree

Gradient = Callable[[np.ndarray], np.ndarray]  # points (..., d) -> the gradient there, in the same shape


@dataclass(frozen=True)
class Copies:
    """The chunk of ``count`` units that have one gradient in each run, ``rows``: (runs, d)."""

    rows: Tensor
    count: int

    def norms(self) -> Tensor:
        """(runs,): what the clip sees of a unit in each run."""
        return torch.linalg.vector_norm(self.rows, dim=1)

    def weighted_sum(self, weights: Tensor) -> Tree:
        return {"w": (self.count * weights).unsqueeze(1) * self.rows}


@dataclass
class Drawn:
    """A noise source that hands out ``blocks`` (runs, questions, d), one question after the other.

    The Gaussians are the library's own (`draws`), made in one call for each run because that is faster.
    """

    blocks: Tensor
    private: bool = field(default=False, init=False)
    asked: int = field(default=0, init=False)

    def normal(self, like: Tree) -> Tree:
        self.asked += 1
        return {"w": self.blocks[:, self.asked - 1].clone()}  # whoever adds to it writes into it


def draws(seeds: Sequence[int], *, questions: int, width: int) -> Tensor:
    """(runs, questions, width): each run's own stream of `SeededNoise`, so a run is the same in any company."""
    like = {"w": torch.zeros(questions, width, dtype=torch.float64)}
    return torch.stack([SeededNoise(seed).normal(like)["w"] for seed in seeds])


def sample(gradient: Gradient, units: int) -> Callable[[Sequence[Tree], Sequence[float]], list[Copies]]:
    """What the door opens on: all ``units``, with the gradient combined over points before the clip."""

    def chunks(points: Sequence[Tree], weights: Sequence[float]) -> list[Copies]:
        at = np.stack([point["w"].numpy() for point in points])
        return [Copies(torch.from_numpy(np.tensordot(weights, gradient(at), axes=1)), units)]

    return chunks


@dataclass(frozen=True)
class Stand:
    """Where a walk stands after a step: the weights, and the method's state."""

    params: Tensor
    state: Any


def walk(plan: Plan, start: Tensor, gradient: Gradient, noise: Noise) -> Iterator[Stand]:
    """The plan from ``start`` (runs, d), step by step; every unit takes part in every step."""
    if plan.rate != 1:
        raise SettingError(f"a walk has every unit in every step: give the plan rate 1, not {plan.rate}")
    chunks, params = sample(gradient, plan.size), {"w": start}
    for phase in plan.phases:
        state, memory = phase.method.init(params), phase.optimizer.init(params)
        for step in range(phase.steps):
            release = Release(
                clip_norm=phase.clip_norm,
                noise_multiplier=phase.noise_at(step)[0],
                expected_units=plan.expected_units,
                noise=noise,
            )
            direction, state = phase.method.step(Ask(chunks, release), params, state)
            params, memory = phase.optimizer.step(params, direction, memory)
            yield Stand(params["w"], state)


def climb_rows(point: Tree, direction: Tree, radius: float) -> Tree:
    """`saltflat.tree.climb` for each row by itself."""
    length = torch.linalg.vector_norm(direction["w"], dim=1, keepdim=True) + 1e-16
    return {"w": point["w"] + direction["w"] * (radius / length)}


@contextmanager
def rows_apart() -> Iterator[None]:
    """Within it DP-SAM and DP-SAT climb row by row: each run then is what it would be alone, which a test shows."""
    whole = {module: module.climb for module in (sam, sat)}
    try:
        for module in whole:
            module.climb = climb_rows
        yield
    finally:
        for module, climb in whole.items():
            module.climb = climb


def ends(plan: Plan, starts: Tensor, gradient: Gradient, blocks: Tensor) -> np.ndarray:
    """Where every run of the plan ends: (runs, d), all walked side by side."""
    with rows_apart():
        *_, last = walk(plan, starts, gradient, Drawn(blocks))
    return last.params.numpy()
