"""Gradients are taken in float32 or better, whatever the model, its user or the machine would take."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import FixedNoise, Tree, flat, trained
from steps import CRITERION, beside, examples, phase, plan
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.core import ask
from saltflat.core.contribution import per_example, supervised
from saltflat.errors import ModelError
from saltflat.gradients import width

HALF = (torch.bfloat16, torch.float16)


class Encoder(nn.Module):
    """One layer of attention: the kernels of half precision round it by how many rows there are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x).mean(1))


def units(count: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    return torch.randn(count, 5, 8, generator=source).to(dtype), torch.randint(3, (count,), generator=source)


def built(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return make().to(dtype)


def gradient(model: nn.Module, x: Tensor, y: Tensor, unit: int = 0) -> Tensor:
    """The kept gradient of one of the units, in one vector."""
    chunk = per_example(model, supervised(CRITERION))([trained(model)], [1.0], (x, y))
    return flat(chunk.weighted_sum((torch.arange(len(x)) == unit).float())).double()


@pytest.mark.parametrize("dtype", HALF)
def test_a_unit_of_a_narrow_model_is_the_same_in_any_company(dtype: torch.dtype) -> None:
    model, (x, y) = built(Encoder, dtype), units(dtype=dtype)
    alone = gradient(model, x[:1], y[:1])
    for company in range(2, 7):
        beside_others = gradient(model, x[:company], y[:company])
        assert float((beside_others - alone).norm() / alone.norm()) < 1e-5


@pytest.mark.parametrize("dtype", HALF)
def test_a_narrow_model_has_the_gradients_of_its_weights_in_float32(dtype: torch.dtype) -> None:
    model, (x, y) = built(Encoder, dtype), units(dtype=dtype)
    wide = built(Encoder, dtype).float()
    torch.testing.assert_close(gradient(model, x, y), gradient(wide, x.float(), y), rtol=1e-6, atol=1e-7)


class Casting(nn.Module):
    """Leaves float32 on its way, in a way of its own; None stays."""

    def __init__(self, how: str | None) -> None:
        super().__init__()
        self.how, self.first, self.second = how, nn.Linear(8, 8), nn.Linear(8, 3)
        self.held = [torch.linspace(1, 2, 8).to(torch.bfloat16)]
        self.register_buffer("scale", torch.linspace(1, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(1)
        if self.how == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return self.second(self.first(x).tanh() * self.scale).float()
        if self.how == "casts":
            x = F.linear(x.bfloat16(), self.first.weight.bfloat16(), self.first.bias.bfloat16())
            x = x.tanh() * self.scale.bfloat16()
            return F.linear(
                x, self.second.weight.to(torch.bfloat16), self.second.bias.to(torch.bfloat16)
            ).float()
        x = self.first(x).tanh()
        if self.how == "to":
            return self.second((x.to(dtype=torch.half) * self.scale.half()).to(torch.float32))
        if self.how == "made":
            whole = torch.zeros(x.shape, dtype=torch.bfloat16)
            whole[:] = x
            return self.second((whole * self.scale.type(torch.bfloat16)).float())
        return self.second(x * (self.held[0] if self.how == "held" else self.scale))


@pytest.mark.parametrize("how", ["autocast", "casts", "to", "made"])
def test_a_model_that_leaves_float32_on_its_way_has_the_gradients_of_one_that_does_not(how: str) -> None:
    model, plain, (x, y) = built(lambda: Casting(how)), built(lambda: Casting(None)), units()
    torch.testing.assert_close(gradient(model, x, y), gradient(plain, x, y), rtol=1e-6, atol=1e-7)


def test_tensors_that_a_model_holds_may_be_narrow() -> None:
    """float32 beside bfloat16 is float32 anyway; weights that are narrow meet them widened."""
    model, (x, y) = built(lambda: Casting("held"), torch.bfloat16), units()
    alone, together = gradient(model, x[:1], y[:1]), gradient(model, x, y)
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-6)


def test_it_is_said_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model, (x, y) = built(lambda: Casting("autocast")), units()
    with caplog.at_level(logging.WARNING, "saltflat"):
        gradient(model, x, y), gradient(model, x, y)
    assert [record.message for record in caplog.records if "half precision" in record.message] == [
        caplog.records[0].message
    ]


def test_plain_models_never_pay_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any, *_: Any) -> Any:
        raise AssertionError("a model in float32 went the way of narrow ones")

    monkeypatch.setattr(width.Wide, "__torch_function__", never)
    x, y = units()
    gradient(built(Encoder), x, y)


class _Rounded(torch.autograd.Function):
    """A function that nobody can look into."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.Tensor.bfloat16(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.float()


@pytest.mark.parametrize(
    "method", [sf.methods.DPSGD(), sf.methods.SAM(0.1), sf.methods.Quantile(sf.methods.DPSGD())]
)
@pytest.mark.parametrize("how", ["autocast", "casts"])
def test_such_models_train_and_no_unit_moves_a_sum_by_more_than_its_bound(how: str, method: Any) -> None:
    x, y = units(9)
    one, other = (sums(built(lambda: Casting(how)), x[k:], y[k:], method) for k in (0, 1))
    bound = one.sensitivity
    assert float((flat(one.total) - flat(other.total)).norm()) <= bound * (1 + 1e-6)


def sums(model: nn.Module, x: Tensor, y: Tensor, method: Any = None, lr: float = 50.0) -> Any:
    """What the first question of a step was answered with, before the noise."""
    seen, real = [], ask.noised

    def noised(bounded: Any, *rest: Any) -> Tree:
        seen.append(bounded)
        return real(bounded, *rest)

    step = phase(
        steps=1, clip_norm=0.05, method=method or sf.methods.DPSGD(), optimizer=sf.optimizers.SGD(lr=lr)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask, "noised", noised)
        contribution = sf.per_example(model, sf.supervised(CRITERION))
        given = beside(noise=FixedNoise(), physical=4)
        sf.train(plan(step, rate=1.0, size=9), contribution, sf.data.TensorUnits((x, y)), **given)
    return seen[0]


def test_autocast_around_training_changes_nothing() -> None:
    """Else norms would be taken in bfloat16 as well, and come out too small."""
    x, y = examples(9)
    x = x.float()
    make = lambda: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))
    quiet = sums(built(make), x, y)
    with torch.autocast("cpu", torch.bfloat16):
        inside = sums(built(make), x, y)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(flat(quiet.total), flat(inside.total))


def test_a_part_that_nobody_can_widen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return _Rounded.apply(self.inner(x.mean(1))).float()

    monkeypatch.setattr(
        width.Wide,
        "__torch_function__",
        lambda self, func, types, args=(), kwargs=None: func(*args, **kwargs or {}),
    )
    x, y = units()
    with pytest.raises(ModelError, match="half precision whatever it is given"):
        gradient(built(Hidden), x, y)


def test_tf32_is_off_inside_a_step_and_as_it_was_after_it() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, matmul.fp32_precision
    with width._without_tf32():
        assert {cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, matmul.fp32_precision} == {"ieee"}
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, matmul.fp32_precision) == before
