"""A disk that loses its power: notes every change to a folder, and lists what a cut may leave of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from typing import Any


class Recorder:
    """An ``os`` that notes every change it makes to a folder, with an identity for each file."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._files: dict[int, int] = {}  # inode -> identity; an inode may be used again
        self._open: dict[int, int | None] = {}  # descriptor -> identity, None for a folder

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def begin_step(self) -> None:
        self.events.append(("begun",))

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        descriptor = os.open(path, flags, mode)
        inode = os.fstat(descriptor).st_ino
        if new:
            self._files[inode] = len(self.events)
            self.events.append(("name", os.path.basename(path), self._files[inode]))
        elif flags & os.O_TRUNC:
            self.events.append(("cut", self._files[inode], 0))
        self._open[descriptor] = None if flags & os.O_DIRECTORY else self._files[inode]
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        self.events.append(("write", self._open[descriptor], bytes(data)))
        return os.write(descriptor, data)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self.events.append(("cut", self._open[descriptor], size))
        os.ftruncate(descriptor, size)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        self.events.append(("sync", self._open[descriptor]))

    def link(self, source: Any, target: Any) -> None:
        os.link(source, target)
        self.events.append(("name", os.path.basename(target), self._files[os.stat(target).st_ino]))

    def unlink(self, path: Any) -> None:
        os.unlink(path)
        self.events.append(("name", os.path.basename(path), None))

    def replace(self, source: Any, target: Any) -> None:
        os.replace(source, target)
        self.events.append(
            ("name", os.path.basename(target), self._files[os.stat(target).st_ino], os.path.basename(source))
        )


class Disk:
    """What is certain to be on the disk after some events, and what may or may not be."""

    def __init__(self, events: list[tuple[Any, ...]]) -> None:
        self.begun = 0
        self.files: dict[int, bytes] = {}
        self.names: dict[str, int] = {}
        self.loose_files: dict[int, list[tuple[Any, ...]]] = {}
        self.loose_names: list[tuple[Any, ...]] = []
        for event in events:
            self._happen(event)

    def _happen(self, event: tuple[Any, ...]) -> None:
        kind = event[0]
        if kind == "begun":
            self.begun += 1
        elif kind == "name":
            self.loose_names.append(event)
        elif kind in ("write", "cut"):
            self.loose_files.setdefault(event[1], []).append(event)
        elif event[1] is None:
            self.names = self._renamed(self.loose_names)
            self.loose_names = []
        else:
            self.files[event[1]] = self._written(event[1], self.loose_files.pop(event[1], []))

    def _renamed(self, events: list[tuple[Any, ...]]) -> dict[str, int]:
        names = dict(self.names)
        for _, name, file, *old in events:
            names[name] = file
            for source in old:
                names.pop(source, None)
        return {name: file for name, file in names.items() if file is not None}

    def _written(self, file: int, events: list[tuple[Any, ...]]) -> bytes:
        data = self.files.get(file, b"")
        for kind, _, what in events:
            data = data + what if kind == "write" else data[:what]
        return data

    def outcomes(self) -> Iterator[dict[str, bytes]]:
        """Folders that a power cut may leave: loose changes kept in part, torn, or not at all."""
        kept_names = [self._renamed(self.loose_names[:n]) for n in range(len(self.loose_names) + 1)]
        choices = [[(file, data) for data in self._torn(file)] for file in self.loose_files]
        for names, *contents in product(kept_names, *choices):
            files = {**self.files, **dict(contents)}
            yield {name: files.get(file, b"") for name, file in names.items()}

    def _torn(self, file: int) -> list[bytes]:
        events = self.loose_files[file]
        whole = [self._written(file, events[:n]) for n in range(len(events) + 1)]
        halves = [
            self._written(file, [*events[:n], ("write", file, event[2][: len(event[2]) // 2])])
            for n, event in enumerate(events)
            if event[0] == "write"
        ]
        zeros = [
            whole[0] + bytes(len(data) - len(whole[0])) for data in whole[1:] if len(data) > len(whole[0])
        ]
        return whole + halves + zeros
