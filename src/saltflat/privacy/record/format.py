"""What a ledger looks like on disk: entries to bytes and back, and what damage is noticed.

One JSON object per line, each holding the hash of the line before, and beside the file a head file with the
number and the hash of the last line that counts. ``docs/ledger.md`` says what damage is detected.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from saltflat.errors import AccountingError, LedgerError, SettingError
from saltflat.privacy.limits import checked_count, checked_delta, checked_noise, checked_rate
from saltflat.privacy.record.costs import ADJACENCIES, from_body

FORMAT = 1

_FIRST = "0" * 64  # the hash before the first line
_LONGEST = 1 << 16  # bytes of a line; a longer one is not ours

Head = tuple[int, str]
"""(number, hash) of the last line that counts."""


@dataclass(frozen=True)
class Entry:
    """One line of a ledger; ``hash`` covers all of it and, through ``previous``, all lines before."""

    number: int
    kind: str
    body: Mapping[str, Any]
    previous: str
    hash: str


def first_entry(body: Mapping[str, Any]) -> Entry:
    """The entry that a ledger begins with."""
    return _entry(0, "begin", {"format": FORMAT, **body}, _FIRST)


def entry_after(last: Entry, kind: str, body: Mapping[str, Any]) -> Entry:
    """The entry that follows ``last``.

    >>> entry_after(first_entry({"dataset": "digits"}), "settle", {"charge": 0, "steps": 1}).number
    1
    """
    return _entry(last.number + 1, kind, body, last.hash)


def line(entry: Entry) -> bytes:
    """The one spelling of an entry."""
    fields = ("number", "kind", "body", "previous", "hash")
    return _canonical({name: getattr(entry, name) for name in fields}) + b"\n"


def head_path(path: Path) -> Path:
    """Where the head of the ledger at ``path`` is kept."""
    return path.with_name(path.name + ".head")


def head_line(entry: Entry) -> bytes:
    """The content of the head file that names ``entry``."""
    content = {"number": entry.number, "hash": entry.hash}
    return _canonical({**content, "check": _digest(content)}) + b"\n"


def read_head(path: Path) -> Head | None:
    """The head of the ledger at ``path``; None if there is no head file."""
    place = head_path(path)
    try:
        data = place.read_bytes()
        found = json.loads(data)
        content = {"number": found["number"], "hash": found["hash"]}
        good = data == _canonical({**content, "check": _digest(content)}) + b"\n"
        good = good and isinstance(found["number"], int)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        good = False
    except OSError as error:
        raise LedgerError(f"{place} cannot be read ({error.strerror})") from error
    if not good:
        raise LedgerError(f"{place} is damaged; bring back a good copy of it and of the ledger")
    return found["number"], found["hash"]


def read_entries(path: Path, head: Head | None) -> tuple[Entry, ...]:
    """The lines of the ledger at ``path``, checked against ``head``, which was read before them.

    *Guarantee*: no line that ``head`` covers is missing or changed. As a line is written before the head that
    names it, a head that was read first never names a line that is not there yet.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read ({error.strerror}): give the path of a ledger, and the right to read it"
        ) from error
    return tuple(_checked_lines(data, head, path))


def check_budget(epsilon: object, delta: object, order: object) -> None:
    """Refuse a budget that no accountant could keep; ``order`` is None or that of a Renyi filter."""
    if order is not None and not (_is_number(order) and 1.1 <= order <= 1024):
        raise SettingError(f"order={order!r}: None or a number from 1.1 to 1024 is needed")
    if not (_is_number(epsilon) and 0 < epsilon < math.inf):
        raise SettingError(f"epsilon={epsilon!r}: a finite number above 0 is needed")
    try:
        checked_delta(delta)
    except AccountingError as error:
        raise SettingError(str(error)) from None


def _checked_lines(data: bytes, head: Head | None, path: Path) -> Iterator[Entry]:
    """The valid lines; LedgerError if one that the head covers is damaged or missing."""
    if head is None and data.count(b"\n") > 1:
        raise LedgerError(
            f"{head_path(path)} is missing: without it lost lines cannot be noticed; bring it back"
        )
    last, digest = head or (0, None)
    previous = _FIRST
    lines = data.split(b"\n")[:-1]
    for number in range(max(len(lines), last + 1)):
        entry = _parse(lines[number], number, previous) if number < len(lines) else None
        if entry is None and number > last:
            return  # written but never acknowledged
        if entry is None:
            raise LedgerError(
                f"{path}: line {number + 1} is damaged or missing; bring back a good copy of the ledger"
            )
        if number == last and digest not in (None, entry.hash):
            raise LedgerError(
                f"{path} and {head_path(path)} do not belong together; bring back a good copy of both"
            )
        previous = entry.hash
        yield entry


def _parse(text: bytes, number: int, previous: str) -> Entry | None:
    """The entry, if ``text`` is exactly what this module would have written here, else None."""
    try:
        found = json.loads(text[:_LONGEST])
        entry = _entry(number, found["kind"], found["body"], previous)
        good = line(entry) == text + b"\n" and _sensible(entry)
    except (ValueError, TypeError, KeyError, RecursionError, AccountingError, SettingError):
        return None
    return entry if good else None


def _sensible(entry: Entry) -> bool:
    """Whether the body has what its kind needs; raises or returns False if not."""
    body = entry.body
    if entry.number == 0:
        return entry.kind == "begin" and body["format"] == FORMAT and isinstance(body["dataset"], str)
    if entry.kind == "budget":
        check_budget(body["epsilon"], body["delta"], body["order"])
        return True
    if entry.kind == "run":
        texts = ("name", "unit", "stamp", "time", *(("identity",) if "identity" in body else ()))
        return body["adjacency"] in ADJACENCIES and all(isinstance(body[text], str) for text in texts)
    if entry.kind == "charge":
        from_body(body)
        once = body.get("claim", True) is True
        return once and checked_count("steps", body["steps"]) > 0 and isinstance(body["run"], int)
    if entry.kind == "chosen":
        costs = [(checked_noise(noise), checked_count("steps", steps)) for noise, steps in body["planned"]]
        return bool(costs) and checked_rate(body["rate"]) > 0 and isinstance(body["run"], int)
    if entry.kind == "drawn":
        counts = body["used"].values()
        return isinstance(body["charge"], int) and all(type(n) is int and n >= 0 for n in counts)
    return entry.kind == "settle" and isinstance(body["charge"], int) and body["steps"] >= 0


def _entry(number: int, kind: str, body: Mapping[str, Any], previous: str) -> Entry:
    content = {"number": number, "kind": kind, "body": body, "previous": previous}
    return Entry(number, kind, body, previous, _digest(content))


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _canonical(value: object) -> bytes:
    """One spelling per value, so that equal content has equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _is_number(value: object) -> TypeGuard[float]:
    """A number that a float can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value) == value
    except OverflowError:
        return False
