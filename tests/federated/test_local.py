"""How a client trains, against torch.optim and by formula."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from reference import flat, trained
from steps import CRITERION, examples, network
from torch import nn

from saltflat import supervised
from saltflat.core.chance import seeded
from saltflat.core.sampling import pick
from saltflat.errors import SettingError
from saltflat.federated import Blur, Client, Climb, Feedback, Local
from saltflat.federated.local import Memory, climbed, difference, gradient_of, largest, objective
from saltflat.tree import Tree, norm

LOSS = supervised(CRITERION)
LOCAL = Local(epochs=3, batch_size=4, momentum=0.5, weight_decay=0.01, lr_decay=0.9, seed=3)


def update(local: Local, client: Client | None = None, step: int = 2, model: nn.Module | None = None) -> Tree:
    model = model or network()
    client = client or Client(7, examples(10))
    return difference(model, LOSS, local, point=trained(model), client=client, step=step)


def by_torch(local: Local, client: Client, step: int) -> Tree:
    """The same training by torch's own optimizer, in place."""
    model = copy.deepcopy(network())
    rate = local.lr * local.lr_decay**step
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.5, weight_decay=0.01)
    with seeded(local.key(step, client.number)):
        parts = local.order(len(client.rows[0]))
    for part in parts:
        optimizer.zero_grad()
        LOSS(model, pick(client.rows, part)).mean().backward()
        optimizer.step()
    return trained(model)


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_a_client_trains_as_torch_does(rows: int) -> None:
    client = Client(7, examples(rows))
    expected = flat(trained(network())) - flat(by_torch(LOCAL, client, 2))
    torch.testing.assert_close(flat(update(LOCAL, client)), expected, rtol=1e-12, atol=1e-12)


def test_an_epoch_sees_every_row_once() -> None:
    with seeded(5):
        parts = Local(epochs=2, batch_size=4).order(10)
    assert [len(part) for part in parts] == [4, 4, 2, 4, 4, 2]
    assert sorted(torch.cat(parts[:3]).tolist()) == sorted(torch.cat(parts[3:]).tolist()) == list(range(10))


def test_a_client_without_rows_adds_nothing() -> None:
    empty = Client(0, tuple(leaf[:0] for leaf in examples(3)))
    assert float(norm(update(LOCAL, empty))) == 0


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_climb_of_radius_zero_is_plain_training_bit_for_bit(adaptive: bool) -> None:
    plain, zero = update(LOCAL), update(dataclasses.replace(LOCAL, climb=Climb(0.0, adaptive)))
    assert torch.equal(flat(plain), flat(zero))
    away = update(dataclasses.replace(LOCAL, climb=Climb(0.1, adaptive)))
    assert not torch.allclose(flat(plain), flat(away), rtol=1e-3)


def test_one_sharpness_aware_step_is_the_gradient_uphill() -> None:
    local, client = Local(batch_size=10, lr=0.2, climb=Climb(0.3), seed=0), Client(1, examples(10))
    start = {name: leaf.requires_grad_() for name, leaf in trained(network()).items()}

    def gradient(point: Tree) -> list[torch.Tensor]:
        losses = LOSS(lambda x: torch.func.functional_call(network(), point, (x,)), client.rows)
        return list(torch.autograd.grad(losses.mean(), list(point.values())))

    first = gradient(start)
    length = torch.cat([g.flatten() for g in first]).norm()
    there = {n: (w + 0.3 * g / length).detach().requires_grad_()
             for (n, w), g in zip(start.items(), first, strict=True)}  # fmt: skip
    expected = torch.cat([0.2 * g.flatten() for g in gradient(there)])
    torch.testing.assert_close(flat(update(local, client)), expected, rtol=1e-9, atol=1e-12)


def rescaled(point: Tree, factor: float) -> Tree:
    """The same function: what one layer is multiplied by, the next is divided by, through a ReLU."""
    return {"0.weight": point["0.weight"] * factor, "2.weight": point["2.weight"] / factor}


@pytest.mark.parametrize(("adaptive", "same"), [(True, True), (False, False)])
def test_the_adaptive_climb_is_the_same_function_when_layers_are_rescaled(adaptive: bool, same: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    x, y = examples(10)

    def outputs(point: Tree) -> torch.Tensor:
        return torch.func.functional_call(model, point, (x,))

    def after_the_climb(point: Tree) -> torch.Tensor:
        g = gradient_of(lambda here: CRITERION(outputs(here), y).mean(), point)
        return outputs(climbed(point, g, Climb(0.5, adaptive)))

    point = trained(model)
    mine, other = after_the_climb(point), after_the_climb(rescaled(point, 3.0))
    assert torch.allclose(mine, other, rtol=1e-8) == same


def test_blur_is_part_of_what_is_differentiated() -> None:
    start, at = {"w": torch.zeros(2)}, {"w": torch.tensor([3.0, 4.0])}
    pull = lambda bound: gradient_of(lambda w: objective(0 * w["w"].sum(), Blur(bound, 0.5), w, start), at)[
        "w"
    ]
    assert pull(4.9).tolist() == [1.5, 2.0]  # weight (w - w_t)
    assert pull(5.1).tolist() == [0.0, 0.0]


def test_blur_keeps_updates_near_its_bound() -> None:
    far = Local(epochs=20, lr=0.3, batch_size=4, seed=0)
    free, near = (float(norm(update(dataclasses.replace(far, blur=b)))) for b in (None, Blur(0.1, 3.0)))
    assert near < 0.5 * free


def test_a_climb_and_blur_together_differentiate_both() -> None:
    both = dataclasses.replace(LOCAL, climb=Climb(0.1), blur=Blur(0.05, 2.0))
    only = dataclasses.replace(LOCAL, climb=Climb(0.1))
    assert float(norm(update(both))) < float(norm(update(only)))


def test_the_order_follows_seed_round_and_number_and_nothing_else() -> None:
    keys = {Local(seed=s).key(t, n) for s in range(3) for t in range(3) for n in range(3)}
    assert len(keys) == 27
    assert Local(seed=2).key(1, 0) == Local(seed=2, lr=9.0).key(1, 0)


def test_without_a_seed_the_order_cannot_be_told_from_round_and_number() -> None:
    assert len({Local().key(3, 4) for _ in range(100)}) == 100


def test_training_leaves_torchs_own_draws_alone() -> None:
    model = network()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    update(LOCAL, model=model)
    assert torch.equal(torch.rand(3), expected)


def test_the_largest_coordinates_stay_whichever_layer_they_are_in() -> None:
    whole = update(LOCAL)
    kept = largest(whole, 0.3)
    flat_whole, flat_kept = flat(whole), flat(kept)
    assert int((flat_kept != 0).sum()) == -(-3 * len(flat_whole) // 10)
    assert flat_whole[flat_kept != 0].abs().min() >= flat_whole[flat_kept == 0].abs().max()


MEMORY = Local(keep=0.5, feedback=Feedback(bound=2.0))


def tree_of(*values: float) -> Tree:
    return {"w": torch.tensor(values)}


def test_what_is_left_out_is_sent_later() -> None:
    memory = Memory()
    assert memory.sent(MEMORY, 1, 0, tree_of(3.0, 1.0))["w"].tolist() == [3.0, 0.0]
    assert memory.sent(MEMORY, 1, 4, tree_of(0.5, 1.0))["w"].tolist() == [0.0, 2.0]
    assert memory.sent(MEMORY, 2, 4, tree_of(0.5, 1.0))["w"].tolist() == [
        0.0,
        1.0,
    ]  # another's memory is its own


def test_a_second_question_of_a_round_begins_where_the_first_did() -> None:
    memory = Memory()
    memory.sent(MEMORY, 1, 0, tree_of(3.0, 1.0))
    once = memory.sent(MEMORY, 1, 1, tree_of(0.5, 1.0))
    assert torch.equal(memory.sent(MEMORY, 1, 1, tree_of(0.5, 1.0))["w"], once["w"])


def test_memory_is_bounded_and_a_void_update_leaves_it() -> None:
    memory = Memory()
    memory.sent(MEMORY, 1, 0, tree_of(100.0, 50.0))
    assert float(norm(memory.kept[1][2])) == 2.0
    assert memory.sent(MEMORY, 1, 1, tree_of(float("nan"), 1.0))["w"].isnan().any()
    assert memory.sent(MEMORY, 1, 2, tree_of(0.0, 0.1))["w"].tolist() == pytest.approx([0.0, 2.1])


def test_rounds_that_begin_anew_begin_without_memory() -> None:
    memory = Memory()
    memory.sent(MEMORY, 1, 5, tree_of(3.0, 1.0))
    assert memory.sent(MEMORY, 1, 0, tree_of(0.5, 0.9))["w"].tolist() == pytest.approx([0.0, 0.9])


NAN = float("nan")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"lr": NAN}, "lr"),
        ({"lr_decay": 1.1}, "lr_decay"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"keep": 0.0}, "keep"),
        ({"keep": NAN}, "keep"),
        ({"feedback": Feedback(1.0)}, "feedback"),
        ({"climb": 0.1}, "Climb"),
        ({"blur": 0.1}, "Blur"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_settings_are_named(wrong: dict, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Local(**wrong)


def test_wrong_parts_are_named() -> None:
    for make in (lambda: Climb(-1.0), lambda: Climb(NAN), lambda: Blur(NAN), lambda: Feedback(0.0)):
        with pytest.raises(SettingError):
            make()
    with pytest.raises(SettingError, match="adaptive"):
        Climb(0.1, adaptive=1)  # type: ignore[arg-type]
