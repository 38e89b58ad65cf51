"""What a run of PATE released, in a file: read without torch and without trust. Votes are not in it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

FILE = "pate.json"
ANSWERS = "answers.jsonl"
PRIVATE = "private"
"""The folder that keeps what teachers chose while a run goes. No report reads it."""

_MOST = 1 << 20  # bytes: such a file has some hundreds


@dataclass(frozen=True, kw_only=True)
class Released:
    """Figures that may be shown: settings, what was asked and answered, what it cost, how good the student is.

    ``epsilon`` is the worst case at ``delta``, that of the statement; ``at_this_data`` the released data-dependent one,
    if there is any. ``accuracy`` is the student's, on public examples that were no queries; None without any.
    """

    teachers: int
    unit: str
    threshold: float
    sigma1: float
    sigma2: float
    limit: str
    asked: int
    answered: int
    epsilon: float
    delta: float
    at_this_data: float | None
    accuracy: float | None
    evaluated: int
    student: str

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    def sentences(self) -> list[str]:
        """The same in words."""
        said = [
            f"{self.teachers} teachers, each {self.unit} with one of them; threshold {self.threshold:g}, noise "
            f"{self.sigma1:.4g} on the test and {self.sigma2:.4g} on the answer; {self.limit}.",
            f"{self.answered:,} of {self.asked:,} public queries were answered.",
            f"The student ({self.student}) is right on {self.accuracy:.2%} of {self.evaluated:,} public examples that "
            "were no queries."
            if self.accuracy is not None
            else "No public examples were left to evaluate the student on.",
        ]
        if self.at_this_data is not None:
            said.append(
                f"At this data, by a release of its own: epsilon {self.at_this_data:.4g} at delta {self.delta:g} "
                "(docs/pate.md says what that means)."
            )
        return said


def read(path: Path) -> Released:
    """What a file holds; ValueError, KeyError or TypeError if it is no such file."""
    if path.stat().st_size > _MOST:
        raise ValueError("larger than any result of PATE")
    told = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(told, dict):
        raise ValueError(f"it holds a {type(told).__name__}, not an object")
    given: dict[str, Any] = {each.name: _READ[str(each.type)](told[each.name]) for each in fields(Released)}
    found = Released(**given)
    if not 0 <= found.answered <= found.asked:
        raise ValueError("more queries were answered than asked")
    return found


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is not a finite number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{str(value)[:40]!r} is not a whole number of 0 or more")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1000:
        raise ValueError(f"{str(value)[:40]!r} is not a short text")
    return value


def _or_none(value: Any) -> float | None:
    return None if value is None else _number(value)


_READ = {"int": _whole, "float": _number, "str": _text, "float | None": _or_none}
