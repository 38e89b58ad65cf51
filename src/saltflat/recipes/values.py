"""The library's values as entries of a recipe, and back.

A value is written ``{Class = {its settings}}``, as deep as Python can; a class whose settings all have defaults may be
written as its name alone. Classes are found by name among the public names of the library's groups, and nowhere else;
which group serves a place follows from how the field is declared there, and so do the types of plain entries. So a new
class needs no line here, and no name in a file reaches anything else. A function of the user cannot be written down:
``{name = "mine"}`` stands for one that Python hands in.

This is done by hand because what the fields are declared as is beyond the libraries that convert tables to
dataclasses: cattrs, msgspec, pydantic and tyro know no value for a protocol such as `Method`, cattrs and msgspec none
for ``float | Callable``, and all of them take true for 1.0 or pass over a misspelt key unless told not to, class by
class; jsonargparse knows protocols, but imports whatever module a file names.
"""

from __future__ import annotations

import math
import numbers
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin

from saltflat.errors import SettingError
from saltflat.recipes.groups import choices, is_public, kind_of, settings_of
from saltflat.recipes.networks import Network, networks
from saltflat.recipes.toml import Keys
from saltflat.recipes.wrong import Wrong, known_or, shown

LARGEST = 3.4e38  # what weights and gradients are computed in ends there
SIMPLE = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}

# From a file


@dataclass(frozen=True)
class Spot:
    """Where in a document we are, and the functions that Python handed in."""

    keys: Keys = ()
    using: Mapping[str, Any] = field(default_factory=dict)

    def inside(self, *keys: object) -> Spot:
        return Spot((*self.keys, *map(str, keys)), self.using)

    def wrong(self, message: str) -> Wrong:
        return Wrong(self.keys, message)


def value_of(given: Any, declared: Any, spot: Spot) -> Any:
    """``given``, an entry of a document, as the value that a field declared so takes."""
    if isinstance(given, float) and math.isnan(given):
        raise spot.wrong("nan is no value of a setting")
    fitting = [each for each in options(declared) if takes(each, given)]
    option = next((each for each in fitting if _names(each, given)), next(iter(fitting), None))
    if option is None:
        raise spot.wrong(f"takes {described(declared)}; got {shown(given)}")
    if option is float:
        return _number(given, spot)
    if option in SIMPLE or (option is Any and not isinstance(given, dict)):
        return given
    if form(option) is list:
        return _list(given, option, spot)
    if option is Network:
        return _network(given, spot)
    if _is_plain(option):
        return made(option, given, spot)
    if form(option) is dict:
        (_, each) = get_args(option)
        return {name: value_of(value, each, spot.inside(name)) for name, value in given.items()}
    return _named(given, option, spot)


def _names(option: Any, given: Any) -> bool:
    """Whether an entry names a value that may stand where this is declared: of several, the one that is meant."""
    name = given if isinstance(given, str) else next(iter(given), None) if isinstance(given, dict) else None
    return form(option) is None and option not in (Any, Network) and name in choices(option)


def _number(given: float, spot: Spot) -> float:
    number = float(given)
    if LARGEST < abs(number) < math.inf:
        raise spot.wrong(f"takes a number that single precision holds, up to {LARGEST:g}; got {number:g}")
    return number


def options(declared: Any) -> list[Any]:
    """What a field takes: the members of a union, without None, which a file says by leaving the entry out."""
    union = get_origin(declared) in (Union, types.UnionType)
    return [each for each in (get_args(declared) if union else (declared,)) if each is not type(None)]


def takes(option: Any, given: Any) -> bool:
    """Whether an entry has the form of what is declared; what is in it is looked at later."""
    if option is Any:
        return True
    if option is float:
        return isinstance(given, (int, float)) and not isinstance(given, bool)
    if option in SIMPLE:
        return type(given) is option
    return isinstance(given, form(option) or (str, dict))


def form(option: Any) -> type | None:
    """Whether a list or a table of entries is declared; None for a value of the library, which has a name."""
    origin = get_origin(option)
    if isinstance(origin, type) and issubclass(origin, (Sequence, Mapping)):
        return list if issubclass(origin, Sequence) else dict
    return dict if _is_plain(option) else None


def described(declared: Any) -> str:
    """What a field takes, in words."""
    words = []
    for option in options(declared):
        if form(option):
            blocks = " of blocks under [[double brackets]]" if any(map(_is_plain, get_args(option))) else ""
            words.append("a table" if form(option) is dict else f"a list{blocks}")
        elif option is Network:
            words.append("the name of a model")
        elif option is Any or option in SIMPLE:
            words.append(SIMPLE.get(option, "any value"))
        else:
            words.append(", ".join(choices(option)) or 'a function of yours, {name = "..."}')
    return " or ".join(words)


def _list(given: list[Any], declared: Any, spot: Spot) -> Any:
    kinds = get_args(declared)
    if get_origin(declared) is not tuple or kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(given)
    if len(kinds) != len(given):
        raise spot.wrong(f"takes a list of {len(kinds)}; got {shown(given)}")
    both = enumerate(zip(given, kinds, strict=True))
    found = [value_of(each, kind, spot.inside(k)) for k, (each, kind) in both]
    return found if get_origin(declared) is list else tuple(found)


def _named(given: Any, declared: Any, spot: Spot) -> Any:
    """The value that a name and settings stand for, or the function that Python handed in."""
    if isinstance(given, dict) and given.keys() == {"name"}:
        return _handed_in(given["name"], spot)
    known = choices(declared)
    if not known:
        raise spot.wrong('is nothing that a file can hold: write {name = "mine"}, and hand it in from Python')
    name, settings = _tagged(given, spot)
    if name not in known:
        raise spot.wrong(f"there is no {kind_of(declared)} {name!r}; {known_or(name, known)}")
    return made(known[name], settings, spot.inside(name))


def _tagged(given: Any, spot: Spot) -> tuple[str, dict[str, Any]]:
    """``{SAT = {radius = 0.1}}`` as its two parts; ``"DPSGD"`` has no settings."""
    if isinstance(given, str):
        return given, {}
    if len(given) != 1:
        raise spot.wrong(f"takes one value, {{Class = {{settings}}}}; got {shown(given)}")
    ((name, settings),) = given.items()
    if not isinstance(settings, dict):
        raise spot.wrong(
            f"takes {{Class = {{settings}}}}; got {shown(settings)} in the place of {name}'s settings"
        )
    return name, settings


def _handed_in(name: Any, spot: Spot) -> Any:
    if not isinstance(name, str) or name not in spot.using:
        raise spot.wrong(
            f"{shown(name)} stands for a function, and a file holds no code: train from Python, and hand it in with "
            f"saltflat.recipes.read(file, using={{{shown(name)}: function}})"
        )
    return spot.using[name]


def _network(given: Any, spot: Spot) -> Network:
    name, settings = _tagged(given, spot)
    if name not in networks():
        raise spot.wrong(f"there is no model {name!r}; {known_or(name, networks())}")
    return Network(name, read_settings(networks()[name], settings, spot.inside(name)))


def made(maker: Any, settings: Mapping[str, Any], spot: Spot) -> Any:
    """What a class makes of its settings, each of the type that it declares; what it refuses itself is told as such."""
    read = read_settings(maker, settings, spot)
    try:
        return maker(**read)
    except Wrong as error:
        raise error.under(spot.keys) from None
    except (ValueError, ArithmeticError, TypeError) as error:
        first = str(error).split(" ", 1)[0]  # most refusals begin with the setting's name
        raise (spot.inside(first) if first in settings else spot).wrong(str(error)) from None


def read_settings(maker: Any, settings: Mapping[str, Any], spot: Spot) -> dict[str, Any]:
    """The settings by name, each as what it is declared as; unknown and missing ones are refused."""
    declared, called = settings_of(maker), getattr(maker, "CALLED", maker.__name__)
    for name in settings:
        if name not in declared:
            said = known_or(name, declared) if declared else "it has none"
            raise spot.inside(name).wrong(f"{called} has no such setting; {said}")
    missing = [name for name, (_, needed) in declared.items() if needed and name not in settings]
    if missing:
        said = "" if _is_plain(maker) else f"; write {{{called} = {{{missing[0]} = ...}}}}"
        raise spot.wrong(f"{called} needs {' and '.join(missing)}{said}")
    return {name: value_of(given, declared[name][0], spot.inside(name)) for name, given in settings.items()}


def _is_plain(option: Any) -> bool:
    """A part of a recipe itself: only one class can stand there, so its name is not written."""
    return isinstance(option, type) and hasattr(option, "CALLED")


# Into a file


def document_of(value: Any, using: Mapping[str, Any]) -> Any:
    """A value as an entry of a document, such that `value_of` gives it back; every setting is written out.

    >>> from saltflat.methods import DPSGD, Quantile
    >>> document_of(Quantile(DPSGD(), share=0.02), {})["Quantile"]["method"]
    'DPSGD'
    """
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, (tuple, list)):
        return [document_of(each, using) for each in value]
    if isinstance(value, Mapping):
        return {str(name): document_of(each, using) for name, each in value.items()}
    for own, each in using.items():
        if each is value:
            return {"name": own}
    if isinstance(value, Network):
        return {value.name: document_of(value.settings, using)} if value.settings else value.name
    if is_public(type(value)):
        name, settings = type(value).__name__, settings_document(value, using)
        return {name: settings} if settings else name
    if _is_plain(type(value)):
        return settings_document(value, using)
    raise SettingError(
        f"a recipe cannot hold {_short(value)}: it is neither a public value of saltflat nor handed in by name (using)"
    )


def settings_document(value: Any, using: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a value; None is said by leaving out."""
    found = {name: getattr(value, name) for name in settings_of(type(value))}
    return {name: document_of(each, using) for name, each in found.items() if each is not None}


def _short(value: Any) -> str:
    return getattr(value, "__qualname__", None) or f"a {type(value).__name__}"
