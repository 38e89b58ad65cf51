"""Reads a kept audit, without torch and without trust: what is damaged is said, and never mended by a guess."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from saltflat.audit.result import Audited, Bound, Claim, Control, Interval

FILE = "audit.json"
KINDS = ("canary", "one-run", "membership")
_MOST = 1 << 20  # bytes: a result is a few thousand

T = TypeVar("T")


@dataclass(frozen=True)
class Kept:
    """An audit as it was found: ``value``, or what is the ``trouble``; neither if there is no file.

    >>> Kept().missing, Kept(None, "audit.json is damaged").missing
    (True, False)
    """

    value: Audited | None = None
    trouble: str = ""

    @property
    def missing(self) -> bool:
        return self.value is None and not self.trouble


def read(path: Path | str) -> Kept:
    """The audit in a file, or in `FILE` of a folder.

    *Guarantee*: the verdict is worked out again from the numbers; what the file says of it is not believed, and a file
    that contradicts itself is damaged.
    """
    place = Path(path)
    place = place / FILE if place.is_dir() else place
    try:
        if not place.exists():
            return Kept()
        if place.stat().st_size > _MOST:
            return Kept(None, f"{place.name} is damaged: larger than any audit")
        return Kept(parsed(json.loads(place.read_text(encoding="utf-8"))))
    except OSError as error:
        return Kept(None, f"{place.name} cannot be read ({error.strerror or error})")
    except UnicodeDecodeError:
        return Kept(None, f"{place.name} is damaged: it is no UTF-8 text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Kept(None, f"{place.name} is damaged: {first[:200]}")


def parsed(told: object) -> Audited:
    """The value that `Audited.as_json` wrote; ValueError, KeyError or TypeError if it is another thing."""
    if not isinstance(told, dict):
        raise ValueError(f"it holds a {type(told).__name__}, not an object")
    if told["kind"] not in KINDS:
        raise ValueError(f"there is no kind of audit {told['kind']!r}")
    audited = Audited(
        kind=told["kind"],
        claim=_made(Claim, {"advantage": 1.0, **told["claim"]}),
        bounds=_several(Bound, told["bounds"]),
        counts={str(name): int(_number(count)) for name, count in dict(told["counts"]).items()},
        controls=_several(Control, told["controls"]),
        seconds=_number(told["seconds"]),
        about=_texts(told["about"]),
        intervals=_several(Interval, told["intervals"]),
        stamp=_text(told["stamp"]),
        access=_text(told["access"]),
        meaning=_texts(told["meaning"]),
    )
    if (audited.verdict, bool(audited.failed)) != (told["verdict"], told["controls_failed"]):
        raise ValueError("its verdict does not follow from its numbers")
    return audited


def _several(kind: type[T], values: object) -> tuple[T, ...]:
    if not isinstance(values, list):
        raise ValueError(f"a list of {kind.__name__} is a {type(values).__name__}")
    return tuple(_made(kind, value) for value in values)


def _made(kind: type[T], told: object) -> T:
    """A value of a dataclass whose fields are numbers, texts and truths; entries of later versions are left out."""
    if not isinstance(told, Mapping):
        raise ValueError(f"a {kind.__name__} is a {type(told).__name__}")
    known = {each.name: str(each.type) for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _READ[known[name]](told[name]) for name in known})


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is not a finite number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is not a text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]!r} is neither true nor false")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(f"a list of sentences is a {type(values).__name__}")
    return tuple(_text(value) for value in values)


_READ = {"float": _number, "str": _text, "bool": _truth}
