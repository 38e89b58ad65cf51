"""TOML as plain tables and lists, and back; what cannot be a recipe is refused before anything looks inside."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from saltflat.errors import DataError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Keys = tuple[str, ...]  # the way to an entry from the top; places in a list are counted from "0"

LONGEST = 1 << 20  # letters; a recipe has some hundreds
DEEPEST = 40  # tables and lists inside each other; the deepest method known has some ten
_WHOLE = range(-(2**63), 2**63)  # TOML's whole numbers
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def loads(text: str) -> dict[str, Any]:
    """The tables of a TOML text; DataError for anything else, however it was made.

    >>> loads("phase = [{steps = 3}]")
    {'phase': [{'steps': 3}]}
    """
    if len(text) > LONGEST:
        raise DataError(f"it is longer than {LONGEST} letters, which no recipe is")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise DataError(f"its tables are nested more than {DEEPEST} deep") from None
    except ValueError as error:
        raise DataError(f"it is no TOML: {error}") from None
    _check_size(table)
    return table


def _check_size(table: dict[str, Any]) -> None:
    """Refuse what is nested too deep, without recursion, and numbers that TOML does not have."""
    left: list[tuple[Any, int]] = [(table, 0)]
    while left:
        value, depth = left.pop()
        if depth > DEEPEST:
            raise DataError(f"its tables are nested more than {DEEPEST} deep")
        if isinstance(value, int) and value not in _WHOLE:
            raise DataError("it holds a whole number of more than 64 bits")
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(each, depth + 1) for each in inside]


def keys_of(dotted: str) -> Keys:
    """The keys in a dotted key, as TOML writes it.

    >>> keys_of('phase.0.clip_norm.PerLayer.bounds."body.0"')
    ('phase', '0', 'clip_norm', 'PerLayer', 'bounds', 'body.0')
    """
    found: list[str] = []
    inside: Any = loads(f"{dotted} = 0")
    while isinstance(inside, dict) and len(inside) == 1:
        ((name, inside),) = inside.items()
        found.append(name)
    if inside != 0 or "\n" in dotted:
        raise DataError(f"{dotted!r} is no key, such as phase.0.optimizer.SGD.lr")
    return tuple(found)


def dotted(keys: Keys) -> str:
    """The keys as one dotted key.

    >>> dotted(("phase", "0", "bounds", "body.0"))
    'phase.0.bounds."body.0"'
    """
    return ".".join(map(_key, keys))


def word(text: str) -> Any:
    """What a word on the command line means: TOML; or a number as people write it; or the text as it stands.

    >>> word("0.5"), word(".5"), word("DPSGD"), word("{SAT = {radius = 0.05}}")
    (0.5, 0.5, 'DPSGD', {'SAT': {'radius': 0.05}})
    """
    try:
        table = loads(f"value = {text}")
        if len(table) == 1 and "value" in table and "\n" not in text:
            return table["value"]
    except DataError:
        if text[:1] in tuple("{[\"'"):
            raise
        if _PLAIN_NUMBER.fullmatch(text):
            return float(text)
    return text


def dumps(table: Mapping[str, Any]) -> str:
    """A table as TOML: one line for each entry, and one block for each of its phases.

    >>> print(dumps({"data": "mnist", "phase": [{"method": {"SAT": {"radius": 0.5}}}]}), end="")
    data = "mnist"
    <BLANKLINE>
    [[phase]]
    method = {SAT = {radius = 0.5}}
    """
    phases = table.get("phase", [])
    blocks = ["".join(map(_line, ((k, v) for k, v in table.items() if k != "phase")))]
    blocks += ["[[phase]]\n" + "".join(map(_line, phase.items())) for phase in phases]
    return "\n".join(blocks)


def _line(entry: tuple[str, Any]) -> str:
    return f"{_key(entry[0])} = {inline(entry[1])}\n"


def inline(value: Any) -> str:
    """A value as TOML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {inline(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return _text(value) if isinstance(value, str) else str(value).lower()  # True, inf, 1e-05


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """JSON's texts are TOML's, but for one letter that TOML has written out."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
