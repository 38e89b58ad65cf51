"""CSV files with declared columns, and UCI Adult as an example of them.

*Guarantee*: nothing is fitted. Ranges and categories are declared by whoever knows the meaning of the columns;
a range or a list of categories read from private rows would be an unaccounted query.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from saltflat.data.examples import Examples, Split
from saltflat.data.files import Layout, Parts, content, one_of, one_record, resolve
from saltflat.errors import DataError, SettingError
from saltflat.settings import is_whole


@dataclass(frozen=True)
class Number:
    """A numeric column with its declared range: ``(value - low) / (high - low)``, held inside [0, 1].

    ``centred`` ones lie in [-1, 1] instead, which most networks learn better from. ``missing`` is the declared value
    of an empty cell (or NA, NaN); without it such a cell is a mistake.

    >>> Number("age", 0, 100).encode("39"), Number("age", 0, 100, centred=True, missing=50).encode("NA")
    ([0.39], [0.0])
    """

    name: str
    low: float
    high: float
    centred: bool = False
    missing: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise SettingError(
                f"column {self.name!r} needs a finite low < high; got {self.low} and {self.high}"
            )

        if self.missing is not None and not self.low <= self.missing <= self.high:
            raise SettingError(f"column {self.name!r}: missing must lie in {self.low} to {self.high}")

    def encode(self, text: str) -> list[float]:
        empty = self.missing is not None and text.lower() in ("", "na", "nan")
        value = self.missing if empty and self.missing is not None else float(text)
        if math.isnan(value):
            raise ValueError("not a number")
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return [2 * share - 1 if self.centred else share]


@dataclass(frozen=True)
class Category:
    """A column with its declared values: one input for each, 1 where it applies.

    A value that was not declared, such as a mark for "unknown", gives zeros only.

    >>> Category("sex", ("Female", "Male")).encode("Male"), Category("sex", ("Female", "Male")).encode("?")
    ([0.0, 1.0], [0.0, 0.0])
    """

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise SettingError(f"column {self.name!r} needs different values; got {self.values}")

    def encode(self, text: str) -> list[float]:
        return [float(text == value) for value in self.values]


@dataclass(frozen=True)
class Array:
    """A column of Parquet or Arrow files that holds lists of numbers, such as images, with their declared range.

    Each number is scaled to [-1, 1] and held there. Where it is the only column, examples keep its ``shape``.

    >>> Array("pixels", (1, 2), 0, 255).scaled(np.array([[0, 255]]))
    array([[-1.,  1.]], dtype=float32)
    """

    name: str
    shape: tuple[int, ...]
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.shape or any(not is_whole(each) for each in self.shape):
            raise SettingError(
                f"column {self.name!r} needs a shape, such as [1, 28, 28]; got {list(self.shape)}"
            )
        Number(self.name, self.low, self.high)  # the same is asked of a range

    @property
    def size(self) -> int:
        """How many numbers a cell holds."""
        return math.prod(self.shape)

    def scaled(self, cells: np.ndarray) -> np.ndarray:
        """Rows of numbers, from the declared range to [-1, 1]; a NaN is refused."""
        share = (cells.astype(np.float64) - self.low) / (self.high - self.low)
        if np.isnan(share).any():
            raise DataError(f"column {self.name!r} must hold numbers")
        return (2 * share.clip(0, 1) - 1).astype(np.float32)


@dataclass(frozen=True)
class Table:
    """What a CSV file means: the columns that are inputs, and the one that is the label, a class or a number.

    It says the same of Parquet and Arrow files, where a column may be an `Array` too.

    ``header`` names the file's columns where its first line does not. Lines that begin with ``comment`` and
    empty lines are passed over; ``trailing`` is cut off the end of labels.
    """

    columns: tuple[Number | Category | Array, ...]
    target: Category | Number
    header: tuple[str, ...] | None = None
    comment: str | None = None
    trailing: str = ""

    def __post_init__(self) -> None:
        if not self.columns:
            raise SettingError("a table needs at least one input column")
        names = [column.name for column in (*self.columns, self.target)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SettingError(f"column {twice[0]!r} is declared twice; the target is no input")

    @property
    def classes(self) -> int:
        """How many classes the target has; 0 if it is a number."""
        return len(self.target.values) if isinstance(self.target, Category) else 0

    @property
    def span(self) -> tuple[float, float] | None:
        """The declared range of a target that is a number."""
        return None if isinstance(self.target, Category) else (self.target.low, self.target.high)

    @property
    def width(self) -> int:
        """How many inputs a row has."""
        return sum(
            len(c.values) if isinstance(c, Category) else c.size if isinstance(c, Array) else 1
            for c in self.columns
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: a row of inputs, or that of the only column."""
        first = self.columns[0]
        return first.shape if isinstance(first, Array) and len(self.columns) == 1 else (self.width,)

    def read(self, path: Path) -> Examples:
        """The rows of one file, plain or .gz: float inputs (n, width) and the number of each label."""
        if lists := [column.name for column in self.columns if isinstance(column, Array)]:
            raise SettingError(
                f"column {lists[0]!r} holds lists of numbers, and {path} is a CSV: take Parquet"
            )
        rows: list[list[float]] = []
        labels: list[float] = []
        for number, cells in self._rows(path, [column.name for column in (*self.columns, self.target)]):
            try:
                row, label = self._encoded(cells)
            except DataError as error:
                raise DataError(f"{path}, {one_record(f'line {number}')}: {error}") from None
            rows.append(row)
            labels.append(label)
        if not rows:
            raise DataError(f"{path} holds no row")
        return Examples(torch.tensor(rows), torch.tensor(labels))

    def column(self, path: Path, name: str) -> tuple[str, ...]:
        """The entries of another column, in the order of the rows; each row must have one."""
        found = []
        for number, (cell,) in self._rows(path, [name]):
            if not cell:
                where = one_record(f"line {number}")
                raise DataError(f"{path}, {where}: column {name!r} is empty, and must say whose the row is")
            found.append(cell)
        return tuple(found)

    def _rows(self, path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """The number of each row's line, and its cells under the ``wanted`` names."""
        lines = csv_lines(path, self.comment)
        header = list(self.header) if self.header is not None else next(lines, (0, []))[1]
        if missing := [name for name in wanted if name not in header]:
            known = (
                f"its columns are {', '.join(header)}"
                if self._names(header)
                else "its first line names none: declare header=(...) for a file without a line of names"
            )
            raise DataError(f"{path} has no column {', '.join(missing)}; {known}")
        places = [header.index(name) for name in wanted]
        for number, cells in lines:
            if len(cells) != len(header):
                where = one_record(f"line {number}")
                raise DataError(
                    f"{path}, {where}: expected {len(header)} values, got {len(cells)}; the file is "
                    "truncated, or another one than declared"
                )
            yield number, [cells[place] for place in places]

    def _names(self, header: Sequence[str]) -> bool:
        """Whether a first line can be told to be names, most of them declared: else it may be a private row."""
        declared = {column.name for column in (*self.columns, self.target)}
        return self.header is not None or 2 * len(declared & set(header)) > len(declared)

    def _encoded(self, cells: Sequence[str]) -> tuple[list[float], float]:
        """One row; messages name the column and not the cell, which is private."""
        row: list[float] = []
        for column, cell in zip(self.columns, cells[:-1], strict=True):
            assert not isinstance(column, Array)
            try:
                row += column.encode(cell)
            except ValueError:
                raise DataError(f"column {column.name!r} must hold a number") from None
        return row, self.label(cells[-1])

    def label(self, cell: str) -> float:
        """The number of a class, or a number in its range; messages do not name the cell, which is private."""
        label = cell.removesuffix(self.trailing)
        if isinstance(self.target, Number):
            try:
                return self.target.encode(label)[0]
            except ValueError:
                raise DataError(f"the target {self.target.name!r} must hold a number") from None
        if label not in self.target.values:
            allowed = ", ".join(self.target.values)
            raise DataError(f"the label {self.target.name!r} must be one of {allowed}")
        return self.target.values.index(label)


def csv_lines(path: Path, comment: str | None) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line, with its number; spaces around a cell do not count."""
    try:
        text = content(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is no CSV file in UTF-8") from None
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    try:
        for cells in reader:
            if cells and not (comment and cells[0].startswith(comment)):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise DataError(f"{path}, {one_record(f'line {reader.line_num}')}: no CSV line: {error}") from None


def csv_table(
    train: str | Path, test: str | Path, data_dir: str | Path | None = None, *, table: Table
) -> Split:
    """Two CSV files with one meaning; each a full path, or one under ``data_dir`` or SALTFLAT_DATA."""
    parts = [table.read(resolve(path, data_dir)) for path in (train, test)]
    return Split(parts[0], parts[1], table.classes, table.span)


# Categories as adult.names, the data set's public description, lists them. Ranges are round numbers around what
# the columns can mean; nothing was taken from the rows. "?" (unknown) is not declared, and gives zeros.
_ADULT_TEXT = """
workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, Never-worked
education: Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, Masters,
 1st-4th, 10th, Doctorate, 5th-6th, Preschool
marital-status: Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent,
 Married-AF-spouse
occupation: Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, Handlers-cleaners,
 Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, Protective-serv, Armed-Forces
relationship: Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried
race: White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black
sex: Female, Male
native-country: United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), India,
 Japan, Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal,
 Ireland, France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua,
 Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands
"""


def _declared(text: str) -> tuple[Category, ...]:
    """Categories from lines of "name: value, value"; a line that begins with a space continues the last one."""
    lines = text.strip().replace("\n ", " ").splitlines()
    return tuple(
        Category(name, tuple(value.strip() for value in values.split(",")))
        for name, values in (line.split(":") for line in lines)
    )


ADULT = Table(
    columns=(
        Number("age", 0, 100),
        Number("education-num", 1, 16),
        Number("capital-gain", 0, 100_000),
        Number("capital-loss", 0, 5_000),
        Number("hours-per-week", 0, 100),
        *_declared(_ADULT_TEXT),
    ),
    target=Category("income", ("<=50K", ">50K")),
    header=(
        *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
        *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
        "income",
    ),
    comment="|",
    trailing=".",
)


def adult(folder: Path) -> Parts:
    """UCI Adult: 104 inputs (n, 104), all columns but fnlwgt, which is a survey weight."""
    train, test = (ADULT.read(one_of(folder, [f"adult.{part}"])) for part in ("data", "test"))
    return (train.inputs, train.targets), (test.inputs, test.targets)


ADULT_LAYOUTS = (Layout(("adult", "tabular"), "adult.data*", adult),)
