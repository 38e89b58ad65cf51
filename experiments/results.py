"""A file of results, one JSON line for each finished run.

A run is written in one piece when it is over, so a file that was interrupted holds whole runs. A last line without
its end, which only a power cut or a full disk can leave, is not a run: readers pass over it, and the next run
takes its place.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from saltflat.errors import DataError

Result = dict[str, Any]


def read(path: Path) -> list[Result]:
    """The finished runs, in the order in which they ended; none if there is no file yet."""
    lines = _without_torn_end(path.read_bytes()).splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            raise DataError(f"{path}, line {number} is not a result: mend it, or take it away")
    return [json.loads(line) for line in lines]


def append(path: Path, result: Result) -> None:
    """Add one run, and return when the disk has it; several processes may share a file."""
    line = json.dumps(result, allow_nan=False) + "\n"
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = _without_torn_end(file.read())
        file.truncate(len(kept))
        file.write(b"\n" * (kept[-1:] not in (b"", b"\n")) + line.encode())
        file.flush()
        os.fsync(file.fileno())


def _without_torn_end(data: bytes) -> bytes:
    """All but a last line that was cut short; a whole one counts, with or without its line end."""
    end = data.rfind(b"\n") + 1
    return data if _is_whole(data[end:]) else data[:end]


def _is_whole(line: bytes) -> bool:
    """No beginning of an object is an object, so whatever can be read is all there."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def check_writable(path: Path) -> None:
    """Refuse a place that cannot be written now, and not after the first run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.open("ab").close()
