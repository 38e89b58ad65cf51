"""Files of the user's, by their name: npz with arrays, CSV with a table file, a folder of images.

*Guarantee*: nothing is fitted and nothing is counted. Classes, ranges and categories are declared; what is known
before rows are read (`own_form`) comes from the declarations, and from the head of an array, which holds its shape.
"""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saltflat.data.arrays import KERAS, images, read_arrays
from saltflat.data.examples import HALF, Examples, Split
from saltflat.data.files import resolve
from saltflat.data.folder import folder_form, folder_split
from saltflat.data.form import Form
from saltflat.data.registry import NAMES, unknown
from saltflat.data.table import Category, Number, Table
from saltflat.errors import DataError, SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENDINGS = (".npz", ".csv", ".csv.gz")
PLAIN = ("x", "y", "x_test", "y_test")  # or as `KERAS` has it; test arrays may be left out


@dataclass(frozen=True)
class Own:
    """A file of the user's, and what is declared of it.

    ``table`` is the file that declares a CSV's columns; ``test`` another CSV, of public rows. ``classes`` or ``span``
    (a range) declare the targets of an npz file. ``user`` is the column, or the array, that says whose each row is.
    """

    path: str
    table: str | None = None
    test: str | None = None
    classes: int | None = None
    span: tuple[float, float] | None = None
    user: str | None = None

    def __post_init__(self) -> None:
        if self.path in NAMES or not (self.path.endswith(ENDINGS) or self.is_folder):
            raise unsupported(self.path)
        if self.is_csv and self.table is None:
            raise SettingError(
                f"{self.path} needs a table file, which says what its columns mean: add --table mine.toml "
                "(see docs/tables.md)"
            )
        if not self.is_csv and (self.table is not None or self.test is not None):
            raise SettingError(
                "table and test go with a CSV file; an npz file has its test arrays, x_test and y_test, inside"
            )
        if self.is_folder and (self.span is not None or self.user is not None):
            raise SettingError(f"{self.path} holds images of classes; leave a target range and a user out")
        if not (self.is_csv or self.is_folder) and (self.classes is None) == (self.span is None):
            raise SettingError(
                f"say what y in {self.path} is: --classes 3 for whole numbers 0 to 2, or --target-range '[0, 100]' "
                "for numbers"
            )
        if self.span is not None and not (np.isfinite(self.span).all() and self.span[0] < self.span[1]):
            raise SettingError(f"a target range needs a finite low < high; got {self.span}")
        if self.classes is not None and self.classes < 2:
            raise SettingError(f"classes must be 2 or more; got {self.classes}")

    @property
    def is_csv(self) -> bool:
        return self.path.endswith(ENDINGS[1:])

    @property
    def is_folder(self) -> bool:
        return is_folder(self.path)


def is_folder(name: str) -> bool:
    """Whether a name of the user's data is that of a folder, of images: it is one, or could be by its name."""
    return not name.endswith(ENDINGS) and (not Path(name).suffix or Path(name).is_dir())


def is_own(name: str) -> bool:
    """Whether a name of data is that of a file or a folder, and not of a known data set.

    >>> is_own("mine.csv"), is_own("mnist"), is_own("")
    (True, False, False)
    """
    return (
        bool(name)
        and name not in NAMES
        and ("/" in name or "\\" in name or bool(Path(name).suffix) or Path(name).is_dir())
    )


def unsupported(name: str) -> SettingError:
    """What cannot be read, in words."""
    if not is_own(name):
        return unknown(name)
    return SettingError(
        f"{name} is no file that is read here: save it as .npz (arrays x and y) or as .csv, plain or .gz; images may "
        "also be a folder"
    )


def own_form(own: Own, data_dir: str | Path | None = None) -> Form:
    """The form of the examples, without reading one: from the table file, or from the head of the array x."""
    if own.is_csv:
        table = read_table(resolve(own.table or "", data_dir))
        form = Form((table.width,), table.classes, table.span)
        for declared, said in ((own.classes, form.classes), (own.span, form.span)):
            if declared is not None and declared != said:
                raise SettingError(
                    f"the target is declared by {own.table}, and differently; leave it out here"
                )
        return form
    if own.is_folder:
        return folder_form(resolve(own.path, data_dir), own.classes)
    shape, kind = _head(resolve(own.path, data_dir))
    if not shape or len(shape) < 2 or kind not in "fiu":
        raise DataError(f"{own.path}: x must hold numbers, one row or more axes for each example")
    is_image = kind == "u" and len(shape) in (3, 4)
    inner = shape[1:]
    if is_image:  # as `_rows` gives it: channels first
        inner = (inner[2] if len(inner) == 3 else 1, *inner[:2])
    return Form(inner, own.classes or 0, own.span)


def own_split(own: Own, data_dir: str | Path | None = None) -> Split:
    """The examples for training, and for testing as far as there are any."""
    if own.is_csv:
        table = read_table(resolve(own.table or "", data_dir))
        path = resolve(own.path, data_dir)
        train = table.read(path)
        test = _none_of(train) if own.test is None else table.read(resolve(own.test, data_dir))
        users = None if own.user is None else table.column(path, own.user)
        return Split(train, test, table.classes, table.span, users)
    if own.is_folder:
        return folder_split(resolve(own.path, data_dir), own.classes)
    return _arrays(own, resolve(own.path, data_dir))


def _arrays(own: Own, path: Path) -> Split:
    names = _names(path)
    arrays = read_arrays(path, names)
    train = _rows(arrays[names[0]], arrays[names[1]], own, path)
    test = _none_of(train) if len(names) == 2 else _rows(arrays[names[2]], arrays[names[3]], own, path)
    users = None if own.user is None else _users(path, own.user, train.count)
    try:
        return Split(train, test, own.classes or 0, own.span, users)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _rows(inputs: np.ndarray, targets: np.ndarray, own: Own, path: Path) -> Examples:
    """Examples of two arrays; what is wrong is told by name and type, and never by value or count."""
    if inputs.dtype.kind not in "fiu" or inputs.ndim < 2:
        raise DataError(f"{path}: x must hold numbers, a row for each example; got {inputs.dtype}")
    if targets.dtype.kind not in "fiu" or targets.ndim not in (1, 2) or targets.size != len(targets):
        raise DataError(f"{path}: y must hold one number for each example; got {targets.dtype}")
    if len(inputs) != len(targets):
        raise DataError(f"{path}: x and y do not have the same number of rows")
    if len(inputs) == 0:
        raise DataError(f"{path} holds no row")
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        raise DataError(
            f"{path}: x holds a NaN or an infinity; drop such rows, or put a declared number there"
        )
    y = targets.reshape(-1)
    if own.span is not None:
        if not np.isfinite(y).all():
            raise DataError(f"{path}: y holds a NaN or an infinity; drop such rows")
        low, high = own.span
        numbers = (2 * np.clip((y.astype(np.float64) - low) / (high - low), 0, 1) - 1).astype(np.float32)
        labels = torch.from_numpy(numbers)
    elif y.dtype.kind == "f":
        raise DataError(
            f"{path}: y holds {y.dtype}, and classes are whole numbers; save it as int64, or declare a target range"
        )
    else:
        labels = torch.from_numpy(y.astype(np.int64))
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        return Examples(images(inputs, path), labels, HALF)
    return Examples(torch.from_numpy(inputs.astype(np.float32)), labels)


def _users(path: Path, name: str, rows: int) -> tuple[str, ...]:
    """Whose each row is: an array of texts or whole numbers, one for each row."""
    found = read_arrays(path, [name])[name]
    if found.dtype.kind not in "iuU" or found.ndim != 1 or len(found) != rows:
        raise DataError(f"{path}: {name} must hold a text or a whole number for each row of x")
    return tuple(str(user) for user in found.tolist())


def _none_of(examples: Examples) -> Examples:
    """No example, of the same form."""
    return Examples(examples.inputs[:0], examples.targets[:0], examples.scale)


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return [name.removesuffix(".npy") for name in file.namelist()]
    except (OSError, zipfile.BadZipFile):
        raise DataError(f"{path} is no npz file, or a truncated one; write it with numpy.savez") from None


def _names(path: Path) -> tuple[str, ...]:
    """The arrays that are there: x and y, or x_train and y_train; and those for testing, if both are."""
    there = _members(path)
    for names in (PLAIN, KERAS):
        if names[0] in there and names[1] in there:
            missing = [name for name in names[2:] if name not in there]
            if len(missing) == 1:
                raise DataError(
                    f"{path} has no array {missing[0]}; give both of {' and '.join(names[2:])}, or none"
                )
            return names[: 2 if missing else 4]
    raise DataError(
        f"{path} needs arrays x and y, or x_train and y_train; it has {', '.join(there) or 'none'}"
    )


def _head(path: Path) -> tuple[tuple[int, ...], str]:
    """The shape and the kind of the training inputs, from the head of their array; no row is read."""
    name = _names(path)[0]
    try:
        with zipfile.ZipFile(path) as file, file.open(f"{name}.npy") as array:
            version = np.lib.format.read_magic(array)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(array)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        raise DataError(f"{path}: the array {name} cannot be read; write it with numpy.savez") from None
    return tuple(shape), dtype.kind


# The table file


def read_table(path: Path) -> Table:
    """The table that a TOML file declares: ``[target]``, and a line for each input under ``[columns]``.

    ``{low = 0, high = 100}`` is a number, scaled to [-1, 1]; ``{values = ["a", "b"]}`` a category.
    """
    try:
        text = path.read_bytes()[: 1 << 22].decode("utf-8-sig")
        whole = tomllib.loads(text)
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no table file: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    _only(whole, ("target", "columns", "header", "comment", "trailing"), f"{path}")
    columns, target = whole.get("columns"), whole.get("target")
    if not isinstance(columns, dict) or not columns:
        raise DataError(
            f"{path} declares no column; add a line such as age = {{low = 0, high = 100}} under [columns]"
        )
    if not isinstance(target, dict) or not isinstance(target.get("name"), str):
        raise DataError(
            f'{path} declares no target; add [target] with name = "...", and values or low and high'
        )
    try:
        return Table(
            columns=tuple(_column(name, each, f"{path}: column {name!r}") for name, each in columns.items()),
            target=_target(target, path),
            header=_texts(whole["header"], f"{path}: header") if "header" in whole else None,
            comment=_text(whole.get("comment"), f"{path}: comment"),
            trailing=_text(whole.get("trailing"), f"{path}: trailing") or "",
        )
    except SettingError as error:
        message = str(error)
        raise SettingError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _target(given: dict[str, Any], path: Path) -> Number | Category:
    own = {name: value for name, value in given.items() if name != "name"}
    column = _column(given["name"], own, f"{path}: the target")
    if isinstance(column, Number) and column.missing is not None:
        raise SettingError(f"{path}: the target cannot be missing; drop such rows")
    if isinstance(column, Category) and len(column.values) < 2:
        raise SettingError(f"{path}: the target needs two values or more")
    return column


def _column(name: str, given: Any, where: str) -> Number | Category:
    form = "{low = 0, high = 100} for a number, or {values = [...]} for a category"
    if not isinstance(given, dict):
        raise SettingError(f"{where} takes {form}")
    _only(given, ("values", "low", "high", "missing"), where)
    if "values" in given:
        if len(given) > 1:
            raise SettingError(f"{where} has values, so it has no low, high or missing")
        return Category(name, _texts(given["values"], where))
    if "low" not in given or "high" not in given:
        raise SettingError(f"{where} takes {form}")
    numbers = {key: _number(value, f"{where}: {key}") for key, value in given.items()}
    return Number(name, centred=True, **numbers)


def _only(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            raise SettingError(f"{where} has no setting {name!r}; known are {', '.join(known)}")


def _number(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise SettingError(f"{where} takes a number")
    return float(given)


def _text(given: Any, where: str) -> str | None:
    if given is not None and not isinstance(given, str):
        raise SettingError(f"{where} takes a text")
    return given


def _texts(given: Any, where: str) -> tuple[str, ...]:
    """A list of texts; whole numbers are taken as they are written."""
    whole = lambda each: isinstance(each, int) and not isinstance(each, bool)
    if not isinstance(given, list) or not all(isinstance(each, str) or whole(each) for each in given):
        raise SettingError(f'{where} takes a list of texts, such as ["yes", "no"]')
    return tuple(str(each).strip() for each in given)
