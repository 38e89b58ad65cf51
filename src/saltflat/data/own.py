"""Files of the user's, by their name: npz with arrays, CSV with a table file, a folder of images; and what stays on
disk, Parquet or Arrow files with a table file and folders of .npy files.

*Guarantee*: nothing is fitted and nothing is counted. Classes, ranges and categories are declared; what is known
before rows are read (`own_form`) comes from the declarations, and from the head of an array, which holds its shape.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from saltflat.data.arrays import KERAS, head_of, read_arrays, rows_of
from saltflat.data.blocks import Blocks, blocks
from saltflat.data.examples import Examples, Split
from saltflat.data.files import resolve
from saltflat.data.folder import folder_class_names, folder_form, folder_split
from saltflat.data.form import Form
from saltflat.data.parquet import ENDINGS as PARQUET
from saltflat.data.parquet import opened, shards_of
from saltflat.data.registry import NAMES, unknown
from saltflat.data.stored import Stored, form_of, inside, is_pattern, read_all, stored
from saltflat.data.table import Array, Category, Number, Table
from saltflat.errors import DataError, SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CSV = (".csv", ".csv.gz")
ENDINGS = (".npz", *CSV, *PARQUET)
STAYS = ("parquet", "npy")  # kinds that are read when they are drawn
PLAIN = ("x", "y", "x_test", "y_test")  # or as `KERAS` has it; test arrays may be left out


@dataclass(frozen=True)
class Own:
    """A file of the user's, and what is declared of it.

    ``table`` is the file that declares the columns of a CSV or of Parquet; ``test`` another file, of public rows.
    ``classes`` or ``span`` (a range) declare the targets of an npz file, or of .npy files in a folder. ``user`` is the
    column, or the array, that says whose each row is.
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
        if not self.is_folder or os.path.isdir(os.path.expanduser(self.path)):
            self.check(kind_of(Path(self.path).expanduser()))
        if self.span is not None and not (np.isfinite(self.span).all() and self.span[0] < self.span[1]):
            raise SettingError(f"a target range needs a finite low < high; got {self.span}")
        if self.classes is not None and self.classes < 2:
            raise SettingError(f"classes must be 2 or more; got {self.classes}")

    def check(self, kind: str) -> None:
        """Refuse what does not go with data of this kind, and ask for what must be declared of it."""
        tabular, declares = kind in ("csv", "parquet"), kind in ("npz", "npy")
        if tabular and self.table is None:
            raise SettingError(
                f"{self.path} needs a table file, which says what its columns mean: add --table mine.toml "
                "(see docs/tables.md)"
            )
        if not tabular and (self.table is not None or self.test is not None):
            raise SettingError(
                "table and test go with a CSV file or Parquet; arrays have theirs, x_test and y_test, beside x and y"
            )
        if kind == "images" and (self.span is not None or self.user is not None):
            raise SettingError(f"{self.path} holds images of classes; leave a target range and a user out")
        if kind in STAYS and self.user is not None:
            raise SettingError(
                f"{self.path} stays on disk, where rows are not put together by user; take a CSV or an npz file"
            )
        if declares and (self.classes is None) == (self.span is None):
            raise SettingError(
                f"say what y in {self.path} is: --classes 3 for whole numbers 0 to 2, or --target-range '[0, 100]' "
                "for numbers"
            )

    @property
    def is_folder(self) -> bool:
        return is_folder(self.path)


def kind_of(path: Path) -> str:
    """What a path of the user's is, by its name or by the names in the folder: csv, npz, parquet, npy, or images."""
    if path.name.endswith(CSV):
        return "csv"
    if path.name.endswith(".npz"):
        return "npz"
    if path.name.endswith(PARQUET) or any(any(path.glob(f"*{end}")) for end in PARQUET):
        return "parquet"
    return "npy" if any(path.glob("*.npy")) else "images"


def is_folder(name: str) -> bool:
    """Whether a name of the user's data is that of a folder: it is one, or could be by its name."""
    return not name.endswith(ENDINGS) and (not Path(name).suffix or os.path.isdir(name))


def is_own(name: str) -> bool:
    """Whether a name of data is that of a file or a folder, and not of a known data set.

    >>> is_own("mine.csv"), is_own("mnist"), is_own(""), is_own("a" * 10_000)
    (True, False, False, False)
    """
    return bool(name) and name not in NAMES and (is_own_by_name(name) or os.path.isdir(name))


def is_own_by_name(name: str) -> bool:
    """Whether a name is that of a file or a folder wherever it is read: it has a separator or an ending."""
    return "/" in name or "\\" in name or bool(Path(name).suffix)


def unsupported(name: str) -> SettingError:
    """What cannot be read, in words."""
    if not is_own(name):
        return unknown(name)
    return SettingError(
        f"{name} is no file that is read here: save it as .npz (arrays x and y) or as .csv, plain or .gz, or as "
        ".parquet; images may also be a folder, and so may x.npy and y.npy"
    )


def own_form(own: Own, data_dir: str | Path | None = None) -> Form:
    """The form of the examples, without reading one: from the table file, or from the head of the array x."""
    path, kind = _found(own, data_dir, there=False)
    if kind in ("csv", "parquet"):
        table = read_table(resolve(own.table or "", data_dir))
        form = Form(table.shape, table.classes, table.span)
        for declared, said in ((own.classes, form.classes), (own.span, form.span)):
            if declared is not None and declared != said:
                raise SettingError(
                    f"the target is declared by {own.table}, and differently; leave it out here"
                )
        return form
    if kind == "images":
        return folder_form(path, own.classes)
    if kind == "npy":
        return Form(form_of(_files(path)[0]), own.classes or 0, own.span)
    shape, letter = _head(path)
    if not shape or len(shape) < 2 or letter not in "fiu":
        raise DataError(f"{own.path}: x must hold numbers, one row or more axes for each example")
    is_image = letter == "u" and len(shape) in (3, 4)
    inner = shape[1:]
    if is_image:  # as `rows_of` gives it: channels first
        inner = (inner[2] if len(inner) == 3 else 1, *inner[:2])
    return Form(inner, own.classes or 0, own.span)


def has_images(own: Own, data_dir: str | Path | None = None) -> bool:
    """Whether the examples are images in bytes, which are scaled; the heads of files are read, and no row."""
    path, kind = _found(own, data_dir, there=False)
    if kind == "npz":
        shape, letter = _head(path)
        return letter == "u" and len(shape) in (3, 4)
    if kind == "npy":
        inputs = _files(path)[0]
        return inputs.dtype == np.uint8 and len(inputs.shape) in (2, 3)
    return kind == "images"


def class_names_of(own: Own, data_dir: str | Path | None = None) -> tuple[str, ...]:
    """The public names of the classes, in the order of their numbers; empty where classes are numbers alone."""
    path, kind = _found(own, data_dir, there=False)
    if kind in ("csv", "parquet"):
        target = read_table(resolve(own.table or "", data_dir)).target
        return target.values if isinstance(target, Category) else ()
    return folder_class_names(path) if kind == "images" else ()


def own_split(own: Own, data_dir: str | Path | None = None) -> Split:
    """The examples for training, and for testing as far as there are any; Parquet and folders of .npy stay on disk."""
    path, kind = _found(own, data_dir)
    if kind == "csv":
        table = read_table(resolve(own.table or "", data_dir))
        train = table.read(path)
        test = _none_of(train) if own.test is None else table.read(resolve(own.test, data_dir))
        users = None if own.user is None else table.column(path, own.user)
        return Split(train, test, table.classes, table.span, users)
    if kind == "images":
        return folder_split(path, own.classes)
    if kind == "parquet":
        return _parquet(own, path, data_dir)
    return _stored(own, path) if kind == "npy" else _arrays(own, path)


def _found(own: Own, data_dir: str | Path | None, *, there: bool = True) -> tuple[Path, str]:
    """Where the data is, and what it is; a pattern is looked up later, file by file.

    What a table file declares is known before the data is ``there``.
    """
    path = Path(own.path)
    by_table = path.name.endswith((*CSV, *PARQUET))
    if not is_pattern(path) and (there or not by_table):
        path = resolve(path, data_dir)
    own.check(kind := kind_of(path))
    return path, kind


def _parquet(own: Own, path: Path, data_dir: str | Path | None) -> Split:
    """Shards for training stay on disk; those for testing, named by ``test`` or beside, are read."""
    table = read_table(resolve(own.table or "", data_dir))
    shards = shards_of(path, data_dir)
    train = opened(shards, table)
    beside = (
        [] if own.test is not None or not path.is_dir() else sorted(path.glob(f"test*{shards[0].suffix}"))
    )
    tests = shards_of(own.test, data_dir, part="test") if own.test is not None else beside
    if set(tests) & set(shards):  # no names that begin with train: then all files are
        tests = []
    test = read_all(opened(tests, table)) if tests else _nothing(train)
    return Split(cast(Examples, train), test, table.classes, table.span)


def _stored(own: Own, path: Path) -> Split:
    """x.npy and y.npy, or x-*.npy and y-*.npy, stay on disk; x_test.npy and y_test.npy, if they are there, are read."""
    found = [*_files(path)]
    form = Form(form_of(found[0]), own.classes or 0, own.span)
    train, *tests = (stored(pair[0], pair[1], form) for pair in (found[:2], found[2:]) if pair)
    test = read_all(tests[0]) if tests else _nothing(train)
    return Split(cast(Examples, train), test, own.classes or 0, own.span)


def _files(path: Path) -> list[Blocks]:
    """The arrays of a folder, each of them one .npy file or several."""
    there = {each.name.removesuffix(".npy").rpartition("-")[0] or each.stem for each in path.glob("*.npy")}
    names = _chosen(sorted(there), path)
    single = lambda name: f"{name}.npy" if (path / f"{name}.npy").exists() else f"{name}-*.npy"
    return [blocks(inside(path, single(name))) for name in names]


def _nothing(examples: Stored) -> Examples:
    """No example, of the same form."""
    inputs, targets = examples.form.made_up(1)
    return Examples(inputs[:0], targets[:0])


def _arrays(own: Own, path: Path) -> Split:
    names = _names(path)
    arrays = read_arrays(path, names)
    train = rows_of(arrays[names[0]], arrays[names[1]], path, span=own.span)
    test = (
        _none_of(train)
        if len(names) == 2
        else rows_of(arrays[names[2]], arrays[names[3]], path, span=own.span)
    )
    users = None if own.user is None else _users(path, own.user, train.count)
    try:
        return Split(train, test, own.classes or 0, own.span, users)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


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
    """The arrays of an npz file that are read."""
    return _chosen(_members(path), path)


def _chosen(there: Sequence[str], path: Path) -> tuple[str, ...]:
    """Of the arrays that are there x and y, or x_train and y_train; and those for testing, if both are."""
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
            shape, dtype = head_of(array)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        raise DataError(f"{path}: the array {name} cannot be read; write it with numpy.savez") from None
    return shape, dtype.kind


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
    if isinstance(column, Array):
        raise SettingError(f"{path}: the target is a class or one number; leave shape out")
    if isinstance(column, Number) and column.missing is not None:
        raise SettingError(f"{path}: the target cannot be missing; drop such rows")
    if isinstance(column, Category) and len(column.values) < 2:
        raise SettingError(f"{path}: the target needs two values or more")
    return column


def _column(name: str, given: Any, where: str) -> Number | Category | Array:
    form = (
        "{low = 0, high = 100} for a number, {values = [...]} for a category, or {shape = [1, 28, 28], low = 0, "
        "high = 255} for lists of numbers"
    )
    if not isinstance(given, dict):
        raise SettingError(f"{where} takes {form}")
    _only(given, ("values", "low", "high", "missing", "shape"), where)
    if "values" in given:
        if len(given) > 1:
            raise SettingError(f"{where} has values, so it has no low, high or missing")
        return Category(name, _texts(given["values"], where))
    if "low" not in given or "high" not in given:
        raise SettingError(f"{where} takes {form}")
    if "shape" in given:
        shape = given["shape"]
        if not isinstance(shape, list) or "missing" in given:
            raise SettingError(
                f"{where} takes a shape, such as [1, 28, 28], with low and high, and no missing"
            )
        return Array(name, tuple(shape), *(_number(given[key], f"{where}: {key}") for key in ("low", "high")))
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
