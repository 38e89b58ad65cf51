"""saltflat: differentially private training in flat minima, at nearly the speed of plain training.

The public names. They are loaded when first used, so that the command line starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saltflat.core.check import check_model, without_batchnorm
    from saltflat.core.contribution import each_view, per_example, per_user, supervised
    from saltflat.core.frame import around, preconditioned
    from saltflat.core.mechanism import Automatic, PerLayer
    from saltflat.core.optim import EMA, SGD, Adam, AdamBC, AntiNoise, Torch
    from saltflat.core.plan import Phase, Plan, calibrate
    from saltflat.core.resume import Checkpoints
    from saltflat.core.sampling import DatasetUnits, TensorUnits
    from saltflat.core.schedule import Cosine, Linear, Piecewise
    from saltflat.core.train import Surroundings, train
    from saltflat.front import fit, make_private
    from saltflat.methods import (
        DPLIS,
        DPSGD,
        SAM,
        SAT,
        Antithetic,
        Gap,
        Plateau,
        PublicSharpness,
        Quantile,
        Rescaled,
        Secant,
    )
    from saltflat.plans import sai, split_budget

__version__ = "0.1.0"

_HOMES = {
    "core.check": ("check_model", "without_batchnorm"),
    "core.contribution": ("each_view", "per_example", "per_user", "supervised"),
    "core.frame": ("around", "preconditioned"),
    "core.mechanism": ("Automatic", "PerLayer"),
    "core.optim": ("EMA", "SGD", "Adam", "AdamBC", "AntiNoise", "Torch"),
    "core.plan": ("Phase", "Plan", "calibrate"),
    "core.resume": ("Checkpoints",),
    "core.sampling": ("DatasetUnits", "TensorUnits"),
    "core.schedule": ("Cosine", "Linear", "Piecewise"),
    "core.train": ("Surroundings", "train"),
    "front": ("fit", "make_private"),
    "methods": (
        "DPLIS",
        "DPSGD",
        "SAM",
        "SAT",
        "Antithetic",
        "Gap",
        "Plateau",
        "PublicSharpness",
        "Quantile",
        "Rescaled",
        "Secant",
    ),
    "plans": ("sai", "split_budget"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 (in the order of the rooms)
    "fit",
    "make_private",
    "DPSGD",
    "SAM",
    "SAT",
    "DPLIS",
    "Quantile",
    "Rescaled",
    "sai",
    "split_budget",
    "Plateau",
    "PublicSharpness",
    "Secant",
    "Antithetic",
    "Gap",
    "Phase",
    "Plan",
    "calibrate",
    "PerLayer",
    "Automatic",
    "Piecewise",
    "Linear",
    "Cosine",
    "train",
    "Surroundings",
    "Checkpoints",
    "per_example",
    "per_user",
    "each_view",
    "supervised",
    "TensorUnits",
    "DatasetUnits",
    "SGD",
    "Adam",
    "AdamBC",
    "AntiNoise",
    "Torch",
    "EMA",
    "around",
    "preconditioned",
    "check_model",
    "without_batchnorm",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'saltflat' has no attribute {name!r}")
    return getattr(import_module(f"saltflat.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
