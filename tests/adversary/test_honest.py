"""The list of the honest: ordinary models, losses and layers that must train as they are.

`tests/adversary/test_hostile.py` is the other list. A gate is wrong if either fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import saltflat as sf
from saltflat.errors import ModelError

ROWS = 40
CRITERION = nn.CrossEntropyLoss(reduction="none")


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(seed))


def words(length: int = 6, vocabulary: int = 20) -> Tensor:
    return torch.randint(vocabulary, (ROWS, length), generator=torch.Generator().manual_seed(0))


LABELS = torch.arange(ROWS) % 3


class Pooled(nn.Module):
    """Any layer over a sequence, its mean over time, and classes."""

    def __init__(self, layer: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        return self.out((found[0] if isinstance(found, tuple) else found).mean(1))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x, x.flip(1)).mean(1))


class Turned(nn.Module):
    """Batch first in and out, and a layer inside that reads (time, batch, width)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        if isinstance(self.layer, nn.TransformerDecoderLayer | nn.Transformer):
            found = self.layer(x, x.flip(0))
        else:
            found = self.layer(x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
        return self.out((found[0] if isinstance(found, tuple) else found)[-1])


class Loop(nn.Module):
    """A cell in a loop, from a state of zeros made in forward."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.out = cell, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = torch.zeros(x.shape[0], 8)
        state = (state, torch.zeros(x.shape[0], 8)) if isinstance(self.cell, nn.LSTMCell) else state
        for time in range(x.shape[1]):
            state = self.cell(x[:, time], state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float()


class LastWord(nn.Module):
    """Picks each row's own last position by an index that says which row it is."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        last = (tokens > 3).sum(1).clamp(max=tokens.shape[1] - 1)
        return self.out(self.words(tokens)[torch.arange(len(tokens)), last])


class FlatBags(nn.Module):
    """Words as one flat list, and where each example's bag begins."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.out = nn.EmbeddingBag(20, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        starts = torch.arange(0, tokens.numel(), tokens.shape[1])
        return self.out(self.bags(tokens.flatten(), starts))


class Checkpointed(nn.Module):
    """Dropout in a function that is run again in the backward pass; its first input wants no gradient."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.out, self.reentrant = nn.Linear(4, 8), nn.Linear(8, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        inner = lambda z: nn.functional.dropout(torch.tanh(self.first(z)), 0.2, self.training)
        return self.out(checkpoint(inner, x, use_reentrant=self.reentrant))


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -0.5 * grad


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Product(torch.autograd.Function):
    """x W^T with a backward of its own, as fused kernels have it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ x


class OnActivations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(Swish.apply(Sign.apply(Reversed.apply(self.first(x)))) + self.first(x))


class OnWeights(OnActivations):
    """A fused product, a weight of signs alone, and a scale that is not differentiated."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.out.weight.abs().mean() + self.first(x).abs().mean(1, keepdim=True)
        z = torch.tanh(Product.apply(x, self.first.weight) + self.first.bias)
        return nn.functional.linear(z, Sign.apply(self.out.weight), self.out.bias) * scale


class Noisy(nn.Module):
    """Draws of its own, each in another way that torch has; some examples skip the layer altogether."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.first(x)) + 0.1 * torch.randn(len(x), 8) * torch.rand(x.shape[0], 1)
        kept = x.new_empty(len(x), 1).bernoulli_(0.8)
        z = z * kept + torch.randn_like(z) * torch.bernoulli(torch.full_like(z, 0.5))
        return self.out(z) + 0.1 * nn.functional.gumbel_softmax(z[:, :3])


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


Case = tuple[Callable[[], nn.Module], nn.Module, Callable[[], tuple[Tensor, Tensor]]]
sequences = lambda: (rows(5, 8), LABELS)
vectors = lambda: (rows(4), LABELS)
encoder = lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)  # with its dropout of 0.1

HONEST: dict[str, Case] = {
    "mean squares": (lambda: nn.Linear(4, 2), nn.MSELoss(reduction="none"), lambda: (rows(4), rows(2))),
    "smooth l1": (lambda: nn.Linear(4, 2), nn.SmoothL1Loss(reduction="none"), lambda: (rows(4), rows(2))),
    "several labels": (
        lambda: nn.Linear(4, 5),
        nn.BCEWithLogitsLoss(reduction="none"),
        lambda: (rows(4), (rows(5) > 0).float()),
    ),
    "a class for each pixel": (
        lambda: nn.Conv2d(3, 4, 3, padding=1),
        CRITERION,
        lambda: (rows(3, 8, 8), torch.arange(ROWS * 64).view(ROWS, 8, 8) % 4),
    ),
    "classes with probabilities": (
        lambda: nn.Linear(4, 3),
        CRITERION,
        lambda: (rows(4), rows(3).softmax(1)),
    ),
    "autoencoder": (
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)),
        nn.MSELoss(reduction="none"),
        lambda: (rows(4), rows(4)),
    ),
    "encoder layer with dropout": (lambda: Pooled(encoder()), CRITERION, sequences),
    "encoder of two layers": (
        lambda: Pooled(nn.TransformerEncoder(encoder(), 2)),
        CRITERION,
        sequences,
    ),
    "decoder layer with dropout": (Decoder, CRITERION, sequences),
    "attention with dropout": (
        lambda: Pooled(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True, norm_first=True)),
        CRITERION,
        sequences,
    ),
    "deep lstm with dropout": (
        lambda: Pooled(nn.LSTM(8, 8, num_layers=2, dropout=0.2, batch_first=True)),
        CRITERION,
        sequences,
    ),
    "deep gru with dropout": (
        lambda: Pooled(nn.GRU(8, 8, num_layers=2, dropout=0.2, batch_first=True)),
        CRITERION,
        sequences,
    ),
    "sequence-first encoder": (lambda: Turned(nn.TransformerEncoderLayer(8, 2, 16)), CRITERION, sequences),
    "sequence-first decoder": (lambda: Turned(nn.TransformerDecoderLayer(8, 2, 16)), CRITERION, sequences),
    "sequence-first transformer": (lambda: Turned(nn.Transformer(8, 2, 1, 1, 16)), CRITERION, sequences),
    "sequence-first attention": (lambda: Turned(nn.MultiheadAttention(8, 2)), CRITERION, sequences),
    "sequence-first lstm": (lambda: Turned(nn.LSTM(8, 8, 2, dropout=0.2)), CRITERION, sequences),
    "sequence-first gru": (lambda: Turned(nn.GRU(8, 8)), CRITERION, sequences),
    "sequence-first rnn": (lambda: Turned(nn.RNN(8, 8)), CRITERION, sequences),
    "noise and skipped paths": (Noisy, CRITERION, vectors),
    "fixed batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval(), nn.Tanh(), nn.Linear(8, 3)),
        CRITERION,
        vectors,
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)),
        CRITERION,
        vectors,
    ),
    "gru cell": (lambda: Loop(nn.GRUCell(8, 8)), CRITERION, sequences),
    "lstm cell": (lambda: Loop(nn.LSTMCell(8, 8)), CRITERION, sequences),
    "rnn cell": (lambda: Loop(nn.RNNCell(8, 8)), CRITERION, sequences),
    "embedding bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3)),
        CRITERION,
        lambda: (words(), LABELS),
    ),
    "embedding bag of a flat list": (FlatBags, CRITERION, lambda: (words(), LABELS)),
    "sparse embedding": (
        lambda: nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(48, 3)),
        CRITERION,
        lambda: (words(), LABELS),
    ),
    "sparse embedding bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 3)),
        CRITERION,
        lambda: (words(), LABELS),
    ),
    "projected lstm": (
        lambda: Pooled(nn.LSTM(8, 8, 2, dropout=0.2, proj_size=3, batch_first=True), 3),
        CRITERION,
        sequences,
    ),
    "activation checkpointing": (lambda: Checkpointed(reentrant=False), CRITERION, vectors),
    "reentrant checkpointing": (lambda: Checkpointed(reentrant=True), CRITERION, vectors),
    "custom functions of activations": (OnActivations, CRITERION, vectors),
    "custom functions of weights": (OnWeights, CRITERION, vectors),
    "last word": (LastWord, CRITERION, lambda: (words(), LABELS)),
    "bfloat16": (lambda: mlp(torch.bfloat16), CRITERION, lambda: (rows(4).bfloat16(), LABELS)),
    "float16": (lambda: mlp(torch.float16), CRITERION, lambda: (rows(4).half(), LABELS)),
    "float64": (lambda: mlp(torch.float64), CRITERION, lambda: (rows(4).double(), LABELS)),
    "autocast": (Autocast, CRITERION, vectors),
}


@pytest.mark.parametrize("name", HONEST)
def test_it_trains(name: str) -> None:
    build, criterion, data = HONEST[name]
    torch.manual_seed(0)
    fitted = sf.fit(build(), criterion, data(), epsilon=8, delta=1e-3, batch_size=20, epochs=1)
    assert fitted.epsilon <= 8
    assert all(bool(torch.isfinite(leaf).all()) for leaf in fitted.params.values())


PRIVATE = (
    "projected lstm",
    "sparse embedding",
    "embedding bag of a flat list",
    "activation checkpointing",
    "reentrant checkpointing",
    "custom functions of activations",
    "custom functions of weights",
)


@pytest.mark.parametrize("name", PRIVATE)
def test_it_trains_in_a_loop_of_ones_own(name: str) -> None:
    build, criterion, data = HONEST[name]
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters())  # it takes no sparse gradient
    private = sf.make_private(
        model, criterion, data(), optimizer=optimizer, epsilon=8, delta=1e-3, batch_size=20, epochs=1
    )
    before = [p.detach().clone() for p in model.parameters()]
    for batch in private:
        private.step(batch)
    assert private.epsilon() <= 8
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert not any(torch.equal(p, then) for p, then in zip(model.parameters(), before, strict=True))


class Jittered(torch.utils.data.Dataset):
    """Random views of items, drawn while they are read, as image datasets have them."""

    def __init__(self, draw: Callable[[], float]) -> None:
        (self.x, self.y), self.draw = vectors(), draw

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.x[place] * (1 + self.draw()), self.y[place]


_OWN = np.random.default_rng()


def sorted_by_size(items: list) -> tuple[Tensor, Tensor]:
    """As batches for packed sequences are made: the longest first."""
    items = sorted(items, key=lambda item: -float(item[0].norm()))
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def noisy(items: list) -> tuple[Tensor, Tensor]:
    x, y = sorted_by_size(items)
    return x + 0.1 * torch.randn_like(x), y


READ = {
    "torch's draws": lambda: sf.data.DatasetUnits.of(Jittered(lambda: float(torch.rand(())))),
    "torch's draws in workers": lambda: sf.data.DatasetUnits.of(
        Jittered(lambda: float(torch.rand(()))), workers=2
    ),
    "Python's draws": lambda: sf.data.DatasetUnits.of(Jittered(random.random)),
    "numpy's draws": lambda: sf.data.DatasetUnits.of(Jittered(lambda: float(np.random.rand()))),  # noqa: NPY002
    "draws of its own": lambda: sf.data.DatasetUnits.of(Jittered(lambda: float(_OWN.random()))),
    "sorted": lambda: sf.data.DatasetUnits.of(torch.utils.data.TensorDataset(*vectors()), sorted_by_size),
    "noise in collate": lambda: sf.data.DatasetUnits.of(torch.utils.data.TensorDataset(*vectors()), noisy),
    "not a number": lambda: (torch.where(rows(4) > 1.5, float("nan"), rows(4)), LABELS),
}


@pytest.mark.parametrize("name", READ)
def test_it_trains_on_what_is_read_like_this(name: str) -> None:
    fitted = sf.fit(
        mlp(torch.float32), CRITERION, READ[name](), epsilon=8, delta=1e-3, batch_size=20, epochs=1
    )
    assert fitted.epsilon <= 8


REFUSED = {  # honest, but not followed yet: refused at once, in one line that says so
    "lazy layers": (lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)), "lazy layers without a shape"),
    "outputs and targets of two shapes": (lambda: nn.Linear(4, 1), "squeeze or unsqueeze"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    build, words_ = REFUSED[name]
    criterion, data = (CRITERION, vectors())
    if name.startswith("outputs"):
        criterion, data = nn.MSELoss(reduction="none"), (rows(4), LABELS.float())
    with pytest.raises(ModelError, match=words_) as caught:
        sf.fit(build(), criterion, data, epsilon=8, delta=1e-3, batch_size=20, epochs=1)
    assert "\n" not in str(caught.value)
