"""One part of a run's folder, as it was found: there, missing or damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Found(Generic[T]):
    """What was read of a part, and what is wrong with it.

    Neither: the part is missing. Both: it was read, but not all of it, or not without doubt.

    >>> Found().missing, Found(3).missing, Found(None, "is no JSON").missing
    (True, False, False)
    """

    value: T | None = None
    trouble: str = ""

    @property
    def missing(self) -> bool:
        return self.value is None and not self.trouble


def found(path: Path, read: Callable[[Path], Found[T]]) -> Found[T]:
    """What ``read`` makes of a file; a file that is not there is missing, whatever else fails is the trouble.

    Nothing in a folder is trusted: a report of nine good parts and one bad one is worth more than no report.
    """
    if not path.exists():
        return Found()
    try:
        return read(path)
    except OSError as error:
        return Found(
            None, f"{path.name} cannot be read ({error.strerror or without_folder(short(error), path)})"
        )
    except UnicodeDecodeError:
        return Found(None, f"{path.name} is damaged: it is no UTF-8 text")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        return Found(None, f"{path.name} is damaged: {without_folder(short(error), path)}")


def read_object(path: Path) -> Found[dict[str, Any]]:
    """A JSON object."""
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        return Found(None, f"{path.name} holds a {type(value).__name__}, not an object")
    return Found(value)


def text(value: object) -> str:
    """A text that was written down, or nothing."""
    return value if isinstance(value, str) else ""


def short(error: Exception) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def without_folder(message: str, path: Path) -> str:
    """A message about a file with the file's name in place of its path, which is no reader's business.

    >>> without_folder("/home/me/run/ledger.jsonl is damaged", Path("/home/me/run/ledger.jsonl"))
    'ledger.jsonl is damaged'
    """
    for folder in (path.parent, path.resolve().parent):
        message = message.replace(f"{folder}{os.sep}", "")
    return message
