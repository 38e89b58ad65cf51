"""`saltflat.preflight`: what training would leave out, on one's own screen."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from people import Items, Tagger, sentences, tagging
from steps import CRITERION, examples, network
from torch import nn

import saltflat as sf
from saltflat.errors import ModelError, PrivacyError, SettingError
from saltflat.front import rows as room
from saltflat.landscape import PUBLIC, STAYS_PRIVATE


def look(data: Any, loss: Any = CRITERION, model: nn.Module | None = None, **more: Any) -> sf.front.Preflight:
    return sf.preflight(model or network(), loss, data, access=STAYS_PRIVATE, **more)


def spoiled() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = examples(400)
    x[0, 1], x[1, 2] = torch.nan, torch.inf
    y[300:303] = 9
    y[5] = -100  # cross-entropy ignores it: a gradient of zero is no mistake
    x[6] = 1e200  # its gradient is not finite
    return x, y


def test_every_reason_is_counted_once() -> None:
    found = look(spoiled())
    assert found.looked == 400
    assert found.found == {room.NOT_FINITE: 2, room.LABEL: 3, room.FAILS: 1}
    assert found.share == 6 / 400


def test_rows_that_training_takes_are_sound() -> None:
    assert look(examples()).found == {}
    assert look(examples()).share == 0
    assert str(look(examples())).endswith("0 % of 12 rows would contribute nothing.")


def test_unreadable_items_and_other_forms() -> None:
    class Some(Items):
        def __getitem__(self, i: int) -> Any:
            if i == 4:
                raise OSError
            row = super().__getitem__(i)
            return row if i != 7 else row | {"input_ids": row["input_ids"][:3]}

    found = look(Some(sentences()), tagging, Tagger())
    assert found.found == {room.UNREAD: 1, room.FAILS: 1}


def test_it_says_that_it_is_private() -> None:
    found = look(spoiled())
    assert repr(found) == str(found)
    assert str(found).startswith("PRIVATE, for this screen only")
    assert "1.5 % of 400 rows" in str(found)
    public = sf.preflight(network(), CRITERION, spoiled(), access=PUBLIC)
    assert str(public).startswith("1.5 %")


def test_nothing_is_read_without_a_declaration() -> None:
    class Guarded(sf.data.TensorUnits):
        def take(self, indices: Any) -> Any:
            raise AssertionError("an example was read")

    with pytest.raises(PrivacyError, match="a preflight reads examples without noise"):
        sf.preflight(network(), CRITERION, Guarded(examples()))


def test_only_the_first_rows_and_the_weights_stay() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    assert look(spoiled(), model=model, rows=2).found == {room.NOT_FINITE: 2}
    assert all(torch.equal(before[name], leaf) for name, leaf in model.state_dict().items())


def test_it_is_neither_stored_nor_sent() -> None:
    for sent in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(PrivacyError, match="stays on the screen"):
            sent(look(examples()))


def test_mistakes_are_those_of_fit() -> None:
    with pytest.raises(SettingError, match='reduction="none"'):
        look(examples(), nn.CrossEntropyLoss())
    with pytest.raises(ModelError, match="BatchNorm"):
        look(examples(), model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    assert look(tuple(np.asarray(t) for t in examples())).found == {}
