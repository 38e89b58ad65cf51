"""The settings of a run, where they come from, and how they are written down again."""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from saltflat.errors import DataError, SettingError

METHODS = ("dp-sgd", "dp-sat", "dp-sam", "sai", "dplis")
OPTIMIZERS = ("sgd", "adam", "adambc")
CLIPPING = ("flat", "per-layer", "automatic", "quantile")
SPLITS = ("joint_ratio", "joint_share", "sequential")


def _say(default: Any, words: str) -> Any:
    return field(default=default, metadata={"help": words})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every setting of a run. *Guarantee*: none of them is read from the private data.

    >>> Recipe(method="dp-sgd", epsilon=1.0).clip_norm
    0.1
    >>> Recipe(method="dp-sdg")
    Traceback (most recent call last):
    saltflat.errors.SettingError: method is one of dp-sgd, dp-sat, dp-sam, sai, dplis; got 'dp-sdg'
    """

    data: str = _say("digits", "Data set: digits (embedded), mnist, fashion-mnist, cifar10, ...")
    model: str = _say("digits_cnn", "Network of saltflat.models: digits_cnn, tutorial_cnn, cnn_tanh, ...")
    size: int = _say(0, "Declared number of training examples; 0: the official one.")
    method: str = _say("dp-sat", f"One of {', '.join(METHODS)}.")
    epsilon: float = _say(3.0, "The epsilon that the run may spend, one example added or removed.")
    delta: float = _say(1e-5, "The delta that goes with it.")
    batch_size: int = _say(512, "Expected number of examples in a step (Poisson sampling).")
    epochs: float = _say(70.0, "Expected number of times that each example is used.")
    clip_norm: float = _say(0.1, "The most that one example moves a step's sum.")
    clipping: str = _say("flat", f"One of {', '.join(CLIPPING)}.")
    optimizer: str = _say("sgd", f"One of {', '.join(OPTIMIZERS)}.")
    lr: float = _say(2.0, "Learning rate.")
    momentum: float = _say(0.9, "Momentum of sgd.")
    radius: float = _say(0.03, "Climb of dp-sat, dp-sam and sai's first phase.")
    copies: int = _say(4, "Jittered copies of dplis.")
    reach: float = _say(10.0, "Jitter of dplis, in steps of noise.")
    first_share: float = _say(0.9, "Share of sai's first phase in the budget.")
    first_epochs: float = _say(0.0, "Epochs of sai's first phase; 0: a third of all.")
    second_lr: float = _say(0.1, "Learning rate of sai's second phase.")
    budget_split: str = _say("joint_ratio", f"How sai divides the budget: one of {', '.join(SPLITS)}.")
    views: int = _say(1, "Augmented views of each example.")
    crop: int = _say(0, "Pad by so many pixels and crop at random, for each view.")
    flip: bool = _say(False, "Mirror views at random.")
    ema: float = _say(0.0, "Decay of the running mean that the run ends with; 0: the last weights.")
    spare: int = _say(8, "Steps that crashes may waste before the budget is short.")
    physical: int = _say(512, "Most examples in memory at once; changes no result.")
    seed: int = _say(0, "Seed of the initial weights; noise and sampling are always secret.")

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            object.__setattr__(self, each.name, _typed(each.name, each.default, getattr(self, each.name)))
        for name, known in (
            ("method", METHODS),
            ("optimizer", OPTIMIZERS),
            ("clipping", CLIPPING),
            ("budget_split", SPLITS),
        ):
            if getattr(self, name) not in known:
                raise SettingError(f"{name} is one of {', '.join(known)}; got {getattr(self, name)!r}")
        for name in ("batch_size", "epochs", "views", "physical"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be above 0; got {getattr(self, name)}")
        for name in ("size", "spare", "crop", "first_epochs"):
            if not getattr(self, name) >= 0:
                raise SettingError(f"{name} must be 0 or more; got {getattr(self, name)}")
        if self.first_epochs >= self.epochs:
            raise SettingError(
                f"first_epochs is a part of all epochs; got {self.first_epochs} of {self.epochs}"
            )

    def but(self, changes: Mapping[str, Any]) -> Recipe:
        """The same recipe with other values for some settings."""
        known = [each.name for each in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise SettingError(f"a recipe has no setting {name!r}; {hint}")
        return dataclasses.replace(self, **dict(changes))

    def as_toml(self) -> str:
        """The recipe as a file that `read` takes.

        >>> Recipe().as_toml().splitlines()[0]
        'data = "digits"'
        """
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in dataclasses.asdict(self).items())


def _typed(name: str, default: Any, value: Any) -> Any:
    """The value in the type of the default; a whole number serves where a fraction may stand."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise SettingError(f"{name} is a {type(default).__name__}, like {default!r}; got {value!r}")
    return value


def parse(text: str, place: str) -> Recipe:
    """The recipe in a TOML text."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return Recipe().but(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{place} is no TOML: {error}") from None
    except SettingError as error:
        raise SettingError(f"{place}: {error}") from None


def read(path: str | Path) -> Recipe:
    """The recipe in a file, or the shipped one of this name."""
    file = Path(path)
    if not file.exists() and str(path) in names():
        return shipped(str(path))
    try:
        return parse(file.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); give a TOML file or one of "
            f"{', '.join(names())}"
        ) from None


def names() -> list[str]:
    """The shipped recipes."""
    files = resources.files("saltflat.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def shipped(name: str) -> Recipe:
    """A shipped recipe."""
    return parse(_text(name), f"the recipe {name}")


def about(name: str) -> str:
    """What a shipped recipe is for: the comment at its top."""
    return " ".join(line[1:].strip() for line in _text(name).splitlines() if line.startswith("#"))


def _text(name: str) -> str:
    if name not in names():
        raise SettingError(f"there is no recipe {name!r}; known are {', '.join(names())}")
    return (resources.files("saltflat.recipes") / f"{name}.toml").read_text(encoding="utf-8")
