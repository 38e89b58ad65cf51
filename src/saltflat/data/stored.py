"""Examples that stay on disk, and are read when they are drawn.

*Guarantee*: of the data as a whole its files' heads are read, and no row; nothing is fitted, counted or looked up. A
row that cannot be read, or has a target that was not declared, fails by itself: in a private step it adds nothing, and
nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from saltflat.core.sampling import Indices, joined, physical
from saltflat.data.arrays import rows_of
from saltflat.data.blocks import Blocks, blocks
from saltflat.data.examples import HALF, Examples, Scale
from saltflat.data.files import resolve
from saltflat.data.form import Form
from saltflat.errors import DataError, SettingError
from saltflat.settings import is_whole

Read = Callable[[Indices], tuple[Tensor, Tensor]]  # inputs and targets of these rows, ready for a model
Files = str | Path | Sequence[str | Path]  # one, several, or a pattern such as "x-*.npy"


class StaysOnDisk(DataError, AttributeError):
    """What was asked for is all examples at once, and they are not in memory."""

    def __init__(self) -> None:
        super().__init__(
            "these examples stay on disk, and what is asked for needs all of them in memory: clients, features and "
            "PATE take data in memory, such as an .npz file"
        )


@dataclass(frozen=True, eq=False)
class Stored:
    """Labelled examples on disk, as units: they have what `Examples` has, but for all inputs or targets at once.

    ``workers`` threads read a batch, the next one while the model computes; 0: nothing is read ahead.
    """

    read: Read = field(repr=False)
    count: int = field(repr=False)
    form: Form
    scale: Scale | None = None  # by which images were scaled already
    device: torch.device | str = "cpu"
    workers: int = 0
    features: str = ""
    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not is_whole(self.workers, 0):
            raise SettingError(f"workers is a number of threads that read, 0 or more; got {self.workers!r}")

    @property
    def reads_ahead(self) -> bool:
        """Whether batches may be read ahead; reading draws nothing."""
        return self.workers > 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.form.shape

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """These examples, ready for a model."""
        parts = max(1, min(self.workers, len(indices)))
        if parts == 1:
            return self._ready(indices)
        with ThreadPoolExecutor(parts) as pool:
            return joined(list(pool.map(self._ready, np.array_split(indices, parts))))

    def _ready(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Rows of the declared form, or a DataError."""
        where = np.asarray(indices, dtype=np.int64)
        if len(where) and not (where.min() >= 0 and where.max() < self.count):
            raise DataError("there is no example of this number")
        inputs, targets = self.read(where)
        if tuple(inputs.shape[1:]) != self.shape or len(inputs) != len(targets):
            raise DataError("an example is not of the declared form")
        if self.form.classes and bool(((targets < 0) | (targets >= self.form.classes)).any()):
            raise DataError("an example's label was not declared")
        return inputs.to(self.device), targets.to(self.device)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All examples in order, at most ``size`` at a time."""
        for indices in physical(np.arange(self.count), size):
            yield self.take(indices)

    def to(self, device: torch.device | str) -> Stored:
        """The same examples; batches come out on the device."""
        return replace(self, device=device)

    @property
    def inputs(self) -> Tensor:
        raise StaysOnDisk

    @property
    def targets(self) -> Tensor:
        raise StaysOnDisk

    def whole(self) -> tuple[Tensor, Tensor]:
        raise StaysOnDisk


def on_disk(
    inputs: Files,
    targets: Files,
    data_dir: str | Path | None = None,
    *,
    classes: int | None = None,
    span: tuple[float, float] | None = None,
    scale: Scale = HALF,
    dtype: str | None = None,
    row: tuple[int, ...] | None = None,
    target_dtype: str | None = None,
    workers: int = 0,
) -> Stored:
    """Examples in files of plain numbers, read row by row when they are drawn; for data larger than memory.

    ``inputs`` and ``targets`` are .npy or idx files, or bytes without a head, whose ``dtype`` (``target_dtype``) and
    shape of one ``row`` are declared. Each may be one file, a list of shards or a pattern such as "x-*.npy", which is
    taken in the order of the names. Rows of uint8 with two or three axes are images (h, w) or (h, w, c) and are scaled
    by the declared ``scale``; others become float32 as they are. Targets are numbers of so many ``classes``, or numbers
    in a ``span``, which is scaled to [-1, 1].

    *Guarantee*: only the heads of the files are read here, and nothing in them is run. How many rows there are is in
    the heads, and is private: declare ``size`` where you train.
    """
    x = blocks(files_of(inputs, data_dir), dtype=dtype, row=row)
    y = blocks(
        files_of(targets, data_dir), dtype=target_dtype or None, row=() if target_dtype is not None else None
    )
    return stored(x, y, Form(form_of(x), classes or 0, span), scale, workers=workers)


def stored(inputs: Blocks, targets: Blocks, form: Form, scale: Scale = HALF, *, workers: int = 0) -> Stored:
    """The examples of two lots of files, shard by shard as long as each other."""
    where = inputs.parts[0].path.parent
    if inputs.counts != targets.counts and (len(inputs.parts) != 1 or len(targets.parts) != 1):
        raise DataError(
            f"{where}: shards of inputs and of targets must come in pairs, with a target for each row"
        )
    if inputs.count != targets.count:
        raise DataError(f"{where}: inputs and targets do not have the same number of rows")
    if inputs.count == 0:
        raise DataError(f"{where} holds no row")
    if targets.shape not in ((), (1,)):
        raise DataError(f"{targets.parts[0].path} must hold one number for each example")
    if form.classes and targets.dtype.kind == "f":
        raise DataError(
            f"{targets.parts[0].path} holds {targets.dtype}, and classes are whole numbers; save it as int64, or "
            "declare a range"
        )
    images = inputs.dtype == np.uint8 and len(inputs.shape) in (2, 3)
    read = Reader(inputs, targets, form.span, scale)
    return Stored(read, inputs.count, form, scale if images else None, workers=workers)


@dataclass(frozen=True)
class Reader:
    """Rows of two lots of files as inputs and targets of a model."""

    inputs: Blocks
    targets: Blocks
    span: tuple[float, float] | None
    scale: Scale

    def __call__(self, indices: Indices) -> tuple[Tensor, Tensor]:
        where = self.inputs.parts[0].path.parent
        found = rows_of(
            self.inputs.read(indices), self.targets.read(indices), where, span=self.span, scale=self.scale
        )
        return found.whole()


def form_of(inputs: Blocks) -> tuple[int, ...]:
    """The shape of one example, by the files' heads: images with their channels first."""
    if not inputs.shape:
        raise DataError(f"{inputs.parts[0].path} must hold a row of numbers for each example")
    if inputs.dtype != np.uint8 or len(inputs.shape) not in (2, 3):
        return inputs.shape
    return (inputs.shape[2] if len(inputs.shape) == 3 else 1, *inputs.shape[:2])


def read_all(examples: Stored) -> Examples:
    """The same examples in memory: those for testing, which are public and looked at as a whole."""
    inputs, targets = examples.take(np.arange(examples.count))
    return Examples(inputs, targets)


def files_of(given: Files, data_dir: str | Path | None = None) -> list[Path]:
    """The files that are meant, in the order of their names where a pattern says which."""
    if not isinstance(given, str | Path):
        return [resolve(each, data_dir) for each in given]
    if not is_pattern(given):
        return [resolve(given, data_dir)]
    pattern = Path(given).expanduser()
    return inside(resolve(pattern.parent, data_dir), pattern.name)


def is_pattern(given: str | Path) -> bool:
    """Whether a name stands for many files, as "x-*.npy" does."""
    return any(mark in str(given) for mark in "*?[") and not Path(given).exists()


def inside(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder under a pattern, by name; one that leads out of the folder is refused."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise DataError(f"{folder} holds no file {pattern}")
    home = folder.resolve()
    for file in found:
        if not file.is_file() or not file.resolve().is_relative_to(home):
            raise DataError(
                f"{file} is no file of this folder, or leads out of it; put the shards themselves there"
            )
    return found
