"""Tiny files in the official formats, written byte by byte."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(
    folder: Path, part: str, images: np.ndarray, labels: np.ndarray, *, packed: bool = True
) -> None:
    """The two files of one part, gzipped or plain."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
        data = idx_bytes(array)
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)


def python_two(item: object) -> bytes:
    """A pickle as Python 2 wrote it in protocol 2, memo aside: its strings are bytes with opcode U or T."""
    return b"\x80\x02" + _opcodes(item) + b"."


def _opcodes(item: object) -> bytes:
    match item:
        case int():
            return b"J" + struct.pack("<i", item)
        case bytes() if len(item) < 256:
            return b"U" + bytes([len(item)]) + item
        case bytes():
            return b"T" + struct.pack("<i", len(item)) + item
        case list():
            return b"](" + b"".join(map(_opcodes, item)) + b"e"
        case dict():
            return b"}(" + b"".join(_opcodes(k) + _opcodes(v) for k, v in item.items()) + b"u"
        case np.ndarray():
            return _array(item)
    raise TypeError(type(item))


def _array(array: np.ndarray) -> bytes:
    """_reconstruct(ndarray, (0,), 'b'), then its state: version, shape, dtype, column order, bytes."""
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = _opcodes(array.shape[0]) + _opcodes(array.shape[1]) + b"\x86"
    return made + b"(K\x01" + shape + dtype + b"\x89" + _opcodes(array.tobytes()) + b"tb"
