"""Version 1 of recipes: a flat list of 27 settings, which every run wrote down whole. Here they become version 2.

*Guarantee*: what comes out has the plan, the network, the views and the seed of what goes in, to the digit, so that a
run goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from saltflat.recipes.wrong import Wrong, known_or, shown

DEFAULTS: dict[str, Any] = {  # what a setting was that a recipe left out
    **{"data": "digits", "model": "digits_cnn", "size": 0, "method": "dp-sat"},
    **{"epsilon": 3.0, "delta": 1e-5, "batch_size": 512, "epochs": 70.0},
    **{"clip_norm": 0.1, "clipping": "flat", "optimizer": "sgd", "lr": 2.0, "momentum": 0.9},
    **{"radius": 0.03, "copies": 4, "reach": 10.0},
    **{"first_share": 0.9, "first_epochs": 0.0, "second_lr": 0.1, "budget_split": "joint_ratio"},
    **{"views": 1, "crop": 0, "flip": False, "ema": 0.0},
    **{"spare": 8, "physical": 512, "seed": 0},
}
CHOICES = {
    "method": ("dp-sgd", "dp-sat", "dp-sam", "sai", "dplis"),
    "optimizer": ("sgd", "adam", "adambc"),
    "clipping": ("flat", "per-layer", "automatic", "quantile"),
}

Sizes = Callable[[str], int]  # a data set's name -> its official number of training examples


def upgraded(given: Mapping[str, Any], size_of: Sizes) -> dict[str, Any]:
    """The tables of version 2 that mean the same.

    >>> upgraded({"method": "dp-sgd", "epochs": 3}, lambda data: 1437)["phase"][0]["optimizer"]
    {'SGD': {'lr': 2.0, 'momentum': 0.9}}
    """
    flat = {**DEFAULTS, **{name: _typed(name, value) for name, value in given.items() if name != "version"}}
    _check(flat)
    same = ("data", "model", "epsilon", "delta", "batch_size", "budget_split", "views", "spare")
    whole: dict[str, Any] = {"version": 2, **{name: flat[name] for name in (*same, "physical", "seed")}}
    crop, flip = [{"PadCrop": {"padding": flat["crop"]}}], ["Flip"]
    whole["augment"] = (crop if flat["crop"] else []) + (flip if flat["flip"] else [])
    optional = {"size": flat["size"] or None, "ema": {"EMA": {"decay": flat["ema"]}} if flat["ema"] else None}
    whole |= {name: value for name, value in optional.items() if value is not None}
    whole["phase"] = _two_phases(flat, size_of) if flat["method"] == "sai" else [_phase(flat)]
    return whole


def _typed(name: str, value: Any) -> Any:
    """The value in the type of the default; a whole number serves where a fraction may stand."""
    if name not in DEFAULTS:
        said = known_or(name, DEFAULTS)
        raise Wrong((name,), f"a recipe without a version has no such setting; {said} (or write version = 2)")
    default = DEFAULTS[name]
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise Wrong((name,), f"is a {type(default).__name__}, like {default!r}; got {shown(value)}")
    return value


def _check(flat: Mapping[str, Any]) -> None:
    """What version 1 checked; the rest is for the values that it becomes."""
    for name, known in CHOICES.items():
        if flat[name] not in known:
            raise Wrong((name,), f"is one of {', '.join(known)}; got {flat[name]!r}")
    for name in ("size", "spare", "crop", "first_epochs"):
        if not flat[name] >= 0:
            raise Wrong((name,), f"must be 0 or more; got {flat[name]}")
    for name in ("batch_size", "epochs"):
        if not 0 < flat[name] < math.inf:
            raise Wrong((name,), f"must be above 0, and finite; got {flat[name]}")
    if flat["first_epochs"] >= flat["epochs"]:
        raise Wrong(
            ("first_epochs",), f"is a part of all epochs; got {flat['first_epochs']} of {flat['epochs']}"
        )


def _two_phases(flat: Mapping[str, Any], size_of: Sizes) -> list[dict[str, Any]]:
    """SAI in steps: those of the second phase are what the first leaves of all, which epochs would round anew."""
    rate = flat["batch_size"] / (flat["size"] or size_of(flat["data"]))
    steps = max(1, round(flat["epochs"] / rate))
    first = round((flat["first_epochs"] or flat["epochs"] / 3) / rate)
    if not 1 <= first < steps:
        raise Wrong(
            ("first_epochs",), f"sai needs a step in each of its phases; got {first} of {steps} in the first"
        )
    plain = {**flat, "method": "dp-sgd", "lr": flat["second_lr"]}
    portions = (flat["first_share"], 1 - flat["first_share"])
    parts = zip((flat, plain), (first, steps - first), portions, strict=True)
    return [
        {"steps": count, "portion": portion, **{k: v for k, v in _phase(each).items() if k != "epochs"}}
        for each, count, portion in parts
    ]


def _phase(flat: Mapping[str, Any]) -> dict[str, Any]:
    method: Any = {
        "dp-sgd": "DPSGD",
        "dp-sat": {"SAT": {"radius": flat["radius"]}},
        "dp-sam": {"SAM": {"radius": flat["radius"]}},
        "sai": {"SAT": {"radius": flat["radius"]}},
        "dplis": {"DPLIS": {"lr": flat["lr"], "copies": flat["copies"], "reach": flat["reach"]}},
    }[flat["method"]]
    return {
        "epochs": flat["epochs"],
        "method": {"Quantile": {"method": method}} if flat["clipping"] == "quantile" else method,
        "clip_norm": {
            "per-layer": {"PerLayer": {"bounds": flat["clip_norm"]}},
            "automatic": {"Automatic": {"bound": flat["clip_norm"]}},
        }.get(flat["clipping"], flat["clip_norm"]),
        "optimizer": {
            "sgd": {"SGD": {"lr": flat["lr"], "momentum": flat["momentum"]}},
            "adam": {"Adam": {"lr": flat["lr"]}},
            "adambc": {"AdamBC": {"lr": flat["lr"]}},
        }[flat["optimizer"]],
    }
