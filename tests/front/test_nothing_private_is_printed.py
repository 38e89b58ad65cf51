"""No repr and no message holds a private value: neither inputs nor labels, nor how many rows there are.

The private rows here are recognisable: whatever prints one of them is found.
"""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from people import Items, around
from steps import phase, plan
from torch import nn

import saltflat as sf
from saltflat import audit
from saltflat.core.ask import Ask
from saltflat.core.contribution import Private, Without, chunks_of
from saltflat.core.mechanism import Bounded, clipped_sum
from saltflat.core.sampling import OnDevice
from saltflat.core.spot import Trial
from saltflat.core.step import start
from saltflat.core.train import Progress, Spent
from saltflat.data import csv_table
from saltflat.data.examples import UNIT
from saltflat.errors import SaltflatError
from saltflat.front import given
from saltflat.landscape import STAYS_PRIVATE
from saltflat.landscape.objective import Objective

COUNT = 7193  # rows: a number that nothing else here has
INPUT, LABEL, PIXEL = 31.41592, 86420, 251
CRITERION = nn.CrossEntropyLoss(reduction="none")
VALUES = re.compile(r"31\.4\d|86420|(?<!\d)251(?!\d)|7193|array\(|tensor\(\[")


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((COUNT, 4), INPUT), torch.full((COUNT,), LABEL)


def images() -> sf.data.Examples:
    return sf.data.Examples(
        torch.full((COUNT, 1, 2, 2), PIXEL, dtype=torch.uint8), torch.zeros(COUNT).long(), UNIT
    )


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def contribution() -> Any:
    return sf.per_example(model(), sf.supervised(CRITERION))


def sampled() -> chunks_of:
    units = sf.data.TensorUnits(rows())
    return chunks_of(Private.of(contribution(), units), np.arange(3, COUNT), 100)


def holders() -> Iterator[Any]:
    """Everything public, and on the way of the step, that holds private rows or what was not yet noised."""
    x, y = rows()
    units = sf.data.TensorUnits((x, y))
    yield units
    yield sf.data.TensorUnits({"x": x, "y": (y,)})
    yield sf.data.DatasetUnits.of(Items({"x": x, "labels": y}))
    yield OnDevice(units, torch.device("cpu"))
    yield sf.data.Examples(x, y)
    yield images()
    yield sf.data.Split(images(), images(), 10)
    yield sf.data.NewRows([str(INPUT)], x, y.numpy(), {0: str(INPUT)})
    yield sf.data.Shared(np.arange(3), images(), images())
    yield sf.data.Authors(*(torch.full((COUNT, 1, 4), LABEL) for _ in range(2)))
    yield given.given(model(), CRITERION, (x, y))
    yield Private.of(contribution(), units)
    yield sampled()
    params = dict(model().named_parameters())
    yield Ask(sampled(), None)  # type: ignore[arg-type]
    bounded = clipped_sum(contribution_chunks(), 1.0, params)
    yield bounded
    yield next(contribution_chunks())
    yield Trial(contribution(), params, (x[:3], y[:3]), 3, 1e-6)
    yield Without(next(contribution_chunks()), torch.ones(3, dtype=torch.bool))  # type: ignore[arg-type]
    yield start(plan(phase()), {name: torch.full((2,), INPUT) for name in ("a", "b")})
    yield Progress(1, 0, {"w": x[:2]}, {"w": x[:2]}, 5, model(), Spent(plan(), secret=True), 1e-5)
    yield Objective(losses=lambda w, batch: batch, batches=[x], access=STAYS_PRIVATE)
    yield audit.Company(contribution(), units, STAYS_PRIVATE)
    yield audit.Sides(units, units)
    sgd_model = model()
    sgd = torch.optim.SGD(sgd_model.parameters(), lr=0.1)
    sound = (x, torch.zeros_like(y))
    settings = {"plan": plan(phase(steps=1), size=12), "delta": 1e-5, **around()}
    private = sf.make_private(sgd_model, CRITERION, sound, optimizer=sgd, **settings)
    yield private
    yield next(iter(private))
    yield sf.fit(model(), CRITERION, sound, **settings)


def contribution_chunks() -> Iterator[Any]:
    yield contribution()([dict(model().named_parameters())], [1.0], (rows()[0][:3], torch.zeros(3).long()))


@pytest.mark.parametrize("show", [repr, str, "{}".format])
def test_no_repr_holds_a_private_value(show: Callable[[Any], str]) -> None:
    for each in holders():
        assert not VALUES.search(show(each)), type(each).__name__


def test_every_public_class_that_holds_data_is_among_them() -> None:
    """A class of the rooms of data whose fields may hold rows is either looked at above, or known to hold none."""
    looked = {type(each) for each in holders()}
    rooms = (sf.data, audit)
    public = {
        value
        for room in rooms
        for name in room.__all__
        if isinstance(value := getattr(room, name), type) and dataclasses.is_dataclass(value)
    }
    holds_rows = {kind for kind in public if any(map(may_hold_rows, dataclasses.fields(kind)))}
    assert holds_rows <= looked, holds_rows - looked
    assert {sf.data.Examples, sf.data.TensorUnits, audit.Company} <= holds_rows


def may_hold_rows(field: Any) -> bool:
    return any(
        word in str(field.type) for word in ("Tensor", "Batch", "Dataset", "Examples", "Units", "ndarray")
    ) or (field.name in ("units", "members", "others", "tensors", "rows"))


def told(error: BaseException) -> str:
    """All that a person sees of an error: its message, and those of the errors that it came from."""
    return "".join(line for line in traceback.format_exception_only(error)) + "".join(
        told(other)
        for other in (error.__cause__, None if error.__suppress_context__ else error.__context__)
        if other is not None
    )


def by_fit(data: Any, loss: Any = CRITERION, **more: Any) -> None:
    sf.fit(model(), loss, data, epsilon=3, quiet=True, **more)


def boom(predict: Any, batch: Any) -> torch.Tensor:
    raise ValueError(f"label {batch[1].tolist()} at {batch[0].tolist()}")


WRONG: dict[str, Callable[[Path], None]] = {
    "labels out of range": lambda folder: by_fit(rows()),
    "a loss that fails with the row in its words": lambda folder: by_fit(rows(), boom),
    "fewer labels than rows": lambda folder: by_fit((rows()[0], rows()[1][1:])),
    "fewer labels than rows, as examples": lambda folder: sf.data.Examples(rows()[0], rows()[1][1:]),
    "labels beyond the declared classes": lambda folder: sf.data.Split(
        sf.data.Examples(*rows()), sf.data.Examples(*rows()), 3
    ),
    "more rows than declared": lambda folder: by_fit(rows(), size=100),
    "a batch larger than the data": lambda folder: by_fit(rows(), batch_size=9999),
    "texts": lambda folder: by_fit([(f"{INPUT}", LABEL)] * 9),
    "an array of texts": lambda folder: by_fit((np.full((9, 4), f"{INPUT}"), np.full(9, LABEL))),
    "a list of numbers": lambda folder: by_fit([INPUT] * 9),
    "a number": lambda folder: by_fit(INPUT),
    "a table without a line of names": lambda folder: table(folder, f"{INPUT},{LABEL}\n" * 9),
    "a cell that is no number": lambda folder: table(folder, f"x,y\n{INPUT}e,0\n{INPUT},{LABEL}\n"),
    "a label that was not declared": lambda folder: table(folder, f"x,y\n{INPUT},{LABEL}\n"),
    "a delta above one over the rows": lambda folder: by_fit(rows(), delta=0.01),
    "an npz of texts": lambda folder: arrays(folder, x_train=np.full((COUNT, 2), f"{INPUT}")),
    "an npz with targets of two numbers": lambda folder: arrays(folder, y_train=np.full((COUNT, 2), LABEL)),
    "an npz of flat images": lambda folder: arrays(folder, x_train=np.zeros((COUNT, 4), np.uint8)),
    "an npz with fewer labels": lambda folder: arrays(folder, y_train=np.zeros(COUNT - 1, np.int64)),
    "an npz cut short": lambda folder: arrays(folder, cut=True),
    "comments of authors with one label each": lambda folder: sf.data.Authors.of(
        sf.data.Examples(torch.zeros(COUNT, 4).long(), torch.full((COUNT,), LABEL)), ["ann"] * COUNT, rows=2
    ),
    "an idx file cut short": lambda folder: idx(folder, COUNT - 1),
    "a picture that is none": lambda folder: pictures(folder, ["anna-31.415.png"], b"no picture"),
    "a line with too many cells": lambda folder: table(folder, f"x,y\n{INPUT},0,{LABEL}\n"),
}


def arrays(folder: Path, *, cut: bool = False, **changed: np.ndarray) -> None:
    inputs, labels = np.full((COUNT, 2), INPUT, np.float32), np.zeros(COUNT, np.int64)
    whole = {"x_train": inputs, "y_train": labels, "x_test": inputs, "y_test": labels}
    np.savez(folder / "a.npz", **{**whole, **changed})
    if cut:
        (folder / "a.npz").write_bytes((folder / "a.npz").read_bytes()[:-99])
    sf.data.npz(folder / "a.npz", classes=3)


def idx(folder: Path, count: int) -> None:
    from saltflat.data.idx import read_idx

    head = bytes([0, 0, 8, 1]) + COUNT.to_bytes(4, "big")
    (folder / "a").write_bytes(head + bytes(count))
    read_idx(folder / "a", 1)


def pictures(folder: Path, names: list[str], content: bytes) -> None:
    pytest.importorskip("PIL")
    for name in names:
        for part in ("train", "test"):
            (folder / part / "86420").mkdir(parents=True, exist_ok=True)
            (folder / part / "86420" / name).write_bytes(content)
    sf.data.image_folder(folder)


def table(folder: Path, text: str) -> None:
    (folder / "a.csv").write_text(text)
    declared = sf.data.Table(columns=(sf.data.Number("x", 0, 50),), target=sf.data.Category("y", ("0", "1")))
    csv_table(folder / "a.csv", folder / "a.csv", table=declared)


@pytest.mark.parametrize("what", WRONG)
def test_no_message_holds_a_private_value(what: str, tmp_path: Path) -> None:
    with pytest.raises(SaltflatError) as caught:
        WRONG[what](tmp_path)
    message = told(caught.value).replace(str(tmp_path), "")
    assert not VALUES.search(message), message


def test_no_warning_and_no_look_says_how_many_there_are() -> None:
    x, y = torch.randn(COUNT, 4), torch.zeros(COUNT).long()
    done = sf.fit(model(), CRITERION, (x, y), epsilon=3, delta=5e-5, batch_size=64, epochs=0.02, quiet=True)
    (warning,) = done.statement.warnings
    assert "delta 5e-05 is above 1/(10 n)" in warning
    assert not VALUES.search(warning)
    assert "e-05 or less" not in warning, "what is advised would say it too"
    looked = sf.doctor(model(), sf.supervised(CRITERION), (x, y))
    assert not VALUES.search(f"{looked.text} {looked!r}")


def test_the_words_are_found_where_they_are() -> None:
    """The search itself would find a repr that holds them."""
    x, y = rows()
    for each in (x, y, x.tolist()[:1], y[:1].numpy(), INPUT, Bounded, images().inputs[:1], COUNT):
        if each is not Bounded:
            assert VALUES.search(repr(each))


def test_units_that_fail_are_left_out_where_the_model_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A label out of range is no reason to end a run, nor to be named, in whatever batch the look falls on it."""
    from saltflat.core.spot import LookAgain

    compared: list[int] = []
    real = LookAgain._compare

    def seen(self: Any, params: Any, batch: Any) -> None:
        real(self, params, batch)
        compared.append(len(batch[1]))

    monkeypatch.setattr(LookAgain, "_compare", seen)
    monkeypatch.setattr(LookAgain, "changed", lambda self: True)
    x, y = torch.randn(40, 4), torch.zeros(40).long()
    y[::4] = LABEL
    every = plan(phase(steps=3), rate=1.0, size=40)
    assert sf.fit(model(), CRITERION, (x, y), plan=every, delta=1e-3, quiet=True).steps == 3
    assert compared == [30, 30, 30]
    y[:] = LABEL
    y[:4] = 0
    assert sf.fit(model(), CRITERION, (x, y), plan=every, delta=1e-3, quiet=True).steps == 3


def test_a_check_of_ones_own_speaks_for_itself() -> None:
    """Units that are not rows have another check, and what it raises is not ours to swallow."""
    from saltflat.core.step import _look

    def spot(params: Any, batch: Any) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        _look(spot, {}, Private(object(), sf.data.TensorUnits(rows()), COUNT), None)  # type: ignore[arg-type]
