"""Custom functions and parts without gradients: each example's gradient is the one that it has alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers import CLASSES, per_example_loss
from reference import flat, gradient_loop, trained
from test_layer_rules import worst_error
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.core import contribution as contributions
from saltflat.core.contribution import PerExample
from saltflat.errors import ModelError
from saltflat.gradients.chunk import book_keeping
from saltflat.gradients.tape import OwnFunction
from saltflat.tree import Tree, called


class Product(torch.autograd.Function):
    """x W^T, of any number of positions; the weight's gradient is doubled, as no automatic differentiation would."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight, 2 * grad.flatten(0, -2).T @ x.flatten(0, -2)


class Rounded(torch.autograd.Function):
    """A straight-through estimator, with the newer way to write a function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.round(x * 4) / 4

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Same(torch.autograd.Function):
    """Half the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / 2


class Model(nn.Module):
    def __init__(self, first: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.inner, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.first(self.inner, torch.tanh(self.enter(x))))
        return self.out(z.mean(1))


def scaled(layer: nn.Linear, z: Tensor) -> Tensor:
    """Scales of the weights and of the data that are not differentiated."""
    with torch.no_grad():
        scale = layer.weight.abs().max() + layer(z).abs().amax((1, 2), keepdim=True)
    return layer(z) / scale


APART = {  # followed like any other
    "activations": lambda layer, z: Same.apply(Rounded.apply(layer(z))),
    "scaled": scaled,
    "detached": lambda layer, z: layer(z) / layer.weight.detach().norm(),
}
ALONE = {  # one example at a time
    "product": lambda layer, z: Product.apply(z, layer.weight) + layer.bias,
    "weight": lambda layer, z: F.linear(z, Rounded.apply(layer.weight), layer.bias),
    "derived weight": lambda layer, z: F.linear(z, Rounded.apply(layer.weight * 2), layer.bias),
    "weight as it is": lambda layer, z: F.linear(z, Same.apply(layer.weight), layer.bias),
    "both": lambda layer, z: Product.apply(Rounded.apply(z), layer.weight) + Same.apply(layer.bias),
}


def made(first: Any) -> tuple[nn.Module, Tree, Tensor, Tensor]:
    torch.manual_seed(0)
    model = Model(first).double()
    return model, trained(model), torch.randn(4, 3, 4).double(), torch.arange(4) % CLASSES


@pytest.mark.parametrize("name", [*APART, *ALONE])
@pytest.mark.parametrize("views", [1, 2])
def test_gradients_are_those_of_single_examples(name: str, views: int) -> None:
    model, point, x, y = made((APART | ALONE)[name])
    points = [point, {n: p + 0.1 * torch.randn_like(p) for n, p in point.items()}]
    loss = lambda predict, batch: per_example_loss(predict(batch[0]), batch[1])
    chunk = PerExample(model, loss, views=views)(points, [0.5, 0.5], (x, y))
    alone = torch.stack([gradient_loop(model, each, x, y, per_example_loss) for each in points]).mean(0)
    expected = alone.view(4 // views, views, -1).mean(1)
    weights = torch.rand(4 // views).double()
    torch.testing.assert_close(chunk.norms(), expected.norm(dim=1), rtol=1e-9, atol=0)
    torch.testing.assert_close(flat(chunk.weighted_sum(weights)), weights @ expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", APART)
def test_what_has_no_weight_stays_on_the_fast_path(name: str) -> None:
    model, point, x, y = made(APART[name])
    chunk = book_keeping(
        lambda at: per_example_loss(called(model, at, (x,)), y),
        [point],
        [1.0],
        rows=4,
        constants=list(model.parameters()),
    )
    assert worst_error(chunk, gradient_loop(model, point, x, y, per_example_loss), point) < 1e-9


@pytest.mark.parametrize("name", ALONE)
def test_a_function_of_a_weight_is_never_asked_about_several_units(name: str) -> None:
    model, point, x, y = made(ALONE[name])
    with pytest.raises(OwnFunction):
        book_keeping(lambda at: per_example_loss(called(model, at, (x,)), y), [point], [1.0], rows=4)


def test_the_log_says_once_that_it_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    contributions.log_own_function.cache_clear()
    model, point, x, y = made(ALONE["product"])
    contribution = PerExample(model, lambda predict, batch: per_example_loss(predict(batch[0]), batch[1]))
    for _ in range(2):
        contribution([point], [1.0], (x, y))
    assert [record.getMessage() for record in caplog.records if "Product" in record.getMessage()] == [
        "The custom function Product takes a trained parameter, whose gradient its own backward alone knows. Examples "
        "are run one at a time, which is exact but slow. Give the function activations only to run them in batches."
    ]


def test_public_means_of_such_a_model() -> None:
    """Minibatches of public examples as the units of a method that asks for their means."""
    model, point, x, y = made(ALONE["product"])
    loss = lambda predict, batch: per_example_loss(predict(batch[0]), batch[1])
    public = sf.Public(PerExample(model, loss), sf.data.TensorUnits((x, y)))
    (half,) = public._means(point, [torch.tensor([0, 1]).numpy()])
    expected = gradient_loop(model, point, x, y, per_example_loss)[:2].mean(0)
    torch.testing.assert_close(flat(half), expected, rtol=1e-9, atol=1e-12)


def test_data_written_into_a_weight_without_gradients() -> None:
    def written(layer: nn.Linear, z: Tensor) -> Tensor:
        with torch.no_grad():
            layer.bias.add_(z.mean())
        return layer(z)

    model, point, x, y = made(written)
    with pytest.raises(ModelError, match="writes data into parameter"):
        book_keeping(lambda at: per_example_loss(called(model, at, (x,)), y), [point], [1.0], rows=4)
