"""One private step on a small model, with every knob at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from reference import FixedNoise, Tree, trained
from torch import Tensor, nn

from saltflat import Phase, Plan, Running, Safeguards, per_example, supervised
from saltflat.core.ask import Ask, Release
from saltflat.core.contribution import Private, chunks_of
from saltflat.data import TensorUnits
from saltflat.methods import DPSGD
from saltflat.optimizers import SGD

CRITERION = nn.CrossEntropyLoss(reduction="none")


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)
    ).double()


def examples(count: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(count, 4, generator=g, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=g)


def phase(**changes: Any) -> Phase:
    given = {
        "method": DPSGD(),
        "steps": 5,
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "optimizer": SGD(lr=0.1),
    }
    return Phase(**{**given, **changes})


def plan(*phases: Phase, rate: float = 0.5, size: int = 12) -> Plan:
    return Plan(phases=phases or (phase(),), rate=rate, size=size)


def ask_about(
    model: nn.Module,
    data: Sequence[Tensor],
    *,
    clip_norm: float = 1.0,
    noise_multiplier: float = 0.0,
    most: int = 100,
    noise: Any = None,
    loss: Any = None,
) -> Ask:
    """A door to all of ``data``; expected_units is 1, so the answer is the noisy sum."""
    units = TensorUnits(tuple(data))
    contribution = per_example(model, loss or supervised(CRITERION))
    release = Release(
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        expected_units=1.0,
        noise=noise or FixedNoise(),
    )
    return Ask(chunks_of(Private(contribution, units, units.count), np.arange(units.count), most), release)


def point_of(model: nn.Module) -> Tree:
    return trained(model)


def beside(**given: Any) -> dict[str, Any]:
    """What goes to `train` and `fit` beside plan and data, told apart by name: safeguards, and how to run."""
    guards = {name: given.pop(name) for name in ("noise", "sampling", "meter") if name in given}
    return {"safeguards": Safeguards(**guards), "running": Running(**given)}


def by_number(self: Any, points_of: Any, weights: Any, groups: int | None) -> Iterator[Any]:
    """Labels go with units: the same for a unit in both of two neighbouring runs, as chance may well have it."""
    labels = self.drawn if groups is None else self.drawn % groups
    for label in np.unique(labels):
        yield from replace(self, drawn=self.drawn[labels == label])(points_of(int(label)), weights)
