"""With an example, a model is tried before the first step without reading a private unit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from steps import CRITERION, network

import saltflat as sf
from saltflat.errors import ModelError, SettingError

MADE_UP = (torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.long))


class Counted(torch.utils.data.Dataset):
    """Forty items that count how often they are read."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        self.read += 1
        return torch.full((4,), place / 40, dtype=torch.float64), place % 3


def loop(data: Any, example: Any, loss: Any = CRITERION) -> Any:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    running = sf.Running(example=example)
    return sf.make_private(
        model, loss, data, optimizer=sgd, epsilon=8, batch_size=10, epochs=1, running=running
    )


def test_no_private_unit_is_read_before_the_first_step() -> None:
    data = Counted()
    private = loop(data, MADE_UP)
    assert data.read == 0
    for batch in private:
        private.step(batch)
    assert data.read > 0
    assert private.finished


def test_without_an_example_private_units_are_read_for_their_form() -> None:
    data = Counted()
    loop(data, None)
    assert data.read > 0


def test_fit_takes_an_example() -> None:
    running = sf.Running(example=MADE_UP)
    fitted = sf.fit(network(), CRITERION, Counted(), epsilon=8, batch_size=10, epochs=1, running=running)
    assert fitted.statement.epsilon <= 8


def test_a_model_that_does_not_take_the_example_is_refused() -> None:
    wrong = (torch.zeros(2, 5), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ModelError, match="fails on every one of the first examples"):
        loop(Counted(), wrong)


def test_a_loss_that_mixes_is_refused_on_the_example() -> None:
    mixing = lambda predict, batch: CRITERION(predict(batch[0] - batch[0].mean(0)), batch[1])
    with pytest.raises(ModelError, match="mixes the batch"):
        loop(Counted(), MADE_UP, mixing)


@pytest.mark.parametrize(
    "example",
    [(torch.zeros(2, 4), torch.zeros(3, dtype=torch.long)), (torch.zeros(0, 4), torch.zeros(0).long())],
    ids=["unequal", "empty"],
)
def test_an_example_that_is_no_batch_is_refused(example: Any) -> None:
    with pytest.raises(SettingError, match="a batch of whole units"):
        loop(Counted(), example)
