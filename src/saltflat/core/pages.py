"""Files that are mapped, and whose pages do not stay.

The system counts a page of a mapped file to the process that read it, for as long as nobody else needs the memory: a
run that draws from a large file seems to grow until it holds all of it. So pages are given back when a batch was read.
"""

from __future__ import annotations

import mmap
from pathlib import Path


def mapped(path: Path) -> mmap.mmap:
    """A file as memory that can only be read; it stays readable when the file loses its name."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def give_back(pages: mmap.mmap) -> None:
    """Take what was read out of this process's memory; who asks for it again gets it from the file.

    Only for mappings that share their file: what was written to a private copy would be lost.
    """
    if hasattr(mmap, "MADV_DONTNEED"):  # elsewhere the system alone decides
        pages.madvise(mmap.MADV_DONTNEED)
