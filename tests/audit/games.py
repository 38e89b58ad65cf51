"""Plans to audit, and sources that repeat themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from saltflat import Phase, Plan, Safeguards
from saltflat.methods import DPSGD
from saltflat.optimizers import SGD
from saltflat.privacy import SeededNoise


def plan(*, noise: float = 10.0, steps: int = 100, rate: float = 1.0, **settings: Any) -> Plan:
    """Without settings: every unit in 100 steps at noise 10, epsilon 4.38 at delta 1e-5."""
    given = {"method": DPSGD(), "clip_norm": 1.0, "optimizer": SGD(lr=1.0), **settings}
    return Plan(phases=(Phase(steps=steps, noise_multiplier=noise, **given),), rate=rate, size=100)


def quick(**settings: Any) -> Plan:
    """The same epsilon in 4 steps."""
    return plan(noise=2.0, steps=4, **settings)


def seeded(seed: int = 0) -> Safeguards:
    return Safeguards(noise=SeededNoise(seed), sampling=np.random.default_rng(seed))
