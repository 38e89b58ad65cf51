"""The list of the dishonest: each would move a sum by more than the clip norm, or make a record lie; each is refused.

`tests/adversary/test_honest.py` is the other list. A gate is wrong if either fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from steps import CRITERION, examples, network, phase, plan
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.errors import ModelError, SaltflatError

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


@pytest.mark.parametrize("first", [float("nan"), "labels"])
def test_bad_first_rows_do_not_make_the_check_empty(first: Any) -> None:
    x, y = narrow()
    if first == "labels":
        y[:30] = 99
    else:
        x[:30] = first
    with pytest.raises(ModelError, match="mixes the batch"):
        train(plain(), by_maximum, (x, y))


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


def test_a_layer_that_changes_its_mode_after_the_check() -> None:
    model = own_norm().eval()
    wake = lambda progress: model.train()
    with pytest.raises(ModelError, match=r"was in eval mode when the model was checked"):
        train(model, CRITERION, narrow(), running=sf.Running(watch=wake))


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


# Runs that are not what they are said to be


@pytest.mark.parametrize("seed", [None, 3])
def test_a_sampler_that_can_be_repeated_is_not_private(seed: int | None) -> None:
    import numpy as np

    fitted = train(
        plain(), CRITERION, narrow(), safeguards=sf.Safeguards(sampling=np.random.default_rng(seed))
    )
    assert fitted.epsilon == float("inf")
    assert "NOT PRIVATE" in repr(fitted)


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
