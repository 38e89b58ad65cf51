"""Writes that survive a power cut, into files that their owner alone may read.

When a function here returns, the disk has the bytes. Every write of the ledger and of the checkpoints passes through
this file, so that a test can record them all and replay a power cut at each point. Code that writes a whole file, text
or bytes, uses `replace`.

*Guarantee*: a file is made new (``O_EXCL | O_NOFOLLOW``) with mode 0600, unless its caller says that its content is
released or public (`RELEASED`). So neither a file nor a link that lies there already decides where private content goes
or who may read it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from saltflat.errors import LedgerError

PRIVATE = 0o600  # of files whose content is private, or may be
RELEASED = 0o644  # of files whose content is released or public; the umask applies

FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # where fsync stops at the drive's own cache


def sync(descriptor: int) -> None:
    """Wait until the disk has everything written to ``descriptor``."""
    if FULL_SYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, FULL_SYNC)


def lock(descriptor: int, path: Path) -> None:
    """Lock an open file for this process alone; BlockingIOError if another one has it.

    A file system that knows no locks is another matter: nobody can be kept away there, and nothing may be spent.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be locked ({error.strerror or error}): its file system has no working locks. "
            "Two processes could spend the same budget there; keep the run and its ledger on a local disk"
        ) from error


def append(descriptor: int, data: bytes) -> None:
    """Add ``data`` at the end of a file opened for appending."""
    _write_all(descriptor, data)
    sync(descriptor)


def cut(descriptor: int, size: int) -> None:
    """Shorten a file to its first ``size`` bytes."""
    os.ftruncate(descriptor, size)
    sync(descriptor)


def create(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Make a new file, whole or not at all; FileExistsError if there is one already."""
    temporary = _write_beside(path, data, f".{path.name}.{os.urandom(8).hex()}.new", mode)
    try:
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    sync_folder(path.parent)


def replace(path: Path, data: bytes | str, *, mode: int = PRIVATE) -> None:
    """Put ``data`` in the place of a file, or make it, whole or not at all; text is written as UTF-8.

    *Guarantee*: whatever fails, ``path`` holds what it held before or ``data``, and nothing is left beside it;
    only a kill or a power cut leaves ``.<name>.new``, which the next call removes. As that name is always
    the same, a file has one writer at a time. The new file has ``mode``, whatever the old one's was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace(Path(folder, "a.txt"), "one")
    ...     replace(Path(folder, "a.txt"), b"two")
    ...     os.listdir(folder), Path(folder, "a.txt").read_text()
    (['a.txt'], 'two')
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = _write_beside(path, content, f".{path.name}.new", mode)
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


def private_folder(path: Path) -> None:
    """Make a folder that its owner alone may enter (mode 0700), or give one that is there this mode.

    Raises:
        PermissionError: what is there is a link, a file, or another user's folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is a link, a file, or another user's folder", str(path))
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)


def make_file(path: Path, mode: int = PRIVATE) -> int:
    """A descriptor of a new, empty file; FileExistsError if anything is there, a link included."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def _write_beside(path: Path, data: bytes, name: str, mode: int) -> Path:
    """A synced file next to ``path``, or none; what a crash left of one with the same name is removed."""
    temporary = path.with_name(name)
    try:
        descriptor = make_file(temporary, mode)
    except FileExistsError:
        if temporary.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(temporary)) from None
        os.unlink(temporary)
        descriptor = make_file(temporary, mode)
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
