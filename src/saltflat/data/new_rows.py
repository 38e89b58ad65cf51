"""Readers of rows that a trained model is to predict: files, folders of pictures, arrays, data frames.

A row that cannot be read does not stop the others: it comes with the reason, and its prediction stays empty. Reasons
name the place and the column, and never a value.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saltflat.data.arrays import read_arrays
from saltflat.data.files import resolve
from saltflat.data.own import CSV
from saltflat.data.parquet import ENDINGS as PARQUET
from saltflat.data.parquet import encoded_batches, shards_of
from saltflat.data.pictures import SUFFIXES, decode
from saltflat.data.preprocessing import Preprocessing
from saltflat.data.table import Array, Table, csv_lines
from saltflat.errors import DataError

AT_ONCE = 256  # pictures, or rows of Parquet, in memory at once


@dataclass(frozen=True, eq=False)
class NewRows:
    """Some rows for a model.

    Args:
        names: What each row is called: its number from 1, or the path of a picture.
        inputs: One input per row, as the run's preprocessing makes it; zeros where a row could not be read.
        targets: The number of each row's class, or its target scaled to [-1, 1]; NaN where there is none.
        reasons: Why a row could not be read, by its place in these rows.
    """

    names: list[str] = field(repr=False)
    inputs: Tensor = field(repr=False)
    targets: np.ndarray = field(repr=False)
    reasons: dict[int, str] = field(default_factory=dict, repr=False)


def read_new_rows(
    source: Any, preprocessing: Preprocessing, data_dir: str | Path | None = None
) -> Iterator[NewRows]:
    """The rows in ``source``, some at a time.

    Args:
        source: The path of a CSV, Parquet, Arrow or npz file, of a picture, of a folder of pictures or of Parquet or
            .npy files; or a pandas DataFrame, a list of dictionaries, an array or a tensor.
        preprocessing: That of the run whose model is used.
        data_dir: A folder under which a path is looked for too.

    Raises:
        DataError: Nothing in ``source`` can be read, or it is not what the run was trained on.
    """
    if preprocessing.form.words:
        raise DataError("this run's model predicts words of a text; rows are predicted of tables and images")
    if not isinstance(source, str | Path):
        yield _in_memory(source, preprocessing)
        return
    path = resolve(source, data_dir)
    if preprocessing.table is not None:
        if path.name.endswith(CSV):
            yield _csv(path, preprocessing.table)
        elif path.name.endswith(PARQUET) or (path.is_dir() and any(_parquet_files(path))):
            yield from _parquet(path, preprocessing.table)
        else:
            raise DataError(
                f"{path} is no table; this run's model takes a .csv, .parquet or .arrow file with the columns "
                f"{', '.join(column.name for column in preprocessing.table.columns)}"
            )
    elif path.name.endswith(".npz"):
        yield _npz(path, preprocessing)
    elif path.is_dir() and (path / "x.npy").is_file():
        yield from _npy(path, preprocessing)
    elif path.is_dir() or path.suffix.lower() in SUFFIXES:
        yield from _pictures(path, preprocessing)
    else:
        raise DataError(
            f"{path} cannot be predicted from; give an .npz file with an array x, a folder with x.npy, a picture, or a "
            "folder of pictures"
        )


def _parquet_files(folder: Path) -> Iterator[Path]:
    return (file for ending in PARQUET for file in folder.glob(f"*{ending}"))


# Tables


def _csv(path: Path, table: Table) -> NewRows:
    if lists := [column.name for column in table.columns if isinstance(column, Array)]:
        raise DataError(f"column {lists[0]!r} holds lists of numbers, and {path} is a CSV: give Parquet")
    lines = csv_lines(path, table.comment)
    header = list(table.header) if table.header is not None else next(lines, (0, []))[1]
    missing = [column.name for column in table.columns if column.name not in header]
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}; the model was trained with it")
    # where names are declared and not in the file, a file without targets is one column narrower
    narrow = [name for name in header if name != table.target.name] if table.header is not None else header
    encoded: list[tuple[np.ndarray | None, str]] = []
    labels: list[str] = []
    for number, cells in lines:
        names = narrow if len(cells) == len(narrow) else header
        if len(cells) != len(names):
            encoded.append((None, f"line {number}: expected {len(header)} values, got {len(cells)}"))
            labels.append("")
            continue
        row = dict(zip(names, cells, strict=True))
        encoded.append(_encoded(row, table, f"line {number}"))
        labels.append(row.get(table.target.name, ""))
    if not encoded:
        raise DataError(f"{path} holds no row")
    return _table_rows(encoded, labels, table, 1)


def _parquet(path: Path, table: Table) -> Iterator[NewRows]:
    first = 1
    files = shards_of(path, part="") if path.is_dir() else [path]
    for rows, labels in encoded_batches(files, table, at_once=AT_ONCE):
        encoded = [(row, why and f"row {first + k}: {why}") for k, (row, why) in enumerate(rows)]
        yield _table_rows(encoded, labels, table, first)
        first += len(rows)
    if first == 1:
        raise DataError(f"{path} holds no row")


def _encoded(row: Mapping[str, str], table: Table, where: str) -> tuple[np.ndarray | None, str]:
    """One row's inputs, or why there are none."""
    found: list[float] = []
    for column in table.columns:
        assert not isinstance(column, Array)
        try:
            found += column.encode(row[column.name])
        except ValueError:
            return None, f"{where}: column {column.name!r} must hold a number"
    return np.array(found, dtype=np.float32), ""


def _table_rows(
    encoded: Sequence[tuple[np.ndarray | None, str]], labels: Sequence[str], table: Table, first: int
) -> NewRows:
    inputs = np.zeros((len(encoded), *table.shape), dtype=np.float32)
    targets, reasons = np.full(len(encoded), np.nan), {}
    for place, ((row, why), label) in enumerate(zip(encoded, labels, strict=True)):
        if row is None:
            reasons[place] = why
            continue
        inputs[place] = row
        with suppress(DataError):  # a label that was not declared is as good as none
            targets[place] = table.label(label) if label else np.nan
    names = [str(first + place) for place in range(len(encoded))]
    return NewRows(names, torch.from_numpy(inputs), targets, reasons)


# Arrays


def _npz(path: Path, preprocessing: Preprocessing) -> NewRows:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = list(file)
    except Exception:  # damaged archives raise almost anything
        raise DataError(f"{path} is no npz file, or a truncated one; write it with numpy.savez") from None
    if "x" not in names:
        raise DataError(f"{path} needs an array x, and may have y; it has {', '.join(names) or 'none'}")
    arrays = read_arrays(path, [name for name in ("x", "y") if name in names])
    return _array(arrays["x"], arrays.get("y"), preprocessing, str(path))


def _npy(path: Path, preprocessing: Preprocessing) -> Iterator[NewRows]:
    try:
        x = np.load(path / "x.npy", mmap_mode="r", allow_pickle=False)
        y = np.load(path / "y.npy", allow_pickle=False) if (path / "y.npy").is_file() else None
    except Exception:  # as above
        raise DataError(f"{path} holds an array that cannot be read; write it with numpy.save") from None
    if y is not None and len(y) != len(x):
        raise DataError(f"{path}: x and y do not have the same number of rows")
    for start in range(0, max(1, len(x)), 16 * AT_ONCE):
        part = slice(start, start + 16 * AT_ONCE)
        yield _array(x[part], None if y is None else y[part], preprocessing, str(path), first=1 + start)


def _array(
    x: np.ndarray, y: np.ndarray | None, preprocessing: Preprocessing, where: str, first: int = 1
) -> NewRows:
    """Rows of an array, as training takes them: bytes as images where the run was trained on images."""
    shape = preprocessing.form.shape
    if x.dtype.kind not in "fiub" or x.ndim < 2 or len(x) == 0:
        raise DataError(f"{where}: x must hold numbers, one row or more; got {x.dtype} of shape {x.shape}")
    reasons: dict[int, str] = {}
    if x.dtype == np.uint8 and preprocessing.scale is not None:
        pixels = x[..., None] if x.ndim == 3 else x
        if pixels.ndim == 4 and pixels.shape[1:] == (*shape[1:], shape[0]):
            pixels = pixels.transpose(0, 3, 1, 2)
        _check_shape(pixels.shape[1:], shape, where)
        inputs = torch.from_numpy(np.ascontiguousarray(pixels))
    elif preprocessing.takes_floats:
        _check_shape(x.shape[1:], shape, where)
        rows = x.astype(np.float32)
        broken = ~np.isfinite(rows).reshape(len(rows), -1).all(1)
        rows[broken] = 0
        reasons = {int(k): f"row {first + k}: x holds a NaN or an infinity" for k in np.flatnonzero(broken)}
        inputs = torch.from_numpy(rows)
    else:
        raise DataError(
            f"{where}: the model was trained on images in bytes, and x holds {x.dtype}; give pixels 0 to 255 as uint8"
        )
    names = [str(first + k) for k in range(len(x))]
    return NewRows(names, inputs, _targets(y, len(x), preprocessing, where), reasons)


def _check_shape(found: Sequence[int], wanted: Sequence[int], where: str) -> None:
    if tuple(found) != tuple(wanted):
        raise DataError(
            f"{where}: one row has shape {tuple(found)}, and the model was trained on {tuple(wanted)}"
        )


def _targets(y: np.ndarray | None, count: int, preprocessing: Preprocessing, where: str) -> np.ndarray:
    """Targets as numbers of classes or scaled to [-1, 1]; one that is no declared class counts as none."""
    if y is None:
        return np.full(count, np.nan)
    if y.size != count:
        raise DataError(f"{where}: y must hold one number for each row of x")
    flat, form = y.reshape(-1), preprocessing.form
    if flat.dtype.kind in "US":
        numbers = {name: number for number, name in enumerate(preprocessing.class_names)}
        return np.array([numbers.get(str(each), np.nan) for each in flat], dtype=np.float64)
    if flat.dtype.kind not in "fiub":
        raise DataError(f"{where}: y must hold one number for each row of x; got {y.dtype}")
    numbers_in = flat.astype(np.float64)
    if form.span is not None:
        low, high = form.span
        return 2 * np.clip((numbers_in - low) / (high - low), 0, 1) - 1
    known = (numbers_in == np.floor(numbers_in)) & (numbers_in >= 0) & (numbers_in < form.classes)
    return np.where(known, numbers_in, np.nan)


# Pictures


def _pictures(path: Path, preprocessing: Preprocessing) -> Iterator[NewRows]:
    """One picture, or all in a folder and its subfolders. A subfolder with a class's name gives the target."""
    shape = preprocessing.form.shape
    if preprocessing.scale is None or len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"{path}: this run's model was not trained on images in bytes; give an .npz file with an array x of rows "
            f"of shape {shape}"
        )
    base = path if path.is_dir() else path.parent
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = [file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        raise DataError(f"{path} holds no picture; expected files that end in {', '.join(sorted(SUFFIXES))}")
    numbers = {name: number for number, name in enumerate(preprocessing.class_names)}
    for start in range(0, len(files), AT_ONCE):
        some = files[start : start + AT_ONCE]
        pixels = np.zeros((len(some), *shape), dtype=np.uint8)
        reasons = {}
        for place, file in enumerate(some):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Pillow's, of files that it reads all the same
                    found = decode(file, size=(shape[1], shape[2]), grey=shape[0] == 1)
                pixels[place] = found.transpose(2, 0, 1)
            except Exception as error:  # Pillow raises almost anything for damaged files
                if "saltflat[images]" in str(error):
                    raise
                reasons[place] = f"{file.relative_to(base)} is no picture, or a truncated one"
        targets = [numbers.get(file.parent.name, np.nan) if file.parent != base else np.nan for file in some]
        names = [file.relative_to(base).as_posix() for file in some]
        yield NewRows(names, torch.from_numpy(pixels), np.array(targets, dtype=np.float64), reasons)


# Objects in memory


def _in_memory(rows: Any, preprocessing: Preprocessing) -> NewRows:
    table = preprocessing.table
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a data frame, without importing pandas
        rows = rows.to_dict("records")
    if isinstance(rows, Sequence) and len(rows) and all(isinstance(row, Mapping) for row in rows):
        if table is None:
            raise DataError(
                "this run's model takes an array of rows, as it was trained on one; got dictionaries"
            )
        return _dictionaries(rows, table)
    if table is not None:
        raise DataError(
            "this run's model takes rows of a table: give a DataFrame, a list of dictionaries with the columns' names, "
            "or the path of a file"
        )
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu().numpy()
    try:
        array = np.asarray(rows)
    except ValueError:
        raise DataError("rows must be an array of numbers, one row for each example") from None
    return _array(array, None, preprocessing, "rows")


def _dictionaries(rows: Sequence[Mapping[str, Any]], table: Table) -> NewRows:
    encoded: list[tuple[np.ndarray | None, str]] = []
    for column in table.columns:
        if all(column.name not in row for row in rows):
            raise DataError(f"the rows have no column {column.name!r}; the model was trained with it")
        if isinstance(column, Array):
            raise DataError(f"column {column.name!r} holds lists of numbers; give the path of a Parquet file")
    for number, row in enumerate(rows, start=1):
        cells = {column.name: _text(row.get(column.name)) for column in table.columns}
        encoded.append(_encoded(cells, table, f"row {number}"))
    labels = [_text(row.get(table.target.name)) for row in rows]
    return _table_rows(encoded, labels, table, 1)


def _text(cell: Any) -> str:
    """A cell as a CSV would have it; empty where there is none."""
    if cell is None or str(cell) in ("nan", "<NA>", "NaT"):
        return ""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))  # a data frame turns whole numbers into floats where a cell is empty
    return str(cell).strip()
