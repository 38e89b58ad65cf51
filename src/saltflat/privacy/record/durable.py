"""Writes that survive a power cut: when a function here returns, the disk has the bytes.

Every write of the ledger and of the checkpoints passes through this file, so that a test can record them all
and replay a power cut at each point. Whoever writes a whole file, text or bytes, uses `replace`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # where fsync stops at the drive's own cache


def sync(descriptor: int) -> None:
    """Wait until the disk has everything written to ``descriptor``."""
    if FULL_SYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, FULL_SYNC)


def append(descriptor: int, data: bytes) -> None:
    """Add ``data`` at the end of a file opened for appending."""
    _write_all(descriptor, data)
    sync(descriptor)


def cut(descriptor: int, size: int) -> None:
    """Shorten a file to its first ``size`` bytes."""
    os.ftruncate(descriptor, size)
    sync(descriptor)


def create(path: Path, data: bytes) -> None:
    """Make a new file, whole or not at all; FileExistsError if there is one already."""
    temporary = _write_beside(path, data, f".{path.name}.{os.urandom(8).hex()}.new")
    try:
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    sync_folder(path.parent)


def replace(path: Path, data: bytes | str) -> None:
    """Put ``data`` in the place of a file, or make it, whole or not at all; text is written as UTF-8.

    *Guarantee*: whatever fails, ``path`` holds what it held before or ``data``, and nothing is left beside it;
    only a kill or a power cut leaves ``.<name>.new``, which the next call overwrites. As that name is always
    the same, a file has one writer at a time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace(Path(folder, "a.txt"), "one")
    ...     replace(Path(folder, "a.txt"), b"two")
    ...     os.listdir(folder), Path(folder, "a.txt").read_text()
    (['a.txt'], 'two')
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = _write_beside(path, content, f".{path.name}.new")
    with _removed_if_it_fails(temporary):
        os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of the files in ``folder``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _write_beside(path: Path, data: bytes, name: str) -> Path:
    """A synced file next to ``path``, or none; what a crash left of one with the same name is overwritten."""
    temporary = path.with_name(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o644)
    with _removed_if_it_fails(temporary):
        try:
            append(descriptor, data)
        finally:
            os.close(descriptor)
    return temporary


@contextmanager
def _removed_if_it_fails(temporary: Path) -> Iterator[None]:
    """Take a temporary file of ours away if what is done with it fails, an interrupt included."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # what failed first is what the caller is told
            os.unlink(temporary)
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
