"""What both bridges rest on, without either of their packages: whatever else moves a weight raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import saltflat as sf
from saltflat import bridges
from saltflat.bridges.guard import (
    Guard,
    Ticket,
    Tickets,
    check_shown,
    checked,
    loader_of_tickets,
    loop_of,
    marks,
)
from saltflat.errors import PrivacyError, SettingError

LOSS = nn.CrossEntropyLoss(reduction="none")
SETTINGS = {"epsilon": 8, "delta": 1e-3, "batch_size": 20, "epochs": 2, "method": sf.methods.DPSGD()}


@pytest.fixture
def guard() -> Guard:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    rows = torch.randn(40, 4), torch.arange(40) % 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Guard(model, optimizer, loop_of(model, LOSS, rows, SETTINGS))


def backward(guard: Guard) -> None:
    LOSS(guard.model(torch.randn(3, 4)), torch.tensor([0, 1, 0])).mean().backward()


def test_every_step_is_the_loops(guard: Guard) -> None:
    for number in range(1, guard.loop.plan.steps + 1):
        guard.step()
        guard._optimizer.step()  # what the loop around does afterwards: nothing is there to take
        guard.check(number)
    assert guard.loop.finished
    assert float(guard.said) <= 8


def test_a_gradient_by_another_way(guard: Guard) -> None:
    backward(guard)
    before = guard.model.weight.clone()
    with pytest.raises(PrivacyError, match="did not come through the private step"):
        guard._optimizer.step()
    assert torch.equal(guard.model.weight, before)


def test_gradients_that_were_left_are_no_part_of_a_private_step(guard: Guard) -> None:
    backward(guard)
    guard.step()
    assert guard.model.weight.grad is None


@pytest.mark.parametrize("way", ["optimizer", "data", "one bit"])
def test_a_weight_that_another_hand_moved(guard: Guard, way: str) -> None:
    guard.step()
    if way == "optimizer":
        backward(guard)
        torch.optim.SGD(guard.model.parameters(), lr=0.1).step()
    elif way == "data":
        guard.model.bias.data += 1
    else:
        guard.model.weight.data.view(-1).view(torch.int32)[3] ^= 1
    with pytest.raises(PrivacyError, match="changed outside the private step"):
        guard.step()
    with pytest.raises(PrivacyError, match="changed outside the private step"):
        guard.check()
    assert guard.loop.done == 1


def test_a_momentum_that_another_hand_wrote() -> None:
    """The next private step would add it to the weights, without clip and noise."""
    model = nn.Linear(4, 2)
    rows = torch.randn(40, 4), torch.arange(40) % 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    guard = Guard(model, optimizer, loop_of(model, LOSS, rows, SETTINGS))
    guard.step()
    guard.check()
    optimizer.state[model.weight]["momentum_buffer"][0, 0] += 1
    with pytest.raises(PrivacyError, match=r"'weight \(its momentum_buffer in the optimizer\)' was changed"):
        guard.step()


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_on_the_optimizer(guard: Guard, when: str) -> None:
    guard.step()
    getattr(guard._optimizer, f"register_step_{when}_hook")(lambda *given: None)
    with pytest.raises(PrivacyError, match="a hook was put on the optimizer"):
        guard.step()


def test_an_average_of_released_weights_is_declared(guard: Guard) -> None:
    first = guard.model.weight.detach().clone()
    guard.step()
    with torch.no_grad():
        guard.model.weight.copy_((guard.model.weight + first) / 2)
    with pytest.raises(PrivacyError, match=r"declare that by guard\.accept"):
        guard.check()
    guard.accept()
    guard.step()


def test_a_step_that_was_not_ours(guard: Guard) -> None:
    guard.step()
    with pytest.raises(PrivacyError, match="2 steps were taken and 1 of them"):
        guard.check(2)


def test_two_weights_that_change_places(guard: Guard) -> None:
    """Sums would not see it; where a value stands counts too."""
    before = marks(guard.model)
    weight = guard.model.weight.data.view(-1)
    weight[0], weight[1] = weight[1].clone(), weight[0].clone()
    assert marks(guard.model) != before


def test_after_it_is_closed_the_optimizer_is_free(guard: Guard) -> None:
    guard.close()
    backward(guard)
    guard._optimizer.step()


@pytest.mark.parametrize("privacy", [None, {}, 3, [], "epsilon"])
def test_without_privacy(privacy: Any) -> None:
    with pytest.raises(PrivacyError, match="privacy is not attached"):
        checked(privacy)


def test_settings_that_are_given_twice_or_undo_it() -> None:
    with pytest.raises(SettingError, match="'loss'"):
        checked({"epsilon": 3, "loss": LOSS})
    with pytest.raises(PrivacyError, match="use the plain class"):
        checked({"epsilon": 3, "private": False})


def test_tickets_hold_nobody() -> None:
    assert [Tickets(2)[k] for k in range(2)] == [{"ticket": 0}, {"ticket": 1}]
    assert len(list(Tickets(3))) == len(Tickets(3)) == 3  # type: ignore[call-overload]


def test_names_that_there_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute"):
        bridges.Keras  # noqa: B018


def test_private_rows_are_not_shown() -> None:
    rows = torch.randn(40, 4)
    check_shown(rows[20:], rows[:20], "test_dataset")
    with pytest.raises(PrivacyError, match="test_dataset is the private data, or has rows of it"):
        check_shown(rows[19:], rows[:20], "test_dataset")


@pytest.mark.parametrize(
    "look", [lambda t: t[0], lambda t: t["x"], list, lambda t: dict(**t), lambda t: t.get("x")]
)
def test_a_ticket_refuses_whoever_looks_for_rows(look: Any) -> None:
    (ticket,) = loader_of_tickets(1)
    assert isinstance(ticket, Ticket)
    with pytest.raises(PrivacyError, match="training_step looked for rows"):
        look(ticket)
