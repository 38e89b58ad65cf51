"""Parquet files, and Arrow files as Hugging Face `datasets` writes them: rows are read when they are drawn.

Arrow files are mapped as they are. Parquet is packed, and one row of it cannot be read alone: it is unpacked first, a
few rows at a time, to an Arrow file that is kept in the folder that SALTFLAT_CACHE names; without it the file loses its
name as soon as it is mapped, and goes away with the process. Pages of a mapped file are given back after every batch.

*Guarantee*: files of this machine alone, by their full paths; what a file says of itself beyond the types of its
columns (features that open other files, types that bring code) is not believed. Nothing is fitted: a `Table` declares
what columns mean. The number of rows is not printed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from saltflat.core.pages import give_back, mapped
from saltflat.core.sampling import Indices
from saltflat.data.files import check_unpacked
from saltflat.data.form import Form
from saltflat.data.stored import Files, Stored, files_of, inside
from saltflat.data.table import Array, Category, Number, Table
from saltflat.errors import DataError, SettingError
from saltflat.privacy.record import cache as caches

if TYPE_CHECKING:
    import pyarrow

ENDINGS = (".parquet", ".arrow")
_MARKS = "*?[]:"  # in a file's name, by which it could be taken for a pattern or an address
_AT_ONCE = 2**22  # bytes that are unpacked at a time, if numbers are as wide as they can be
_HELD = 2**24  # bytes of a mapped file that are looked at before its pages are given back


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
    rows = _rows(files, _checked(files, (*table.columns, table.target)), table)
    if rows.count == 0:
        raise DataError(f"{files[0].parent} holds no row")
    form = Form(table.shape, table.classes, table.span)
    return Stored(Reader(rows, table), rows.count, form, workers=workers)


def encoded_batches(
    files: Sequence[Path], table: Table, *, at_once: int = 1000
) -> Iterator[tuple[list[tuple[np.ndarray | None, str]], list[str]]]:
    """The rows of these files in order, for a prediction; the target's column may be missing.

    Yields:
        For each batch a list with each row's inputs and "", or None and the reason why it has none; and the text of
        each row's target, empty where there is none.
    """
    pa = _installed()
    import pyarrow.parquet

    for file in files:
        types = _checked([file], table.columns)
        labelled = table.target.name in _schema(file).names
        names = [*types.names, table.target.name] if labelled else list(types.names)
        try:
            if file.name.endswith(".parquet"):
                batches = pyarrow.parquet.ParquetFile(file).iter_batches(at_once, columns=names)
            else:
                batches = pa.ipc.open_stream(pa.memory_map(str(file)))
            for batch in batches:
                part = pa.Table.from_batches([batch])
                rows = [_encoded_row(part.slice(k, 1), table) for k in range(part.num_rows)]
                empty = [""] * part.num_rows
                yield rows, _texts(part.column(table.target.name)) if labelled else empty
        except (pa.ArrowException, OSError):
            raise DataError(f"{file} cannot be read whole: it is truncated or damaged") from None


def _encoded_row(row: Any, table: Table) -> tuple[np.ndarray | None, str]:
    try:
        parts = [_inputs(column, row.column(column.name)) for column in table.columns]
        return np.concatenate(parts, axis=1).reshape(table.shape), ""
    except DataError as error:
        return None, str(error)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of mapped files, in batches of some length, one after the other."""

    types: pyarrow.Schema
    batches: tuple[pyarrow.RecordBatch, ...]
    pages: tuple[mmap, ...]
    ends: np.ndarray  # where each batch ends

    @property
    def count(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def pick(self, indices: Indices) -> pyarrow.Table:
        """These rows, in the order that was asked for, in the memory of the files."""
        pa = _installed()
        whose = np.searchsorted(self.ends, indices, side="right")
        picked = []
        for batch, row in zip(whose.tolist(), indices.tolist(), strict=True):
            found = self.batches[batch]
            picked.append(found.slice(row - int(self.ends[batch]) + found.num_rows, 1))
        return pa.Table.from_batches(picked, self.types)

    def give_back(self) -> None:
        """Let go of the pages of all files."""
        for pages in self.pages:
            give_back(pages)


@dataclass(frozen=True, eq=False)
class Reader:
    """Rows of a data set as inputs and targets, by what the table declares."""

    rows: Rows
    table: Table

    def __call__(self, indices: Indices) -> tuple[Tensor, Tensor]:
        try:
            return self._read(indices)
        except DataError:
            raise
        except Exception:  # of a damaged file; what is in a message may be of a row
            raise DataError("a row cannot be read") from None
        finally:
            self.rows.give_back()

    def _read(self, indices: Indices) -> tuple[Tensor, Tensor]:
        found, target = self.rows.pick(indices), self.table.target
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


def _checked(files: Sequence[Path], columns: Sequence[Number | Category | Array]) -> pyarrow.Schema:
    """The types of the declared columns, alike in all files; what cannot be what was declared is refused."""
    pa = _installed()
    first: Any = None
    for file in files:
        schema = _schema(file)
        for column in columns:
            if column.name not in schema.names:
                raise DataError(
                    f"{file} has no column {column.name!r}; it has {', '.join(schema.names[:20])}"
                )
            _check_type(column, schema.field(column.name).type, file)
        own = pa.schema(
            [pa.field(name, schema.field(name).type) for name in sorted({c.name for c in columns})]
        )
        if first is not None and own != first:
            raise DataError(f"{file} has columns of other types than {files[0].name}; write all shards alike")
        first = own
    return first


def _check_type(column: Number | Category | Array, kind: Any, file: Path) -> None:
    """A type by which no row could hold what is declared is a mistake, and told at once."""
    pa = _installed()
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
    pa = _installed()
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _schema(file: Path) -> Any:
    pa = _installed()
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


def _rows(files: Sequence[Path], types: pyarrow.Schema, table: Table) -> Rows:
    """The rows of all files, the declared columns alone; Arrow is mapped, Parquet unpacked first."""
    arrow = [file for file in files if file.name.endswith(".arrow")]
    if arrow and len(arrow) != len(files):
        raise SettingError(f"{files[0].parent}: give Parquet files or Arrow files, not both")
    try:
        return _opened(arrow, types) if arrow else _from_parquet(files, types, table)
    except DataError:
        raise
    except Exception:  # what is in a message may be of a row
        raise DataError(
            f"{files[0].parent}: a shard cannot be read whole: it is truncated or damaged, or the disk is full"
        ) from None


def _opened(files: Sequence[Path], types: pyarrow.Schema, *, own: bool = False) -> Rows:
    """Arrow files as they are. Offsets that lead out of a file are looked for once, unless the file is our ``own``."""
    pa = _installed()
    batches, held, seen = [], [mapped(file) for file in files], 0
    for file, pages in zip(files, held, strict=True):
        held_bytes = 0
        for batch in pa.ipc.open_stream(pa.py_buffer(pages)):
            batches.append(
                pa.RecordBatch.from_arrays([batch.column(name) for name in types.names], schema=types)
            )
            if not own:
                batches[-1].validate(full=True)  # nobody would later
            seen += batches[-1].nbytes
            held_bytes += batches[-1].nbytes
            if not own:  # a packed batch is in memory by now, and not in the file
                check_unpacked(file, held_bytes, len(pages))
            if seen > _HELD:
                give_back(pages)
                seen = 0
        give_back(pages)
    return Rows(
        types, tuple(batches), tuple(held), np.cumsum([len(batch) for batch in batches], dtype=np.int64)
    )


def _from_parquet(files: Sequence[Path], types: pyarrow.Schema, table: Table) -> Rows:
    """Unpacked to a file that is kept, or to one that has no name any more when this returns."""
    kept = os.environ.get(caches.VARIABLE)
    if kept:
        place = caches.place(kept, f"rows-{_mark(files, types)}.arrow")
        if not caches.is_kept(place):
            with caches.kept(place) as unfinished:
                _unpack(files, types, table, unfinished)
        return _opened([place], types, own=True)
    folder = Path(tempfile.mkdtemp(prefix="saltflat-"))
    try:
        _unpack(files, types, table, folder / "rows")
        return _opened([folder / "rows"], types, own=True)
    finally:  # what is mapped stays until the process ends, whether or not it has a name
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(files: Sequence[Path], types: pyarrow.Schema, table: Table, into: Path) -> None:
    """The declared columns as one Arrow file; some rows are in memory at a time, and never a whole row group.

    What a file's own account announces for these columns is checked before a page is unpacked, and what they become
    (a value that is stored once for many rows is written once for each) while it is written.
    """
    pa = _installed()
    import pyarrow.parquet

    numbers = sum(column.size if isinstance(column, Array) else 1 for column in table.columns)
    rows = max(1, min(1000, _AT_ONCE // (8 * numbers)))
    opener = lambda path, flags: os.open(path, flags, 0o600)  # as private as the data
    with open(into, "wb", opener=opener) as sink, pa.ipc.new_stream(sink, types) as writer:
        for file in files:
            packed, begun = file.stat().st_size, sink.tell()
            with pyarrow.parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False) as source:
                check_unpacked(file, _announced(source.metadata, types), packed)
                for batch in source.iter_batches(rows, columns=types.names, use_threads=False):
                    columns = [batch.column(name) for name in types.names]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=types))
                    check_unpacked(file, sink.tell() - begun, packed)
    pa.default_memory_pool().release_unused()


def _announced(account: Any, types: pyarrow.Schema) -> int:
    """The bytes that a Parquet file's account of itself announces for these columns, when they are unpacked."""
    groups = [account.row_group(number) for number in range(account.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(
        each.total_uncompressed_size for each in chunks if each.path_in_schema.split(".")[0] in types.names
    )


def _mark(files: Sequence[Path], types: pyarrow.Schema) -> str:
    """What tells unpacked files apart: names, lengths and times of the packed ones, and the columns."""
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((facts, str(types))).encode()).hexdigest()[:32]


def _installed() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise SettingError(
            "Parquet and Arrow files are read by pyarrow, which is not installed: pip install 'saltflat[large]'"
        ) from None
    return pyarrow
