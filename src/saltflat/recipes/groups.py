"""Which public classes may stand where a field is declared so, and what settings they have.

Everything here is read from the library itself: the public names of its groups, and the declarations of their fields.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from saltflat import clipping, data, features, federated, methods, optimizers, schedules, synthesis, warmup
from saltflat.clipping import Clip
from saltflat.core import draw
from saltflat.core.draw import Draw
from saltflat.data.augment import Transform
from saltflat.door import Method, PublicGradients
from saltflat.features.stages import Stage
from saltflat.federated.local import Local
from saltflat.federated.partition import Divide
from saltflat.optimizers import Optimizer
from saltflat.synthesis import Diffusion, Process
from saltflat.warmup import WarmUp

GROUPS: tuple[tuple[Any, Any, str], ...] = (  # what a field is declared as, who serves it, what is looked for
    (Method, methods, "method"),
    (Optimizer, optimizers, "optimizer"),
    (Clip, clipping, "clipping rule"),
    (Callable[[int], float], schedules, "schedule"),
    (Callable[[Any], bool], methods, "rule that ends a phase"),
    (Transform, data, "change of images"),
    (Stage, features, "stage of features"),
    (Process, synthesis, "random process"),
    (Diffusion, synthesis, "diffusion"),
    (WarmUp, warmup, "warm-up"),
    (PublicGradients, warmup, "public examples"),
    (Draw, draw, "way to draw units"),
    (Divide, federated, "way to divide examples"),
    (Local, federated, "local training"),
)
PYTHON_ONLY = {"python_only": True}  # metadata of a field that no file has


def settings_of(maker: Any) -> dict[str, tuple[Any, bool]]:
    """The settings of a class or a function: what each is declared as, and whether it must be given."""
    hints = get_type_hints(maker)
    if dataclasses.is_dataclass(maker):
        own = [f for f in dataclasses.fields(maker) if f.init and not f.metadata.get("python_only")]
        none = dataclasses.MISSING
        return {f.name: (hints[f.name], f.default is none and f.default_factory is none) for f in own}
    found = {}
    for p in inspect.signature(maker).parameters.values():
        several = p.kind == p.VAR_POSITIONAL
        hint = hints.get(p.name, Any)
        found[p.name] = (tuple[hint, ...] if several else hint, p.default is p.empty and not several)  # type: ignore[valid-type]
    return found


def choices(declared: Any) -> dict[str, type]:
    """The public classes that may stand where a field is declared so."""
    if declared is Any:
        return {name: each for place, _, _ in GROUPS for name, each in choices(place).items()}
    if dataclasses.is_dataclass(declared) and isinstance(declared, type):
        return {declared.__name__: declared}
    group = next((group for each, group, _ in GROUPS if _same(each, declared)), None)
    found = {} if group is None else _public(group)
    return {name: each for name, each in found.items() if fits(each, declared)}


def is_public(cls: type) -> bool:
    """Whether a class can be found by its name."""
    return any(_public(group).get(cls.__name__) is cls for _, group, _ in GROUPS)


def _public(group: Any) -> dict[str, type]:
    found = {name: getattr(group, name) for name in group.__all__}
    is_value = lambda each: isinstance(each, type) and dataclasses.is_dataclass(each)
    return {name: each for name, each in found.items() if is_value(each)}


def fits(cls: type, declared: Any) -> bool:
    """Whether a class has what is declared: a protocol's members, or a call, with as many arguments each."""
    if get_origin(declared) is Callable:
        return _can_take(cls.__call__, 1 + len(get_args(declared)[0]))
    protocol = vars(get_origin(declared) or declared)
    wanted = {name: member for name, member in protocol.items() if not name.startswith("_")}
    return all(
        hasattr(cls, name)
        and (not inspect.isfunction(member) or _can_take(getattr(cls, name), *_given(member)))
        for name, member in wanted.items()
    )


def _given(function: Any) -> tuple[int, list[str]]:
    """How many arguments a protocol's function is called with, the value itself included, and which by name."""
    found = inspect.signature(function).parameters.values()
    named = [p.name for p in found if p.kind == p.KEYWORD_ONLY]
    return len(found) - len(named), named


def _can_take(function: Any, count: int, named: Sequence[str] = ()) -> bool:
    """Whether a function of the class takes so many arguments, the value itself included, and these by name."""
    if not inspect.isfunction(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * count, **dict.fromkeys(named))
    except TypeError:
        return False
    return True


def _same(known: Any, declared: Any) -> bool:
    """Whether two declarations are one: of a callable with its arguments, of a protocol whatever its parameters."""
    if get_origin(known) is Callable:
        return get_origin(declared) is Callable and get_args(known) == get_args(declared)
    return known is (get_origin(declared) or declared)


def kind_of(declared: Any) -> str:
    """What is looked for where a field is declared so, in words."""
    return next((words for each, _, words in GROUPS if _same(each, declared)), "value")
