"""Writes that survive a power cut: when a function here returns, the disk has the bytes.

Every write of the ledger and of the checkpoints passes through this file, so that a test can record them all
and replay a power cut at each point.
"""

from __future__ import annotations

import fcntl
import os
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


def replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of a file, whole or not at all."""
    os.replace(_write_beside(path, data, f".{path.name}.new"), path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of the files in ``folder``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def _write_beside(path: Path, data: bytes, name: str) -> Path:
    """A synced file next to ``path``; what a crash left of one with the same name is overwritten."""
    temporary = path.with_name(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o644)
    try:
        append(descriptor, data)
    finally:
        os.close(descriptor)
    return temporary


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
