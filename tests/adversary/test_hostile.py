"""The list of the dishonest: each would move a sum by more than the clip norm, or make a record lie; each is refused.

`tests/adversary/test_honest.py` is the other list. A gate is wrong if either fails.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from steps import CRITERION, examples, network, phase, plan
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import saltflat as sf
from saltflat.clipping import Flat
from saltflat.errors import DataError, ModelError, PrivacyError, SaltflatError, SettingError
from saltflat.frames import Inside, Shift

Loss = Callable[..., Tensor]


def train(model: nn.Module, loss: Any, data: Any, **more: Any) -> Any:
    return sf.fit(model, loss, data, plan=plan(phase(steps=3)), delta=1e-3, **more)


def narrow(count: int = 40) -> tuple[Tensor, Tensor]:
    x, y = examples(count)
    return x.float(), y


def plain() -> nn.Module:
    return network().float()


# Units that are not apart


def by_length(predict: Any, batch: Any) -> Tensor:
    """Divided by the batch's length: whoever leaves changes everybody's gradient."""
    return CRITERION(predict(batch[0]), batch[1]) / len(batch[1]) * 64


def by_maximum(predict: Any, batch: Any) -> Tensor:
    return CRITERION(predict(batch[0] / batch[0].abs().max()), batch[1])


def by_mean(predict: Any, batch: Any) -> Tensor:
    return CRITERION(predict(batch[0] - batch[0].mean(0)), batch[1])


def hardest(predict: Any, batch: Any) -> Tensor:
    each = CRITERION(predict(batch[0]), batch[1])
    return each * (each >= each.topk(min(8, len(each))).values[-1])


def contrasted(predict: Any, batch: Any) -> Tensor:
    out = F.normalize(predict(batch[0]), dim=1)
    return F.cross_entropy(out @ out.T, torch.arange(len(out)), reduction="none")


def first_row(predict: Any, batch: Any) -> Tensor:
    return CRITERION(predict(batch[0] + batch[0][0]), batch[1])


def shuffled(predict: Any, batch: Any) -> Tensor:
    return CRITERION(predict(batch[0].roll(1, 0)), batch[1])


def ranked(predict: Any, batch: Any) -> Tensor:
    each = CRITERION(predict(batch[0]), batch[1])
    return each * (1 + each.argsort().argsort() / 10)


@pytest.mark.parametrize(
    "loss",
    [by_length, by_maximum, by_mean, hardest, contrasted, first_row, shuffled, ranked],
    ids=lambda loss: loss.__name__,
)
def test_losses_that_mix_units(loss: Loss) -> None:
    with pytest.raises(ModelError, match=r"mixes the batch|does not match plain"):
        train(plain(), loss, narrow())


@pytest.mark.parametrize(
    "clean",
    [lambda x: x, lambda x: x.clamp(-5, 5), lambda x: torch.nan_to_num(x, nan=0.0)],
    ids=["as it is", "infinity cleared", "NaN cleared"],
)
def test_losses_that_mix_units_through_what_is_no_number(clean: Any) -> None:
    """0 times a mean is nothing, until one unit is NaN: then all others are left out together with it."""

    def spreading(predict: Any, batch: Any) -> Tensor:
        return CRITERION(predict(batch[0] + 0 * clean(batch[0]).mean()), batch[1])

    with pytest.raises(ModelError, match="mixes the batch"):
        train(plain(), spreading, narrow())


@pytest.mark.parametrize("first", [float("nan"), "labels"])
def test_bad_first_rows_do_not_make_the_check_empty(first: Any) -> None:
    x, y = narrow()
    if first == "labels":
        y[:30] = 99
    else:
        x[:30] = first
    with pytest.raises(ModelError, match="mixes the batch"):
        train(plain(), by_maximum, (x, y))


def test_rows_that_are_all_nan_do_not_make_the_check_empty() -> None:
    x, y = narrow(100)
    with pytest.raises(ModelError, match="mixes the batch"):
        train(plain(), by_maximum, (x * float("nan"), y))


def test_a_model_that_cannot_be_tried_is_refused() -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.over = plain()

        def forward(self, x: Tensor) -> Tensor:
            return self.over(x) * float("inf")

    with pytest.raises(ModelError, match="could not be tried"):
        train(Never(), CRITERION, narrow())


def test_draws_inside_a_function_do_not_hide_what_mixes() -> None:
    def drawing(predict: Any, batch: Any) -> Tensor:
        scores = nn.functional.gumbel_softmax(predict(batch[0]))
        return CRITERION(scores + scores.mean(0), batch[1])

    with pytest.raises(ModelError, match="mixes the batch"):
        train(plain(), drawing, narrow())


def in_a_tuple(items: list) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def centred(items: list) -> tuple[Tensor, Tensor]:
    x, y = in_a_tuple(items)
    return x - x.mean(0), y


def mixed_up(items: list) -> tuple[Tensor, Tensor]:
    x, y = in_a_tuple(items)
    part = torch.rand(len(x), 1)
    return part * x + (1 - part) * x[torch.randperm(len(x))], y


def filled(items: list) -> tuple[Tensor, Tensor]:
    """A value that is missing, here the last one of each, becomes the others' mean."""
    x, y = in_a_tuple(items)
    x[:, -1] = x[:, -1].mean()
    return x, y


def one_in_many(items: list) -> tuple[Tensor, Tensor]:
    """Alike as long as few are read, which is what a trial reads."""
    return in_a_tuple(items) if len(items) < 40 else centred(items)


@pytest.mark.parametrize("collate", [centred, mixed_up, filled, one_in_many])
def test_a_collate_that_mixes_units(collate: Any) -> None:
    """Each unit's row holds something of every other's, before any model sees it."""
    units = sf.data.DatasetUnits.of(torch.utils.data.TensorDataset(*narrow(200)), collate)
    with pytest.raises(DataError, match="changes with the others that are read beside it"):
        sf.fit(plain(), CRITERION, units, plan=plan(phase(steps=3), rate=0.5, size=200), delta=1e-4)


class Remembered:
    """Units that are read divided by the largest number that was ever read, less the mean of them, or with the last."""

    def __init__(self, way: str) -> None:
        (self.x, self.y), self.way = narrow(200), way
        self.count, self.top, self.sum, self.read, self.last = 200, 1e-9, 0.0, 0, 0.0

    def take(self, which: Any) -> tuple[Tensor, Tensor]:
        rows, labels = self.x[torch.as_tensor(which)], self.y[torch.as_tensor(which)]
        if self.way == "last":
            rows, self.last = rows + self.last, rows[-1] if len(rows) else self.last
        elif self.way == "largest":
            self.top = max([self.top, *rows.abs().flatten().tolist()])
            rows = rows / self.top
        else:
            self.sum, self.read = self.sum + rows.sum(0), self.read + len(rows)
            rows = rows - self.sum / max(1, self.read)
        return rows, labels


@pytest.mark.parametrize("way", ["largest", "mean", "last"])
def test_units_that_remember_who_was_read_before(way: str) -> None:
    """One unit of one step would change the rows of everybody who is read later."""
    with pytest.raises(DataError, match="or were before"):
        sf.fit(plain(), CRITERION, Remembered(way), plan=plan(phase(steps=3), rate=0.5, size=200), delta=1e-4)


class Windows(torch.utils.data.Dataset):
    """Documents that are cut into windows, each a row."""

    def __init__(self, each: int) -> None:
        self.each, (self.x, self.y) = each, narrow()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.x[place].expand(self.each, -1), self.y[place].expand(self.each)


def laid(items: list) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in items]), torch.cat([y for _, y in items])


def test_a_collate_that_gives_more_rows_than_units() -> None:
    units = sf.data.DatasetUnits.of(Windows(50), laid)
    with pytest.raises(ModelError, match="one unit gave 50 rows"):
        train(plain(), CRITERION, units)


def test_a_collate_that_gives_more_rows_of_several_units_gets_one_at_a_time() -> None:
    x, y = narrow()
    data = torch.utils.data.TensorDataset(x, y)

    def grown(items: list) -> tuple[Tensor, Tensor]:
        times = 1 if len(items) == 1 else 50
        xs, ys = torch.stack([each for each, _ in items]), torch.stack([label for _, label in items])
        return xs.repeat_interleave(times, 0), ys.repeat_interleave(times, 0)

    def weights_after(units: Any) -> list[Tensor]:
        everyone = plan(phase(steps=1, noise_multiplier=0.0), rate=1.0, size=40)
        model = plain()
        sf.train(everyone, sf.per_example(model, sf.supervised(CRITERION)), units)
        return list(model.parameters())

    grown_weights = weights_after(sf.data.DatasetUnits.of(data, grown))
    plain_weights = weights_after(sf.data.TensorUnits((x, y)))
    assert all(torch.equal(p, q) for p, q in zip(grown_weights, plain_weights, strict=True))


class Packed(nn.Module):
    """Tokens without their padding, all units' in one row of tokens, and each unit's mean afterwards."""

    def __init__(self, lengths: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lengths = lengths
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.arange(x.shape[1]) < self.lengths(x).unsqueeze(1)
        out = torch.zeros(*x.shape[:2], 3)
        out[mask] = self.linear(x[mask])
        return out.mean(1)


@pytest.mark.parametrize(
    "lengths",
    [
        lambda x: 1 + (torch.arange(len(x)) % 3) * 2,
        lambda x: torch.full((len(x),), 2),
        lambda x: 1 + (x[:, 0, 0].abs() * 3).long().clamp(max=5),
    ],
    ids=["unequal", "equal", "by content"],
)
def test_packed_tokens(lengths: Any) -> None:
    x = torch.randn(40, 6, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ModelError, match="picked by a mask"):
        train(Packed(lengths), CRITERION, (x, torch.arange(40) % 3))


class OwnNorm(nn.Module):
    """A batch norm of one's own, which no list of classes knows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
            return x - x.mean(0)
        return x - self.mean


def own_norm() -> nn.Module:
    return nn.Sequential(OwnNorm(), plain())


def test_a_batch_norm_of_ones_own() -> None:
    with pytest.raises(ModelError, match=r"mixes the batch|buffer|does not match"):
        train(own_norm(), CRITERION, narrow())


class Stateless(nn.Module):
    """The same without a buffer: nothing but the gradients shows it."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training else x


class Shy(nn.Module):
    """Mixes in company, and fails alone, so that nobody may compare."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) == 1:
            raise RuntimeError("not alone")
        return x - x.mean(0) if self.training else x


@pytest.mark.parametrize("layer", [OwnNorm, Stateless, Shy])
def test_a_layer_that_wakes_up_after_the_check(layer: type) -> None:
    """Quiet in eval mode when it was tried, and put into train mode between steps: the very next step is looked at."""
    model = nn.Sequential(layer(), plain()).eval()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    three = plan(phase(steps=3), rate=1.0)
    private = sf.make_private(model, CRITERION, narrow(), optimizer=sgd, plan=three, delta=1e-3)
    batches = iter(private)
    private.step(next(batches))
    model.train()
    with pytest.raises(ModelError, match=r"mixes the batch|buffer|looked at again"):
        private.step(next(batches))


class Crowded(nn.Module):
    """Mixes in a batch that is larger than any that is made up."""

    def __init__(self) -> None:
        super().__init__()
        self.over = plain()

    def forward(self, x: Tensor) -> Tensor:
        scores = self.over(x)
        return scores + scores.mean(0) if len(x) > 30 else scores


class Patient(Crowded):
    """Mixes after so many calls."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 60

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        scores = self.over(x)
        return scores + scores.mean(0) if self.left < 0 else scores


class Choosy(Crowded):
    """Mixes in the type that trains, and not in the one that is tried."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.over(x)
        return scores + scores.mean(0) if x.dtype == torch.float32 else scores


class Unequal(Crowded):
    """Mixes into one of many rows, so that a drawn unit is seldom the one that shows it."""

    def forward(self, x: Tensor) -> Tensor:
        first = (torch.arange(len(x)) == 0).view(-1, 1)
        return self.over(x + first * x.mean(0) if len(x) > 30 else x)


@pytest.mark.parametrize("layer", [Crowded, Patient, Choosy, Unequal])
def test_a_model_that_mixes_where_nobody_was_expected_to_look(layer: type) -> None:
    """The first step and the last are looked at as they are."""
    x, y = narrow()
    many = x.repeat(4, 1), y.repeat(4)
    whole = plan(phase(steps=60), rate=1.0, size=len(many[0]))
    with pytest.raises(ModelError, match="mixes the batch"):
        sf.fit(layer(), CRITERION, many, plan=whole, delta=1e-5, quiet=True)


@pytest.mark.parametrize("layer", [OwnNorm, Stateless])
def test_a_layer_that_a_callback_wakes_up_sleeps_on(layer: type) -> None:
    """`train` and `fit` put the modes back after a callback: every step is taken in the mode that was tried."""
    model = nn.Sequential(layer(), plain()).eval()
    modes: list[bool] = []

    def wake(progress: Any) -> None:
        modes.append(model[0].training)
        model.train()

    train(model, CRITERION, narrow(), running=sf.Running(watch=wake))
    assert modes == [False] * 3
    assert not model[0].training


def test_a_mode_that_changes_nothing_is_nobodys_business() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    modes = iter([model.eval, model.train, model.eval])
    fitted = train(model, CRITERION, narrow(), running=sf.Running(watch=lambda progress: next(modes)()))
    assert fitted.epsilon < float("inf")


def test_an_error_on_private_rows_holds_no_value_of_theirs() -> None:
    x, y = narrow()
    y[:] = 6171
    with pytest.raises(ModelError, match="first examples") as caught:
        train(plain(), CRITERION, (x, y))
    assert "6171" not in str(caught.value)


class Remembering(nn.Module):
    """Keeps what it saw where no state_dict looks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = plain(), torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach().mean(0)
        return self.inner(x)


def test_a_tensor_on_the_side() -> None:
    with pytest.raises(ModelError, match=r"'.*seen' changes when the model sees data"):
        train(Remembering(), CRITERION, narrow())


class RememberingInside(nn.Module):
    """The same, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = plain(), {"mean": torch.zeros(4)}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["mean"] = x.detach().mean(0)
        return self.inner(x)


def test_a_tensor_on_the_side_in_a_dictionary() -> None:
    with pytest.raises(ModelError, match=r"'.*seen.mean' changes when the model sees data"):
        train(RememberingInside(), CRITERION, narrow())


class Loudest(nn.Module):
    """Scales by the largest number that it ever saw: one example changes everybody's gradient from then on."""

    class Everybody:
        largest = 0.0

    def __init__(self, where: str) -> None:
        super().__init__()
        self.inner, self.number, self.array = plain(), [0.0], np.zeros(1)
        self.kept = {"number": self.number, "array": self.array}.get(where)

    def forward(self, x: Tensor) -> Tensor:
        found = float(x.detach().abs().max())
        if self.kept is None:
            self.Everybody.largest = largest = max(self.Everybody.largest, found)
        else:
            self.kept[0] = largest = max(self.kept[0], found)
        return self.inner(x / largest)


@pytest.mark.parametrize("where", ["number", "array", "class"])
def test_what_a_model_remembers_of_earlier_rows(where: str) -> None:
    """It is the same for any company of the rows that are tried, and no tensor changes."""
    with pytest.raises(ModelError, match="keeps something of what it saw"):
        train(Loudest(where), CRITERION, narrow())


def test_what_a_loss_remembers_of_earlier_rows() -> None:
    largest = [1e-3]

    def loss(predict: Any, batch: Any) -> Tensor:
        each = CRITERION(predict(batch[0]), batch[1])
        largest[0] = max(largest[0], float(each.detach().max()))
        return each / largest[0]

    with pytest.raises(ModelError, match="keeps something of what it saw"):
        train(plain(), loss, narrow())


class Noting(nn.Module):
    """Writes rows down as numbers, and registers one as a buffer on the way; the file of its state has both."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.lines, self.seen, self.by_name = plain(), [[0.5]], set(), {"first": 1}

    def forward(self, x: Tensor) -> Tensor:
        self.lines.append(x.detach()[0].tolist())
        self.seen.add(float(x.detach().sum()))
        self.by_name["last"] = float(x.detach().max())
        self.register_buffer("late", x.detach().clone())
        return self.inner(x)

    def get_extra_state(self) -> Any:
        return [self.lines, self.seen]

    def set_extra_state(self, state: Any) -> None: ...


def test_rows_that_forward_notes_as_numbers_are_taken_out_too() -> None:
    model = Noting()
    before = {**model.state_dict()}
    train(model, CRITERION, narrow())
    assert (model.lines, model.seen, model.by_name) == ([[0.5]], set(), {"first": 1})
    assert model.state_dict().keys() == before.keys()
    assert [name for name, _ in model.named_buffers()] == []


class Shared(nn.Module):
    """Two layers with one buffer, a norm whose places for statistics are empty, and a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.other, self.sizes = plain(), nn.InstanceNorm1d(3), nn.Identity(), [4, 3]
        self.inner.register_buffer("mask", torch.ones(4))
        self.other.register_buffer("mask", self.inner.mask)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.other.mask) + 0 * self.norm(x.new_ones(len(x), 3, 4)).sum(
            (1, 2)
        ).unsqueeze(1)


def test_what_a_model_had_at_first_stays_there() -> None:
    model = Shared()
    train(model, CRITERION, narrow())
    assert model.other.mask is model.inner.mask
    assert (model.norm.running_mean, model.sizes) == (None, [4, 3])
    model(narrow()[0])


class Stashing(nn.Module):
    """Keeps what it last saw, as models do that show their attention; nothing is computed from it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.shown, self.all, self.by_name = plain(), None, [], {}

    def forward(self, x: Tensor) -> Tensor:
        self.shown, self.late, self.by_name["last"] = x.detach(), x.detach(), x.detach()
        self.all.append(x.detach())
        return self.inner(x)


@pytest.mark.parametrize("way", ["fit", "loop"])
def test_rows_that_forward_leaves_in_a_model_are_taken_out(way: str) -> None:
    """They would be in whatever `torch.save(model)` writes."""
    model = Stashing()
    names = set(vars(model))
    if way == "fit":
        train(model, CRITERION, narrow())
    else:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        own = sf.make_private(
            model, CRITERION, narrow(), optimizer=sgd, plan=plan(phase(steps=2)), delta=1e-3
        )
        for batch in own:
            own.step(batch)
    assert set(vars(model)) == names
    assert model.shown is None
    assert model.all == []
    assert model.by_name == {}


class Apart(nn.Module):
    """Mixes only where rows draw different numbers."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor) -> Tensor:
        own = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        drawn = torch.randn(len(x), 1, generator=own)
        return x + (drawn - drawn.mean(0)) * x.mean(0)


@pytest.mark.parametrize("seed", [None, 3])
def test_mixing_that_hides_behind_draws(seed: int | None) -> None:
    with pytest.raises(ModelError, match="mixes the batch"):
        train(nn.Sequential(Apart(seed), plain()), CRITERION, narrow())


class Function(torch.autograd.Function):
    """A custom function; ``way`` says how it mixes the batch, or what it keeps of it."""

    largest = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, way: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.way = way
        if way == "remembers":
            Function.largest = max(Function.largest, float(x.detach().abs().max()))
        y = x.view_as(x) if weight is None else x @ weight.T
        if way == "forward mean":
            return y - y.mean(0)
        return y * (1 + Function.largest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        if ctx.way == "backward mean":
            grad = grad - grad.mean(0)
        if ctx.way == "divided":
            grad = grad / len(grad)
        return (grad, None, None) if weight is None else (grad @ weight, grad.T @ x, None)


class ByFunction(nn.Module):
    def __init__(self, way: str, *, weights: bool) -> None:
        super().__init__()
        self.inner, self.weight, self.out = (
            network().float(),
            nn.Parameter(torch.randn(3, 3)),
            nn.Linear(3, 3),
        )
        self.way, self.weights = way, weights

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.inner(x))
        y = Function.apply(z, self.weight if self.weights else None, self.way)
        return self.out(y if self.weights else y @ self.weight)


@pytest.mark.parametrize("weights", [False, True], ids=["of activations", "of weights"])
@pytest.mark.parametrize("way", ["forward mean", "backward mean", "divided", "remembers"])
def test_custom_functions_that_mix_units(way: str, weights: bool) -> None:
    """Where one takes a weight, units run one at a time; so what mixes them gives other gradients than it would."""
    Function.largest = 0.0
    with pytest.raises(ModelError, match=r"mixes the batch|does not match plain|has seen others"):
        train(ByFunction(way, weights=weights), sf.supervised(CRITERION), narrow())


class Writing(nn.Module):
    """Writes a mean of private rows into a weight, out of the graph's sight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network().float()

    def forward(self, x: Tensor) -> Tensor:
        weight = next(self.inner.parameters())
        with torch.no_grad():
            weight.add_(x.mean())
        return self.inner(x)


def test_data_written_into_a_weight() -> None:
    with pytest.raises(ModelError, match="released without noise"):
        train(Writing(), sf.supervised(CRITERION), narrow())


class FlatBags(nn.Module):
    """Bags that begin one word early, so that each holds a word of the example before it."""

    def __init__(self, *, early: int) -> None:
        super().__init__()
        self.bags, self.out, self.early = nn.EmbeddingBag(5, 4), nn.Linear(4, 3), early

    def forward(self, words: Tensor) -> Tensor:
        starts = (torch.arange(0, words.numel(), words.shape[1]) - self.early).clamp(min=0)
        return self.out(self.bags(words.flatten(), starts))


def test_bags_with_words_of_two_units() -> None:
    words, labels = torch.arange(160).view(40, 4) % 5, torch.arange(40) % 3
    train(FlatBags(early=0), sf.supervised(CRITERION), (words, labels))
    with pytest.raises(ModelError, match="words of several rows"):
        train(FlatBags(early=1), sf.supervised(CRITERION), (words, labels))


class Checkpointed(nn.Module):
    """A batch statistic inside a function that is run again in the backward pass, or only then."""

    def __init__(self, *, reentrant: bool, again: bool) -> None:
        super().__init__()
        self.inner, self.out, self.how = network().float(), nn.Linear(3, 3), reentrant
        self.again, self.calls = again, [0]

    def forward(self, x: Tensor) -> Tensor:
        ran: list[int] = []

        def part(z: Tensor) -> Tensor:
            ran.append(1)
            z = torch.tanh(self.inner(z))
            return z - z.mean(0) if len(ran) > 1 or not self.again else z - 0 * z.mean(0)

        return self.out(checkpoint(part, x, use_reentrant=self.how))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_units_that_mix_under_activation_checkpointing(reentrant: bool, again: bool) -> None:
    with pytest.raises(ModelError, match=r"mixes the batch|does not match plain|when it runs again"):
        train(Checkpointed(reentrant=reentrant, again=again), sf.supervised(CRITERION), narrow())


class Sleeper(nn.Module):
    """Mixes its batch only when there are many: the check's few units do not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x / x.abs().max() if len(x) > 20 else x)


def test_mixing_in_large_batches_only_is_found_as_training_goes_on() -> None:
    x, y = narrow(120)
    many = plan(phase(steps=500, clip_norm=1.0), rate=0.5, size=120)
    with pytest.raises(ModelError, match="mixes the batch"):
        sf.fit(Sleeper(), CRITERION, (x, y), plan=many, delta=1e-3)


def test_mixup() -> None:
    mixed = lambda batch: (batch[0] + 0.5 * batch[0].flip(0), batch[1])
    with pytest.raises(ModelError, match="augmentation mixes examples"):
        train(plain(), CRITERION, narrow(), augment=mixed)


@pytest.mark.parametrize("kind", ["dropout", "noise", "augmentation"])
def test_what_is_seeded_outside_is_not_what_is_drawn(kind: str) -> None:
    """Masks from a stream that somebody knows would shift, for all others, with a unit that leaves."""

    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn_like(x)

    model = nn.Sequential({"dropout": nn.Dropout(0.5), "noise": Noisy()}.get(kind, nn.Identity()), plain())
    noisy = lambda batch: (batch[0] + torch.randn_like(batch[0]), batch[1])
    views = noisy if kind == "augmentation" else None
    contribution = sf.per_example(model, sf.supervised(CRITERION), augment=views)
    point = {name: p.detach() for name, p in model.named_parameters()}
    norms, after = [], []
    for _ in range(2):
        torch.manual_seed(0)
        norms.append(contribution([point], [1.0], narrow(6)).norms())
        after.append(torch.rand(1))
    assert not torch.equal(*norms)
    assert torch.equal(*after)  # and what the user draws next is as if nothing had been drawn here


# Numbers that are too small


class Scales(nn.Module):
    """A linear layer that sees tiny inputs, and a loss that is huge: each factor's square vanishes or overflows."""

    def __init__(self, small: float, large: float, positions: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.small, self.large, self.linear = small, large, nn.Linear(4, 3, bias=False)
        self.positions = positions

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1).expand(-1, self.positions, -1) * self.small
        return self.linear(x).mean(1) * self.large


@pytest.mark.parametrize("positions", [1, 7, 40])
@pytest.mark.parametrize(
    ("small", "large"), [(1e-23, 1e18), (1e-25, 1e21), (1e-30, 1e28), (1e-22, 1e24), (1e-12, 1e12)]
)
def test_no_unit_passes_because_a_square_vanished(small: float, large: float, positions: int) -> None:
    x, y = narrow(8)
    model = Scales(small, large, positions)
    loss = lambda predict, batch: predict(batch[0]).sum(1)
    contribution = sf.per_example(model, loss)
    chunk = contribution([{"linear.weight": model.linear.weight.detach()}], [1.0], (x, y))
    from saltflat.clipping import Flat

    for bound in (1e-12, 1e-6, 1.0):
        for unit in range(8):
            alone = contribution(
                [{"linear.weight": model.linear.weight.detach()}],
                [1.0],
                (x[unit : unit + 1], y[unit : unit + 1]),
            )
            total = Flat(bound).total(alone, {"linear.weight": model.linear.weight.detach()})
            assert float(total["linear.weight"].double().norm()) <= bound * (1 + 1e-5)
    assert len(chunk.norms()) == 8


@pytest.mark.parametrize("bias", [0.0, 1e4])
@pytest.mark.parametrize("gain", [1e-3, 1e-7, 1e-12, 0.0])
def test_a_standardised_convolution_that_is_nearly_off(gain: float, bias: float) -> None:
    from saltflat.clipping import Flat
    from saltflat.gradients.standardised import standardised

    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
            self.gain = nn.Parameter(torch.full((8,), gain))
            self.bias = nn.Parameter(torch.full((8,), bias))

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, standardised(self.weight, self.gain), self.bias, padding=1).mean((2, 3))

    model = Conv()
    x = torch.randn(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    point = {name: p.detach() for name, p in model.named_parameters()}
    contribution = sf.per_example(model, lambda predict, batch: predict(batch).square().sum(1))
    for unit in range(6):
        total = Flat(1e-3).total(contribution([point], [1.0], x[unit : unit + 1]), point)
        length = torch.cat([leaf.flatten() for leaf in total.values()]).double().norm()
        assert float(length) <= 1e-3 * (1 + 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_do_not_narrow_the_sum(dtype: torch.dtype) -> None:
    """Rounded to bfloat16, a sum over many units would move by far more than one unit adds."""
    from saltflat.core import ask

    x, y = narrow(400)
    seen, real = [], ask.noised

    def noised(bounded: Any, *rest: Any) -> Any:
        seen.append(bounded)
        return real(bounded, *rest)

    far = sf.optimizers.SGD(lr=500.0)  # so that a narrow type can hold the move
    everyone = plan(phase(steps=1, clip_norm=0.1, optimizer=far), rate=1.0, size=400)
    for keep in (torch.arange(400) >= 0, torch.arange(400) != 7):
        model = plain().to(dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ask, "noised", noised)
            units = sf.data.TensorUnits((x[keep].to(dtype), y[keep]))
            sf.train(everyone, sf.per_example(model, sf.supervised(CRITERION)), units)
    assert all(leaf.dtype == torch.float32 for leaf in seen[0].total.values())
    moved = torch.cat([(seen[0].total[n] - seen[1].total[n]).flatten() for n in seen[0].total]).norm()
    assert float(moved) <= seen[0].sensitivity * (1 + 1e-3)


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-30, 1e39, float("nan")])
def test_clip_norms_beyond_what_numbers_can_tell_apart(bound: float) -> None:
    with pytest.raises(SaltflatError, match="clip_norm"):
        phase(clip_norm=bound)


# Runs that are not what they are said to be


def test_gradients_left_over_in_frozen_parameters_are_not_applied() -> None:
    model = plain()
    x, y = narrow()
    CRITERION(model(x), y).sum().backward()  # before freezing: raw gradients of private data
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    private = sf.make_private(model, CRITERION, (x, y), optimizer=sgd, plan=plan(phase(steps=2)), delta=1e-3)
    for batch in private:
        private.step(batch)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_sampler_that_can_be_repeated_is_not_private(seed: int | None) -> None:
    import numpy as np

    fitted = train(
        plain(), CRITERION, narrow(), safeguards=sf.Safeguards(sampling=np.random.default_rng(seed))
    )
    assert fitted.epsilon == float("inf")
    assert "NOT PRIVATE" in repr(fitted)


# Parts of one's own in the places of those that the promise rests on


class Unclipped:
    """A clipping rule that clips nothing, and says that it does."""

    sensitivity = 1.0

    def total(self, chunk: Any, like: Any) -> Any:
        return chunk.weighted_sum(torch.ones_like(chunk.norms()))

    def leaves(self, like: Any) -> Any:
        return like

    def times(self, factor: float) -> Any:
        return self

    def counted(self, share: float) -> Any:
        return self


class Loose(Flat):
    """The same, as a subclass of the rule that it is not."""

    def total(self, chunk: Any, like: Any) -> Any:
        return chunk.weighted_sum(torch.ones_like(chunk.norms()))


@pytest.mark.parametrize("rule", [Unclipped(), Loose(1.0)], ids=lambda rule: type(rule).__name__)
def test_a_clipping_rule_of_ones_own(rule: Any) -> None:
    with pytest.raises(SettingError, match=r"got a .*: the noise believes what a rule says"):
        phase(clip_norm=rule)


def test_bounds_that_read_otherwise_the_second_time() -> None:
    """The sensitivity would be that of some numbers, and the clip that of others."""

    class Twice(dict):
        def __getitem__(self, name: str) -> float:
            return 1000.0

    assert sf.clipping.PerLayer(Twice({"": 1.0})).layers({"w": torch.zeros(1)}) == [(["w"], 1.0)]


class Peeping:
    """A frame that keeps what it sees of each unit before the clip."""

    def enter(self, chunk: Any) -> Any:
        raise AssertionError(f"seen: {chunk.norms()}")

    def leave(self, direction: Any) -> Any:
        return direction

    def rise(self, low: Any, high: Any) -> float:
        raise AssertionError("seen")


class Tipped(Shift):
    """The same, as a subclass."""

    def enter(self, chunk: Any) -> Any:
        raise AssertionError(f"seen: {chunk.norms()}")


ASKED = {
    "asked": lambda ask, params, frame: ask(params, frame=frame),
    "around": lambda ask, params, frame: ask.framed(frame)(params),
    "inside": lambda ask, params, frame: ask(params, frame=Inside(Shift(params), frame)),
    "apart": lambda ask, params, frame: ask.apart(lambda label: [params], weights=[1.0], frame=frame),
    "of losses": lambda ask, params, frame: ask.gap(params, params, bound=1.0, share=0.1, frame=frame),
}


@dataclass(frozen=True)
class Framed:
    """A method that brings a frame of its own."""

    way: str
    kind: type

    def init(self, params: Any) -> tuple:
        return ()

    def step(self, ask: Any, params: Any, state: tuple) -> Any:
        frame = self.kind(params) if self.kind is Tipped else self.kind()
        return ASKED[self.way](ask, params, frame), state


@pytest.mark.parametrize("kind", [Peeping, Tipped], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", ASKED)
def test_a_frame_of_ones_own_sees_no_unit(way: str, kind: type) -> None:
    with pytest.raises(SettingError, match="a frame is a Shift, Precondition or Mask; got a"):
        fit_by(Framed(way, kind))


def fit_by(method: Any) -> Any:
    return sf.fit(plain(), CRITERION, narrow(), plan=plan(phase(steps=2, method=method)), delta=1e-3)


def test_draws_of_ones_own() -> None:
    class Everyone(sf.Poisson):
        def units(self, count: int, rate: float, size: int, source: Any) -> Any:
            return np.arange(count)

    with pytest.raises(SettingError, match=r"draw is Poisson\(\) or WithoutReplacement\(\)"):
        replace(plan(), draw=Everyone())


def test_a_plan_of_ones_own() -> None:
    class Cheap(sf.Plan):
        def epsilon(self, delta: float) -> float:
            return 0.1

    class Silent(sf.Phase):
        def noise_at(self, step: int) -> tuple[float, ...]:
            return (1e-6,)

    own, model = plan(), plain()
    cheap = Cheap(phases=own.phases, rate=own.rate, size=own.size)
    with pytest.raises(SettingError, match="a plan is a Plan; got a Cheap"):
        sf.fit(model, CRITERION, narrow(), plan=cheap, delta=1e-3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.raises(SettingError, match="a plan is a Plan; got a Cheap"):
        sf.make_private(model, CRITERION, narrow(), plan=cheap, delta=1e-3, optimizer=sgd)
    same = {
        name: getattr(phase(), name)
        for name in ("method", "steps", "noise_multiplier", "clip_norm", "optimizer")
    }
    with pytest.raises(SettingError, match="phases is a tuple of Phase"):
        plan(Silent(**same))


def test_a_schedule_of_the_noise_that_remembers() -> None:
    """It is asked once: the accountant and the run have the same answers."""
    asked: list[int] = []

    def fading(step: int) -> float:
        asked.append(step)
        return 1.0 if len(asked) <= 3 else 1e-6

    scheduled = phase(steps=3, noise_schedule=fading)
    assert [scheduled.noise_at(step) for step in (0, 1, 2, 0, 1, 2)] == [(scheduled.noise_multiplier,)] * 6
    assert asked == [0, 1, 2]


class Drawing:
    """A source of noise of one's own that says it is secret: standard Gaussians, times ``factor``."""

    private = True

    def __init__(self, factor: float, only: str = "") -> None:
        self.factor, self.only = factor, only

    def normal(self, like: Any) -> Any:
        return {
            name: torch.randn_like(leaf) * (self.factor if name.endswith(self.only) else 1)
            for name, leaf in like.items()
        }


class Releasing(Drawing):
    """The same, which adds its noise itself."""

    def release(self, total: Any, *, sensitivity: float, noise_multiplier: float) -> Any:
        std = sensitivity * noise_multiplier
        return {name: leaf + std * self.normal(total)[name] for name, leaf in total.items()}


class Quiet(sf.privacy.SecureNoise):
    def normal(self, like: Any) -> Any:
        return {name: torch.zeros_like(leaf) for name, leaf in like.items()}


class TwoFaced(Drawing):
    """It says that it is secret, but not to whoever decides whether to look at what it draws."""

    @property
    def private(self) -> bool:  # type: ignore[override]
        return "noised" not in [frame.name for frame in traceback.extract_stack()]


class Masked(Drawing):
    """Its class says that it is not secret, and it says that it is."""

    private = False

    def __getattribute__(self, name: str) -> Any:
        return True if name == "private" else super().__getattribute__(name)


SOURCES = [
    *(Drawing(0.0), Drawing(0.03), Drawing(0.0, "bias"), Releasing(0.0), Releasing(0.03), Quiet()),
    TwoFaced(0.0),
]


def test_what_a_class_says_is_what_is_believed() -> None:
    """What is not looked at is not stated to be private."""
    assert train(plain(), CRITERION, narrow(), safeguards=sf.Safeguards(noise=Masked(0.0))).statement.stamp


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
def test_a_source_of_less_noise_than_is_accounted_for(source: Any) -> None:
    with pytest.raises(PrivacyError, match=r"the source of noise, a .*, drew"):
        train(plain(), CRITERION, narrow(), safeguards=sf.Safeguards(noise=source))


class Coins:
    """A source of draws of one's own."""

    private = True

    def __init__(self, power: float) -> None:
        self.power = power

    def random(self, count: int) -> Any:
        return np.random.default_rng().random(count) ** self.power


class TwoFacedCoins(Coins):
    @property
    def private(self) -> bool:  # type: ignore[override]
        return "_uniforms" not in [frame.name for frame in traceback.extract_stack()]


@pytest.mark.parametrize("coins", [Coins, TwoFacedCoins])
def test_a_source_of_draws_by_which_all_join(coins: Any) -> None:
    x, y = narrow(200)
    of_all = plan(phase(steps=3), rate=0.5, size=200)
    with pytest.raises(PrivacyError, match=f"the source of draws, a {coins.__name__}, gave 200 numbers"):
        sf.fit(
            plain(), CRITERION, (x, y), plan=of_all, delta=1e-3, safeguards=sf.Safeguards(sampling=coins(9.0))
        )


def test_sound_sources_of_ones_own_train_and_the_statement_says_what_it_does_not_know() -> None:
    for noise in (Drawing(1.0), Releasing(1.0)):
        own = sf.Safeguards(noise=noise, sampling=Coins(1.0))
        said = str(train(plain(), CRITERION, narrow(), safeguards=own).statement.not_covered)
        assert f"the source of noise, a {type(noise).__name__}, draws" in said
        assert "the source of sampling, a Coins, draws" in said
    assert "source of" not in str(train(plain(), CRITERION, narrow()).statement.not_covered)


# Things that tell


class Unreadable(torch.utils.data.Dataset):
    """One item cannot be read, one has another shape, one is of another type."""

    def __init__(self, bad: int = 33) -> None:
        (self.x, self.y), self.bad = narrow(), bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        if place == self.bad:
            raise OSError("cannot decode record_0417.dcm")
        if place == self.bad + 1:
            return self.x[place][:2], self.y[place]
        if place == self.bad + 2:
            return "text", self.y[place]
        return self.x[place], self.y[place]


def test_items_that_cannot_be_read_add_nothing_and_nothing_is_said(capfd: Any) -> None:
    """The sum is the one without them."""
    everyone = plan(phase(steps=1, noise_multiplier=0.0), rate=1.0, size=40)
    weights = []
    for data in (Unreadable(), torch.utils.data.Subset(Unreadable(), [*range(33), *range(36, 40)])):
        model = plain()
        weights.append(
            sf.train(everyone, sf.per_example(model, sf.supervised(CRITERION)), sf.data.DatasetUnits.of(data))
        )
    for name, leaf in weights[0].items():
        torch.testing.assert_close(leaf, weights[1][name], rtol=1e-5, atol=1e-7)
    assert "0417" not in "".join(capfd.readouterr())


class Failing(torch.autograd.Function):
    """Runs forward, and fails backward on some content."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.bad = bool((x > 50).any())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if ctx.bad:
            raise RuntimeError("a value of 61.7 in the record of Ms Miller")
        return grad


@pytest.mark.parametrize("where", ["backward", "augment"])
def test_a_unit_that_fails_anywhere_adds_nothing(where: str) -> None:
    x, y = narrow()
    x[5] = 61.7

    def views(batch: Any) -> Any:
        if where == "augment" and bool((batch[0] > 50).any()):
            raise RuntimeError("a value of 61.7 in the record of Ms Miller")
        return batch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner[2:](Failing.apply(self.inner[:2](x)) if where == "augment" else self.first(x))

        def first(self, x: Tensor) -> Tensor:
            out = self.inner[:2](x)
            return Failing.apply(torch.cat([out, x], 1))[:, :8]

    everyone = plan(phase(steps=1, noise_multiplier=0.0), rate=1.0, size=40)
    keep = torch.arange(40) != 5
    weights = [
        sf.train(
            everyone,
            sf.per_example(Net(), sf.supervised(CRITERION), augment=views),
            sf.data.TensorUnits(data),
        )
        for data in ((x, y), (x[keep], y[keep]))
    ]
    for name, leaf in weights[0].items():
        torch.testing.assert_close(leaf, weights[1][name], rtol=1e-5, atol=1e-7)


def test_no_refusal_holds_a_private_value() -> None:
    """Whatever is refused is refused in one line, without a number of the data."""
    x, y = narrow()
    x[:] = 61.71875
    for loss in (by_length, by_maximum, contrasted):
        with pytest.raises(SaltflatError) as caught:
            train(plain(), loss, (x, y))
        assert "61.7" not in str(caught.value)
        assert "\n" not in str(caught.value)
