"""Max pooling: the values of plain PyTorch, and its gradients in the very same places, ties and NaN included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import flat, gradient_loop, trained
from torch import Tensor, nn

import saltflat as sf
from saltflat.gradients import pooling
from saltflat.gradients.pooling import max_pool2d

FORMS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 2, "stride": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3), "stride": [1, 2], "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": (), "dilation": 2},
]


def found(run: Callable[..., Tensor], images: Tensor, **form: Any) -> list[Tensor]:
    x = images.clone().requires_grad_()
    y = run(x, **form)
    weights = torch.arange(1.0, y.numel() + 1).view_as(y).to(y)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), x)]


def same(images: Tensor, **form: Any) -> None:
    mine = found(lambda x, **options: max_pool2d(F.max_pool2d, x, **options), images, **form)
    for a, b in zip(mine, found(F.max_pool2d, images, **form), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert a.is_contiguous()


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the fast way was taken, which is for images of any size here."""
    monkeypatch.setattr(pooling, "SMALL", 0)
    times: list[int] = []
    forward = pooling._MaxPool.forward
    count = lambda ctx, *args: times.append(1) or forward(ctx, *args)
    monkeypatch.setattr(pooling._MaxPool, "forward", staticmethod(count))
    return times


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients(form: dict[str, Any], dtype: torch.dtype, laid_out: list[int]) -> None:
    torch.manual_seed(0)
    same(torch.randn(5, 12, 9, 11, dtype=dtype), **form)
    assert laid_out


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_among_equals_the_first_one_gets_the_gradient(form: dict[str, Any], laid_out: list[int]) -> None:
    """After a ReLU whole windows are 0."""
    torch.manual_seed(0)
    same(torch.randn(5, 12, 9, 11).sub(0.5).relu(), **form)
    same(torch.randint(3, (5, 12, 9, 11)).float(), **form)
    assert laid_out


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_where_it_is(bad: float, laid_out: list[int]) -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 8, 6, 6)
    images[1, :, 2:5, 1:4], images[2, 3] = bad, bad
    for form in FORMS:
        same(images, **form)
    assert laid_out


@pytest.mark.parametrize(
    "images",
    [
        torch.randn(3, 4, 6, 6),  # few channels
        torch.randn(8, 6, 6),  # no rows
        torch.randn(3, 8, 6, 6).to(memory_format=torch.channels_last),
        torch.randn(3, 8, 6, 6, dtype=torch.bfloat16),
    ],
    ids=["few", "one", "pixels", "half"],
)
def test_other_forms_run_as_they_are(images: Tensor, laid_out: list[int]) -> None:
    mine = max_pool2d(F.max_pool2d, images, 2, 1)
    assert torch.equal(mine, F.max_pool2d(images, 2, 1))
    assert not laid_out


def test_places_are_given_where_they_are_asked_for(laid_out: list[int]) -> None:
    images = torch.randn(3, 8, 6, 6)
    values, places = max_pool2d(F.max_pool2d, images, 2, return_indices=True)
    plain = F.max_pool2d(images, 2, return_indices=True)
    assert torch.equal(values, plain[0])
    assert torch.equal(places, plain[1])
    assert not laid_out


def test_a_window_larger_than_the_image_is_torchs_own_error() -> None:
    images = torch.randn(3, 8, 4, 4)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        max_pool2d(F.max_pool2d, images, 5)
    with pytest.raises(TypeError):
        max_pool2d(F.max_pool2d, images, "2")


class Pooled(nn.Module):
    """Both ways to call it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 8, 3), nn.Linear(8 * 4, 3)
        self.pool = nn.MaxPool2d(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.first(x)))
        return self.last(torch.max_pool2d(x, 2, 2).flatten(1))


def test_a_gradient_of_a_gradient(laid_out: list[int]) -> None:
    """As a penalty on a loss's slope takes it."""
    torch.manual_seed(0)
    slopes = []
    for run in (lambda *args: max_pool2d(F.max_pool2d, *args), F.max_pool2d):
        x = torch.linspace(-1, 2, 3 * 8 * 36, dtype=torch.float64).view(3, 8, 6, 6).requires_grad_()
        (first,) = torch.autograd.grad(run(x.pow(3), 2, 1).square().sum(), x, create_graph=True)
        slopes.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert float(slopes[1].norm()) > 1
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=0)
    assert laid_out


def test_in_a_step_it_is_the_one_that_runs(laid_out: list[int]) -> None:
    """And norms and sums are the loop's."""
    torch.manual_seed(0)
    model, criterion = Pooled().double(), nn.CrossEntropyLoss(reduction="none")
    x, y = torch.randn(6, 2, 8, 8, dtype=torch.float64), torch.arange(6) % 3
    chunk = sf.per_example(model, sf.supervised(criterion))([trained(model)], [1.0], (x, y))
    assert len(laid_out) == 2
    alone = gradient_loop(model, trained(model), x, y, criterion)
    torch.testing.assert_close(chunk.norms(), alone.norm(dim=1), rtol=1e-9, atol=0)
    torch.testing.assert_close(
        flat(chunk.weighted_sum(y.double())), y.double() @ alone, rtol=1e-9, atol=1e-12
    )


class Slope(Pooled):
    """A forward that differentiates by itself, and one that goes row by row."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + torch.func.grad(lambda z: F.max_pool2d(z, 2).square().sum())(x)
        x = torch.func.vmap(lambda row: F.max_pool2d(row.unsqueeze(0), 2).squeeze(0))(x)
        return self.last(F.max_pool2d(x, 2, 1).flatten(1))


def test_in_a_transform_of_torchs_it_is_not(laid_out: list[int]) -> None:
    torch.manual_seed(0)
    model, criterion = Slope().double(), nn.CrossEntropyLoss(reduction="none")
    x, y = torch.randn(6, 2, 8, 8, dtype=torch.float64), torch.arange(6) % 3
    chunk = sf.per_example(model, sf.supervised(criterion))([trained(model)], [1.0], (x, y))
    alone = gradient_loop(model, trained(model), x, y, criterion)
    torch.testing.assert_close(chunk.norms(), alone.norm(dim=1), rtol=1e-9, atol=0)
    assert len(laid_out) == 1  # the last one
