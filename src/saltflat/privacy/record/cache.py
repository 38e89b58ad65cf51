"""Caches of private data: files that are believed only if this user's own key made their tag.

A cached file is ``content + tag`` with tag = BLAKE2b(key, name, content), in a folder ``saltflat-<user id>`` of mode
0700 inside the one that the user names. The key lies in the user's own folder, not beside the cache.

*Guarantee*: a file that another user planted, changed or linked is not read, and neither is a half-written one; what it
should hold is computed anew. A cached file is readable by its owner alone from its first byte on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from saltflat.errors import DataError
from saltflat.privacy.record import durable

VARIABLE = "SALTFLAT_CACHE"

_KEY = 32  # bytes of the key
_TAG = 32  # bytes of a tag
_AT_ONCE = 2**20  # bytes that are hashed at a time


def place(folder: str | Path, name: str) -> Path:
    """Where a cached file of this name lies, in this user's own part of a cache folder, which is made if need be."""
    own = Path(folder).expanduser() / f"saltflat-{os.geteuid()}"
    with _one_line(own):
        durable.private_folder(own)
    return own / name


def is_kept(path: Path) -> bool:
    """Whether a whole file of this user's is there. Reads all of it: a tag covers every byte."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        if not _is_ours(descriptor) or os.fstat(descriptor).st_size < _TAG:
            return False
        tag = _tag(descriptor, path.name, os.fstat(descriptor).st_size - _TAG)
        file.seek(-_TAG, os.SEEK_END)
        return hmac.compare_digest(file.read(), tag)


@contextmanager
def kept(path: Path) -> Iterator[Path]:
    """An empty private file to be written; when the block ends well, it is tagged and takes the name ``path``.

    A block that fails leaves nothing. The file is not waited for on the disk: its tag tells whether it is whole.
    """
    unfinished = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    with _one_line(path):
        descriptor = durable.make_file(unfinished)
    try:
        yield unfinished
        with _one_line(path):
            end = os.lseek(descriptor, 0, os.SEEK_END)
            os.write(descriptor, _tag(descriptor, path.name, end))
            os.replace(unfinished, path)
    finally:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(unfinished)


def _tag(descriptor: int, name: str, length: int) -> bytes:
    """The keyed hash of a name and of the first ``length`` bytes of a file."""
    digest = hashlib.blake2b(name.encode() + b"\0", key=_key(), digest_size=_TAG)
    where = 0
    while where < length and (part := os.pread(descriptor, min(_AT_ONCE, length - where), where)):
        digest.update(part)
        where += len(part)
    return digest.digest()


def _key() -> bytes:
    """This user's key, made at its first use; one that others may read is replaced, and so are all cached files."""
    state = os.environ.get("XDG_STATE_HOME")
    folder = (Path(state) if state else Path.home() / ".local" / "state") / "saltflat"
    with _one_line(folder):
        durable.private_folder(folder)
        file = folder / "cache.key"
        found = _read_key(file)
        if found is None:
            with suppress(FileNotFoundError):
                os.unlink(file)
            with suppress(FileExistsError):  # another process of this user was first
                durable.create(file, os.urandom(_KEY))
            found = _read_key(file)
    if found is None:
        raise DataError(f"{file} cannot be used as a key: remove it, and a new one is made")
    return found


def _read_key(file: Path) -> bytes | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as opened:
        data = opened.read(_KEY + 1) if _is_ours(descriptor) else b""
    return data if len(data) == _KEY else None


def _is_ours(descriptor: int) -> bool:
    """Whether it is a plain file of this user's that nobody else may open."""
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one line."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be used for a cache ({error.strerror or error}); name another folder in {VARIABLE}, or "
            "unset it"
        ) from error
