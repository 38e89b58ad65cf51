"""Many clients at once: the numbers of one by one."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from reference import flat, trained
from steps import CRITERION, examples, network
from torch import Tensor, nn

from saltflat import supervised
from saltflat.federated import Blur, Client, Climb, Local
from saltflat.federated.together import Trainer, made_up_clients, most_at_once

LOSS = supervised(CRITERION)
SIZES = [1, 3, 4, 9, 0, 5, 4, 12]


def clients(sizes: list[int] = SIZES) -> list[Client]:
    return [Client(10 + k, examples(rows, seed=k)) for k, rows in enumerate(sizes)]


LOCALS = {
    "plain": Local(batch_size=4, seed=0),
    "epochs, momentum, decay": Local(
        epochs=3, batch_size=4, momentum=0.5, weight_decay=0.1, lr_decay=0.9, seed=0
    ),
    "SAM": Local(epochs=2, batch_size=4, climb=Climb(0.1), seed=0),
    "ASAM, BLUR": Local(epochs=2, batch_size=4, climb=Climb(0.5, True), blur=Blur(0.05), seed=0),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("at_once", [2, 3, 100])
def test_together_as_one_by_one(local: Local, at_once: int) -> None:
    trainer, point = Trainer(network(), LOSS, local, step=2), trained(network())
    mine, other = (trainer.differences(point, clients(), most) for most in (at_once, 1))
    for one, alone in zip(mine, other, strict=True):
        assert one is not None
        assert alone is not None
        torch.testing.assert_close(flat(one), flat(alone), rtol=1e-10, atol=1e-13)


def test_in_float32_as_well() -> None:
    model = network().float()
    own = [Client(c.number, (c.rows[0].float(), c.rows[1])) for c in clients()]
    trainer, point = Trainer(model, LOSS, LOCALS["SAM"]), trained(model)
    for one, alone in zip(trainer.differences(point, own, 8), trainer.differences(point, own), strict=True):
        assert one is not None
        assert alone is not None
        assert float((flat(one) - flat(alone)).norm()) <= 1e-6 * (1 + float(flat(alone).norm()))


def test_the_place_among_others_says_nothing() -> None:
    trainer, point, own = Trainer(network(), LOSS, LOCALS["plain"]), trained(network()), clients()
    there, back = trainer.differences(point, own, 4), trainer.differences(point, own[::-1], 4)[::-1]
    for one, other in zip(there, back, strict=True):
        torch.testing.assert_close(flat(one), flat(other), rtol=1e-10, atol=1e-13)  # type: ignore[arg-type]


@pytest.mark.parametrize("gone", range(len(SIZES)))
def test_the_others_are_the_same_to_the_bit_without_one(gone: int) -> None:
    """In float32, where another width of a minibatch would round otherwise, and many local steps might magnify it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    sizes = [1, 3, 7, 13, 14, 15, 23, 40]
    own = [Client(k, (torch.randn(rows, 20), torch.randint(3, (rows,)))) for k, rows in enumerate(sizes)]
    trainer = Trainer(model, LOSS, Local(epochs=4, batch_size=16, momentum=0.5, seed=0))
    with_all = trainer.differences(trained(model), own, 4)
    rest = [client for client in own if client.number != gone]
    for client, mine in zip(rest, trainer.differences(trained(model), rest, 4), strict=True):
        assert torch.equal(flat(mine), flat(with_all[client.number]))  # type: ignore[arg-type]


def test_a_client_whose_rows_fail_is_void_and_the_others_are_identical() -> None:
    """A label out of range fails the whole stack; another client stands in, so that every shape stays."""
    trainer, point, own = Trainer(network(), LOSS, LOCALS["plain"]), trained(network()), clients([4] * 5)
    sound = trainer.differences(point, own, 5)
    own[2] = Client(12, (own[2].rows[0], torch.tensor([0, 1, 99, 0])))
    found = trainer.differences(point, own, 5)
    assert found[2] is None
    for k in (0, 1, 3, 4):
        assert torch.equal(flat(found[k]), flat(sound[k]))  # type: ignore[arg-type]


def test_rows_of_another_form_are_a_stack_of_their_own() -> None:
    trainer, point, own = Trainer(network(), LOSS, LOCALS["plain"]), trained(network()), clients([4] * 4)
    wide = Client(99, (torch.zeros(4, 5, dtype=torch.float64), own[0].rows[1]))
    found = trainer.differences(point, [own[0], wide, *own[1:]], 8)
    assert [each is None for each in found] == [False, True, False, False, False]


def of_rows(model: nn.Module) -> int:
    return most_at_once(Trainer(model, LOSS, Local()), trained(model), examples(3))


class Branching(nn.Module):
    """What is run depends on the numbers: a stack of clients cannot go two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2 if float(x.sum()) > 0 else self.layer(x)


def test_small_models_are_trained_together() -> None:
    assert of_rows(network()) == 128
    wide = nn.Sequential(
        nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3)
    ).double()
    assert 8 <= of_rows(wide) < 128


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)).double(),
        nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)
        ).double(),
        Branching(),
    ],
    ids=["random", "batch statistic", "branching"],
)
def test_others_one_by_one_and_the_log_says_so(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "saltflat"):
        assert of_rows(model) == 1
    assert "one by one" in caplog.text


def test_large_ones_and_convolutions_one_by_one() -> None:
    assert of_rows(nn.Sequential(nn.Linear(4, 40_000), nn.Linear(40_000, 3)).double()) == 1
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    rows = (torch.randn(3, 1, 4, 4), torch.zeros(3, dtype=torch.long))
    assert most_at_once(Trainer(conv, LOSS, Local()), trained(conv), rows) == 1


class Viewing(nn.Module):
    """``view`` wants its channels where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).view(len(x), -1))


def test_channels_last_changes_nothing_but_the_time() -> None:
    torch.manual_seed(0)
    viewing = Viewing().double()
    flattened = nn.Sequential(viewing.conv, nn.Flatten(), viewing.head)
    client = Client(0, (torch.randn(5, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])))
    local = Local(batch_size=2, seed=1)
    by_view, by_flatten = (
        Trainer(model, LOSS, local).alone(trained(model), client) for model in (viewing, flattened)
    )
    torch.testing.assert_close(flat(by_view), flat(by_flatten), rtol=1e-10, atol=1e-13)


def test_made_up_clients_hold_nothing_of_the_data() -> None:
    rows = (torch.full((4, 3), 1234.5), torch.full((4,), 77))
    made = made_up_clients(rows)
    assert all(float(client.rows[0].abs().max()) < 10 and int(client.rows[1].max()) <= 1 for client in made)
    assert torch.equal(made[0].rows[0], made_up_clients((rows[0] + 1, rows[1]))[0].rows[0])


def test_an_empty_client_and_an_unreadable_one() -> None:
    trainer, point = Trainer(network(), LOSS, LOCALS["plain"]), trained(network())
    found = trainer.differences(point, [Client(0, examples(0)), Client(1, object()), *clients([3, 3])], 8)
    assert float(flat(found[0]).norm()) == 0  # type: ignore[arg-type]
    assert found[1] is None
    assert replace(trainer, step=1).local is trainer.local
