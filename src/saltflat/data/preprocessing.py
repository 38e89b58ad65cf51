"""How a new row becomes the input of a trained model: what a run keeps of it.

*Guarantee*: a `Preprocessing` holds declarations alone (ranges, categories, class names, published constants) and the
shape of one example. Nothing in it was computed from private rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saltflat.data.examples import HALF, UNIT, Scale
from saltflat.data.files import resolve
from saltflat.data.form import Form
from saltflat.data.own import Own, class_names_of, has_images, own_form, read_table
from saltflat.data.registry import SOURCES, is_text, official_form
from saltflat.data.table import ADULT, Array, Category, Number, Table
from saltflat.errors import DataError, SaltflatError

FORMAT = 1
_COLUMNS: dict[str, Any] = {
    "number": Number,
    "category": Category,
    "array": Array,
}


@dataclass(frozen=True)
class Preprocessing:
    """How rows become inputs of a model, and what its outputs mean.

    Args:
        form: Shape of one example before any feature map, and its declared target.
        class_names: The name of each class; empty where classes are known by their numbers alone.
        table: The declared columns, where rows are those of a table.
        scale: How pixels 0 to 255 are scaled; None where the model was not trained on images.
        takes_floats: Whether arrays of floats are taken as they are. False where the model was trained on bytes.
    """

    form: Form
    class_names: tuple[str, ...] = ()
    table: Table | None = None
    scale: Scale | None = None
    takes_floats: bool = True

    def class_of(self, number: int) -> str | int:
        """The class with this number, by its name if it has one."""
        return self.class_names[number] if self.class_names else number

    def as_document(self) -> dict[str, Any]:
        """The same as plain values that JSON holds."""
        form, table = self.form, self.table
        return {
            "format": FORMAT,
            "shape": list(form.shape),
            "classes": form.classes,
            "target_range": None if form.span is None else list(form.span),
            "words": form.words,
            "class_names": list(self.class_names),
            "scale": None
            if self.scale is None
            else {"mean": list(self.scale.mean), "std": list(self.scale.std)},
            "takes_floats": self.takes_floats,
            "table": None
            if table is None
            else {
                "columns": [_column_document(each) for each in table.columns],
                "target": _column_document(table.target),
                "header": None if table.header is None else list(table.header),
                "comment": table.comment,
                "trailing": table.trailing,
            },
        }

    @classmethod
    def from_document(cls, given: Any, where: str) -> Preprocessing:
        """What `as_document` wrote; ``where`` names the file in the error if it is damaged."""
        try:
            if given["format"] != FORMAT:
                raise DataError(
                    f"{where} is of format {given['format']!r}, which this version does not read; update saltflat"
                )
            span, scale, table = given["target_range"], given["scale"], given["table"]
            form = Form(
                tuple(int(side) for side in given["shape"]),
                int(given["classes"]),
                None if span is None else (float(span[0]), float(span[1])),
                int(given["words"]),
            )
            names = tuple(str(name) for name in given["class_names"])
            if names and len(names) != form.classes:
                raise ValueError("as many names as classes are needed")
            return cls(
                form,
                names,
                None if table is None else _table_from(table),
                None if scale is None else Scale(tuple(scale["mean"]), tuple(scale["std"])),
                bool(given["takes_floats"]),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, SaltflatError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{where} is damaged; bring it back from where the run was trained") from None


def preprocessing_of(name: str, own: Own | None, data_dir: str | Path | None = None) -> Preprocessing:
    """The preprocessing of a data set by ``name``, or of the user's file ``own``; no private row is read.

    Args:
        name: The recipe's ``data``.
        own: The user's file and what is declared of it; None for a data set by name.
        data_dir: The folder that holds the data sets.
    """
    if own is None:
        form = official_form(name)
        if name == "adult":
            return Preprocessing(form, _class_names(ADULT), ADULT)
        if is_text(name):
            return Preprocessing(form)
        source = SOURCES.get(name)
        # digits are floats in [0, 1]; bytes are brought there by UNIT
        scale = UNIT if source is None else source.scale
        return Preprocessing(form, scale=scale, takes_floats=source is None)
    form = own_form(own, data_dir)
    if own.table is not None:
        table = read_table(resolve(own.table, data_dir))
        return Preprocessing(form, _class_names(table), table)
    names = class_names_of(own, data_dir)
    is_image = has_images(own, data_dir)
    # more classes may be declared than the public part shows: then they have numbers alone
    names = names if len(names) == form.classes else ()
    return Preprocessing(form, names, scale=HALF if is_image else None, takes_floats=not is_image)


def _class_names(table: Table) -> tuple[str, ...]:
    return table.target.values if isinstance(table.target, Category) else ()


def _column_document(column: Number | Category | Array) -> dict[str, Any]:
    kind = next(name for name, kind in _COLUMNS.items() if type(column) is kind)
    return {"kind": kind, **asdict(column)}


def _table_from(given: Mapping[str, Any]) -> Table:
    target = _column_from(given["target"])
    if isinstance(target, Array):
        raise ValueError("a target is a class or a number")
    header = given["header"]
    return Table(
        columns=tuple(map(_column_from, given["columns"])),
        target=target,
        header=None if header is None else tuple(header),
        comment=given["comment"],
        trailing=given["trailing"],
    )


def _column_from(given: Mapping[str, Any]) -> Number | Category | Array:
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name != "kind"
    }
    return _COLUMNS[given["kind"]](**settings)
