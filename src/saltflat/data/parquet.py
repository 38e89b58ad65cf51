"""Parquet and Arrow files, one or many, through Hugging Face `datasets`: rows are read when they are drawn.

Arrow files are mapped as they are. Parquet is packed, and one row of it cannot be read alone: `datasets` unpacks it
first, to Arrow files that are kept in the folder that SALTFLAT_CACHE names; without it they lose their names as soon as
they are mapped, and go away with the process.

*Guarantee*: files of this machine alone, by their full paths; what a file says of itself beyond the types of its
columns (features that open other files, types that bring code) is not believed. Nothing is fitted: a `Table` declares
what columns mean. The number of rows is not printed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from saltflat.core.sampling import Indices
from saltflat.data.form import Form
from saltflat.data.pictures import CACHE
from saltflat.data.stored import Files, Stored, files_of, inside
from saltflat.data.table import Array, Category, Number, Table
from saltflat.errors import DataError, SettingError

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

ENDINGS = (".parquet", ".arrow")
_MARKS = "*?[]:"  # in a file's name, by which it could be taken for a pattern or an address


def parquet(files: Files, data_dir: str | Path | None = None, *, table: Table, workers: int = 0) -> Stored:
    """Examples in Parquet or Arrow files: one, a list of shards, a pattern ("train-*.parquet") or a folder of them.

    Of a folder those are taken whose names begin with train, if there are any.
    ``table`` declares the columns that are inputs, and the target: `Number`, `Category`, or an `Array` for a list of
    numbers such as an image. Others are not read. A row that does not hold what is declared adds nothing to a private
    step. Needs ``pip install 'saltflat[large]'``.
    """
    return opened(shards_of(files, data_dir), table, workers=workers)


def shards_of(files: Files, data_dir: str | Path | None = None, part: str = "train") -> list[Path]:
    """The files that are meant; of a folder those whose names begin with the ``part``, or all if none does."""
    found = files_of(files, data_dir)
    if len(found) != 1 or not found[0].is_dir():
        return found
    folder = found[0]
    ending = next((end for end in ENDINGS if any(folder.glob(f"*{end}"))), ENDINGS[0])
    begins = part if any(folder.glob(f"{part}*{ending}")) else ""
    return inside(folder, f"{begins}*{ending}")


def opened(files: Sequence[Path], table: Table, *, workers: int = 0) -> Stored:
    """The rows of these files, by the table."""
    for file in files:
        if not file.name.endswith(ENDINGS) or not file.is_file():
            raise DataError(f"{file} is no file that ends in .parquet or .arrow")
        if any(mark in str(file.absolute()) for mark in _MARKS):
            raise DataError(f"{file}: a path with one of {' '.join(_MARKS)} in it cannot be read; rename it")
    names = [column.name for column in (*table.columns, table.target)]
    types = _checked(files, table)
    rows = _rows(files, names, types)
    if len(rows) == 0:
        raise DataError(f"{files[0].parent} holds no row")
    form = Form(table.shape, table.classes, table.span)
    return Stored(Reader(rows, table), len(rows), form, workers=workers)


@dataclass(frozen=True, eq=False)
class Reader:
    """Rows of a data set as inputs and targets, by what the table declares."""

    rows: Dataset
    table: Table

    def __call__(self, indices: Indices) -> tuple[Tensor, Tensor]:
        try:
            return self._read(indices)
        except DataError:
            raise
        except Exception:  # of a damaged file; what is in a message may be of a row
            raise DataError("a row cannot be read") from None

    def _read(self, indices: Indices) -> tuple[Tensor, Tensor]:
        found, target = self.rows[indices.tolist()], self.table.target
        parts = [_inputs(column, found.column(column.name)) for column in self.table.columns]
        inputs = torch.from_numpy(np.concatenate(parts, axis=1)).view(len(indices), *self.table.shape)
        return inputs, torch.tensor([self.table.label(cell) for cell in _texts(found.column(target.name))])


def _inputs(column: Number | Category | Array, cells: Any) -> np.ndarray:
    """The inputs that a column gives, a row for each cell."""
    if isinstance(column, Array):
        return column.scaled(_flat(cells, column.size))
    try:
        return np.array([column.encode(cell) for cell in _texts(cells)], dtype=np.float32)
    except ValueError:
        raise DataError(f"column {column.name!r} must hold a number") from None


def _texts(cells: Any) -> list[str]:
    """Cells as a CSV would have them; nothing for one that is empty."""
    return ["" if cell is None else str(cell).strip() for cell in cells.to_pylist()]


def _flat(cells: Any, size: int) -> np.ndarray:
    """Lists of numbers, however deep, as rows of ``size`` numbers; each list by itself must be as long as all others.

    Only then does a row hold nothing of the next one.
    """
    import pyarrow.compute as pc

    found, rows = cells.combine_chunks(), len(cells)
    while _is_list(found.type):
        lengths = pc.list_value_length(found)
        if found.null_count or len(pc.unique(lengths)) > 1:
            raise DataError("an array is not of the declared shape")
        found = pc.list_flatten(found)
    if found.null_count or len(found) != rows * size:
        raise DataError("an array is not of the declared shape")
    return found.to_numpy(zero_copy_only=False).reshape(rows, size)


def _checked(files: Sequence[Path], table: Table) -> pyarrow.Schema:
    """The types of the declared columns, alike in all files; what cannot be what was declared is refused."""
    pa, _ = _installed()
    first: Any = None
    for file in files:
        schema = _schema(file)
        for column in (*table.columns, table.target):
            if column.name not in schema.names:
                raise DataError(
                    f"{file} has no column {column.name!r}; it has {', '.join(schema.names[:20])}"
                )
            _check_type(column, schema.field(column.name).type, file)
        own = pa.schema(
            [
                pa.field(name, schema.field(name).type)
                for name in sorted({c.name for c in (*table.columns, table.target)})
            ]
        )
        if first is not None and own != first:
            raise DataError(f"{file} has columns of other types than {files[0].name}; write all shards alike")
        first = own
    return first


def _check_type(column: Number | Category | Array, kind: Any, file: Path) -> None:
    """A type by which no row could hold what is declared is a mistake, and told at once."""
    pa, _ = _installed()
    inner, deep = kind, 0
    while _is_list(inner) and deep < 8:
        inner, deep = inner.value_type, deep + 1
    number = pa.types.is_integer(inner) or pa.types.is_floating(inner)
    if isinstance(column, Array):
        good, wanted = number and deep > 0, "lists of numbers"
    elif isinstance(column, Number):
        good, wanted = number and not deep, "numbers"
    else:
        texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        good, wanted = (
            texts or pa.types.is_integer(kind) or pa.types.is_boolean(kind),
            "texts or whole numbers",
        )
    if not good:
        raise DataError(
            f"{file}: column {column.name!r} is declared to hold {wanted}, and its type is {kind}"
        )


def _is_list(kind: Any) -> bool:
    pa, _ = _installed()
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _schema(file: Path) -> Any:
    pa, _ = _installed()
    try:
        if file.name.endswith(".parquet"):
            import pyarrow.parquet

            schema = pyarrow.parquet.read_schema(file)
        else:
            with pa.memory_map(str(file)) as source:
                schema = pa.ipc.open_stream(source).schema
        assert schema.names is not None  # they are looked at here: damaged ones are no text
        return schema.remove_metadata()
    except Exception:  # damaged files raise almost anything
        what = (
            "Parquet file"
            if file.name.endswith(".parquet")
            else "stream of Arrow batches, as datasets writes them"
        )
        raise DataError(f"{file} is no {what}, or a truncated one; write it again") from None


def _rows(files: Sequence[Path], names: Sequence[str], types: pyarrow.Schema) -> Dataset:
    """The rows of all files, the declared columns alone; Arrow is mapped, Parquet unpacked first."""
    _, datasets = _installed()
    arrow = [file for file in files if file.name.endswith(".arrow")]
    if arrow and len(arrow) != len(files):
        raise SettingError(f"{files[0].parent}: give Parquet files or Arrow files, not both")
    features = datasets.Features.from_arrow_schema(types)
    with _quiet(datasets):
        try:
            rows = _mapped(arrow, names, datasets) if arrow else _unpacked(files, names, features, datasets)
        except DataError:
            raise
        except Exception:  # what is in a message may be of a row
            raise DataError(
                f"{files[0].parent}: a shard cannot be read whole: it is truncated or damaged, or the disk is full"
            ) from None
    return rows.with_format("arrow")


def _mapped(files: Sequence[Path], names: Sequence[str], datasets: Any) -> Dataset:
    """Arrow files as they are. Offsets that lead out of a file are looked for once: nobody would later."""
    parts = []
    for file in files:
        table = datasets.table.MemoryMappedTable.from_file(str(file)).select(list(names))
        for batch in table.table.to_batches():
            batch.validate(full=True)
        parts.append(datasets.Dataset(table.replace_schema_metadata(None)))
    return datasets.concatenate_datasets(parts)


def _unpacked(files: Sequence[Path], names: Sequence[str], features: Any, datasets: Any) -> Dataset:
    kept = os.environ.get(CACHE)
    place = kept or tempfile.mkdtemp(prefix="saltflat-")
    try:
        return datasets.Dataset.from_parquet(
            [str(file.resolve()) for file in files], features=features, columns=sorted(names), cache_dir=place
        )
    finally:
        if kept is None:  # what is mapped stays until the process ends, whether or not it has a name
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without bars and messages, which count rows."""
    shown, level = datasets.is_progress_bar_enabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def _installed() -> tuple[Any, Any]:
    try:
        import datasets
        import pyarrow
    except ImportError:
        raise SettingError(
            "Parquet and Arrow files are read by Hugging Face datasets, which is not installed: pip install "
            "'saltflat[large]'"
        ) from None
    return pyarrow, datasets
