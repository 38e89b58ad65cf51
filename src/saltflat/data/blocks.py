"""Rows of plain numbers in files, one after the other, read one by one: .npy, idx and raw files, one or many.

Rows are read by their place in the file, and never mapped: a file that becomes shorter is an error that is caught and
not a signal that ends the process, and what was read takes no memory of the process afterwards. Nothing of a file is
ever run: a head is a short literal, and objects, structures and texts are refused.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saltflat.core.sampling import Indices
from saltflat.errors import DataError, SettingError

_HEAD = 10_000  # bytes of an .npy file's head, at most
_IDX_BYTES = 0x08  # the element type of an idx file


@dataclass(frozen=True)
class Block:
    """One file: ``count`` rows of a ``shape``, from the byte ``start`` on, and nothing after them."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    count: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"{self.path} holds rows of no number at all")
        if self.path.stat().st_size != self.end:
            raise DataError(
                f"{self.path} is truncated or damaged: it does not hold as many bytes as its head says; write it again"
            )

    @property
    def size(self) -> int:
        """The bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        return self.start + self.count * self.size

    def read(self, places: Indices) -> np.ndarray:
        """These rows; DataError if the file has changed its length since it was opened first."""
        try:
            with self.path.open("rb", buffering=0) as file:
                number = file.fileno()
                whole = os.fstat(number).st_size == self.end
                rows = [os.pread(number, self.size, self.start + int(place) * self.size) for place in places]
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from None
        if not whole or any(len(row) != self.size for row in rows):
            raise DataError(f"{self.path} has changed while it was read")
        return np.frombuffer(b"".join(rows), self.dtype).reshape(len(places), *self.shape)


@dataclass(frozen=True)
class Blocks:
    """The rows of several files of one form, one file after the other."""

    parts: tuple[Block, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
        for part in self.parts[1:]:
            if (part.dtype, part.shape) != (first.dtype, first.shape):
                raise DataError(
                    f"{part.path} holds rows of another form than {first.path.name}: {part.dtype} {part.shape}, and "
                    f"not {first.dtype} {first.shape}"
                )

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each file."""
        return tuple(part.count for part in self.parts)

    @property
    def dtype(self) -> np.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self.parts[0].shape

    def read(self, indices: Indices) -> np.ndarray:
        """These rows, in the order that was asked for."""
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.count):
            raise DataError("there is no row of this number")
        ends = np.cumsum(self.counts)
        whose = np.searchsorted(ends, indices, side="right")
        found = np.empty((len(indices), *self.shape), self.dtype)
        for number in np.unique(whose):
            mine, part = whose == number, self.parts[number]
            found[mine] = part.read(indices[mine] - (ends[number] - part.count))
        return found


def blocks(files: Sequence[Path], *, dtype: str | None = None, row: tuple[int, ...] | None = None) -> Blocks:
    """The rows of these files, by what they are: .npy, idx, or with ``dtype`` and ``row`` bytes without a head."""
    if not files:
        raise DataError("no file was given")
    return Blocks(tuple(_raw(path, dtype, row) if dtype else _headed(path) for path in files))


def _headed(path: Path) -> Block:
    head = _begin(path)
    if head.startswith(b"\x93NUMPY"):
        return _npy(path, head)
    if head[:3] == bytes([0, 0, _IDX_BYTES]) and len(head) > 3:
        return _idx(path, head)
    raise DataError(
        f"{path} is neither an .npy nor an idx file of bytes; declare dtype and row for one without a head"
    )


def _begin(path: Path) -> bytes:
    if not path.is_file():
        raise DataError(f"{path} is no file")
    try:
        with path.open("rb") as file:
            return file.read(_HEAD + 12)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _npy(path: Path, head: bytes) -> Block:
    """By its head alone, which numpy reads as a literal; a long one is cut off, and then is none."""
    source = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(source)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = read(source, max_header_size=_HEAD)
    except Exception:  # a forged head raises almost anything
        raise DataError(f"{path} is no .npy file that is read here; write it with numpy.save") from None
    if dtype.kind not in "fiu" or dtype.hasobject:
        raise DataError(
            f"{path} holds {'objects' if dtype.hasobject else dtype}, and not numbers; objects are never read, as that "
            "could run what they bring along"
        )
    if by_columns and len(shape) > 1:
        raise DataError(f"{path} is stored column by column; write numpy.ascontiguousarray(...) of it")
    if not shape or any(not isinstance(each, int) or each < 0 for each in shape):
        raise DataError(f"{path} holds no rows")
    return Block(path, dtype, tuple(shape[1:]), source.tell(), shape[0])


def _idx(path: Path, head: bytes) -> Block:
    """Two zeros, the type, the number of dimensions, and each size as a big-endian number of 32 bits."""
    start = 4 + 4 * head[3]
    if head[3] < 1 or len(head) < start:
        raise DataError(f"{path} is no idx file, or a truncated one")
    sizes = struct.unpack(f">{head[3]}I", head[4:start])
    return Block(path, np.dtype(np.uint8), sizes[1:], start, sizes[0])


def _raw(path: Path, dtype: str, row: tuple[int, ...] | None) -> Block:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise SettingError(
            f"dtype is the type of a number, such as 'uint8' or '<f4'; got {dtype!r}"
        ) from None
    if kind.kind not in "fiu" or row is None or any(not isinstance(n, int) or n < 1 for n in row):
        raise SettingError(
            f"a raw file holds numbers: declare dtype and row, its shape; got {dtype!r} and {row!r}"
        )
    if not path.is_file():
        raise DataError(f"{path} is no file")
    size = math.prod(row) * kind.itemsize
    return Block(path, kind, tuple(row), 0, path.stat().st_size // size)
