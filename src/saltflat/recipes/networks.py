"""The networks that a recipe can name: the public functions of `saltflat.models`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from torch import nn

from saltflat import models
from saltflat.errors import SettingError
from saltflat.recipes.wrong import known_or


@dataclass(frozen=True)
class Network:
    """A network of `saltflat.models` that is not made yet: the function's name, and its settings.

    >>> str(Network("mlp_mnist"))
    'mlp_mnist'
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in networks():
            raise SettingError(f"there is no model {self.name!r}; {known_or(self.name, networks())}")

    def __str__(self) -> str:
        return self.name

    def made(self) -> nn.Module:
        """The network, with weights that torch's generator draws."""
        function = networks()[self.name]
        bound = inspect.signature(function).bind_partial()
        bound.arguments.update(self.settings)  # by name, those too that a function takes as *several
        bound.apply_defaults()
        try:
            return function(*bound.args, **bound.kwargs)
        except SettingError:
            raise
        except (RuntimeError, MemoryError, ValueError, TypeError, ArithmeticError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SettingError(f"{self.name} cannot be made with these settings: {first}") from None


def networks() -> dict[str, Callable[..., nn.Module]]:
    """The public networks: functions that return one, or do not say what they return."""
    public = {name: getattr(models, name) for name in models.__all__}
    return {name: each for name, each in public.items() if inspect.isfunction(each) and _gives_module(each)}


def _gives_module(function: Any) -> bool:
    gives = get_type_hints(function).get("return", nn.Module)
    return isinstance(gives, type) and issubclass(gives, nn.Module)
