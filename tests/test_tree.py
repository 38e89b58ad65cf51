"""A model at other weights than its own: tied weights, and modules that it holds under several names."""

from __future__ import annotations

import torch
from torch import nn

import saltflat as sf
from saltflat.tree import called


class Twice(nn.Module):
    """One layer under two names, and a weight of it tied to another module's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.again = self.first
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(self.first(x)))


def test_every_use_sees_the_given_weights_and_none_stays() -> None:
    model, x = Twice(), torch.ones(1, 4)
    own = [model.first.weight, model.again.weight, model.last.weight]
    for name in ("first.weight", "last.weight"):
        given = {name: 2 * torch.eye(4)}
        assert torch.equal(called(model, given, (x,)), 8 * x)
        assert all(
            leaf is mine
            for leaf, mine in zip(
                (model.first.weight, model.again.weight, model.last.weight), own, strict=True
            )
        )
        assert list(given) == [name]


def test_training_leaves_a_module_with_several_names_its_parameter() -> None:
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(60, 4)
    weight, before = model.first.weight, model.first.weight.detach().clone()
    loss = nn.CrossEntropyLoss(reduction="none")
    sf.fit(model, loss, (x, torch.randint(4, (60,))), epsilon=3.0, delta=1e-3, epochs=1, size=60)
    assert model.first.weight is weight is model.last.weight
    assert weight.requires_grad
    assert not torch.equal(weight, before)
