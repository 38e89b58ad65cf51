"""Activation checkpointing: the same gradients, draws included, and activations that are not kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from layers import CLASSES, WORDS, Attention, Bags, Folded, Heads, Standard, Words, per_example_loss
from reference import flat, gradient_loop, trained
from test_layer_rules import worst_error
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import saltflat as sf
from saltflat.errors import ModelError
from saltflat.gradients.chunk import Kept, book_keeping
from saltflat.tree import Tree, called

Run = Callable[..., Any]
REENTRANT, NOT = (partial(checkpoint, use_reentrant=kind) for kind in (True, False))


def direct(function: Run, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


class Whole(nn.Module):
    """A layer or model that is checkpointed as a whole, between two layers that are not."""

    def __init__(self, inner: nn.Module, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(inputs, inputs), inner, nn.Linear(width, CLASSES)
        self.run: Run = direct

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            z = self.run(self.inner, torch.tanh(self.first(x)))
        z = z[0] if isinstance(z, tuple) else z
        return self.out(torch.tanh(z).flatten(1))


class OfWords(nn.Module):
    """A checkpointed model of words, whose inputs want no gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.run = inner, direct

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.inner, x) + self.inner(x.flip(1))


class Shares(nn.Module):
    """A closure's data, derived weights that are returned, a function in a function, an output without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.run: Run = direct

    def forward(self, x: Tensor) -> Tensor:
        beside = torch.tanh(self.first(x))

        def part(z: Tensor, *, scale: float) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            made = torch.tanh(self.normed(self.inner(z) * beside))
            return made * scale, self.inner.weight.sum(1) * 2, {"mean": made.mean(1, keepdim=True)}

        if self.run is REENTRANT:
            z, bias, more = self.run(lambda z: part(z, scale=0.5), beside)
        else:
            z, bias, more = self.run(part, beside, scale=0.5)
        nested = self.run(lambda z: torch.tanh(self.run(self.inner, z)) + self.inner(z), z)
        unused = self.run(self.inner, z)[:, :1] * 0
        return self.out(nested + bias + more["mean"] + z.relu() + unused)


class Folding(nn.Module):
    """Positions folded into the rows before the checkpointed function, and inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(24, CLASSES)
        self.run: Run = direct

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        z = torch.tanh(self.first(x)).view(-1, 6)
        for _ in range(2):
            z = self.run(lambda z: torch.tanh(self.inner(z)), z)
        z = self.run(lambda z: self.inner(z.view(rows, -1, 6).transpose(0, 1).contiguous()), z)
        return self.out(torch.tanh(self.inner(z)).transpose(0, 1).reshape(rows, -1))


def standards() -> nn.Module:
    return nn.Sequential(Standard(4, 4, 3, padding=1), nn.ReLU(), Standard(4, 4, 3, padding=1, gain=False))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (
        lambda: Whole(nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6)), 4, 6),
        (4,),
    ),
    "encoder": (lambda: Whole(encoder(), 8, 24), (3, 8)),
    "attention": (lambda: Whole(Attention(batch_first=True), 8, CLASSES), (3, 8)),
    "lstm": (
        lambda: Whole(nn.LSTM(4, 4, 2, bidirectional=True, proj_size=2, batch_first=True), 4, 12),
        (3, 4),
    ),
    "gru": (lambda: Whole(nn.GRU(4, 4, batch_first=True), 4, 12), (3, 4)),
    "pictures": (lambda: Whole(standards(), 4, 64), (4, 4, 4)),
    "groups": (
        lambda: Whole(nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2)), 4, 4),
        (4, 4, 4),
    ),
    "no rule": (lambda: Whole(nn.Bilinear(4, 4, 4), 4, 4), (4,)),
    "folded": (lambda: Whole(Folded(5), 5, CLASSES), (4, 5)),
    "heads": (lambda: Whole(Heads(), 4, CLASSES), (3, 4)),
    "folding": (Folding, (4, 3)),
    "shares": (Shares, (4,)),
    "words": (lambda: OfWords(Words("LSTM", tie=True)), ()),
    "bags": (lambda: OfWords(Bags(mode="sum")), ()),
}


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = build().double()
    if name == "no rule":
        model.inner.forward = lambda z, layer=model.inner: nn.functional.bilinear(
            z, z, layer.weight, layer.bias
        )
    if not shape:
        return model, *torch.randint(WORDS, (2, 4, 5))
    return model, torch.randn(4, *shape, dtype=torch.float64), torch.randint(CLASSES, (4,))


def kept(model: nn.Module, points: list[Tree], x: Tensor, y: Tensor, views: int = 1) -> Kept:
    return book_keeping(
        lambda point: per_example_loss(called(model, point, (x,)), y),
        points,
        [1 / len(points)] * len(points),
        rows=len(x),
        views=views,
        constants=[*model.buffers(), *model.parameters()],
    )


@pytest.mark.parametrize("run", [REENTRANT, NOT], ids=["reentrant", "not"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_without_checkpointing(name: str, run: Run) -> None:
    """At points that are not the model's own weights, several of them, and with views."""
    model, x, y = made(name)
    point = {n: p + 0.1 * torch.randn_like(p) for n, p in trained(model).items()}
    points = [point, {n: 1.1 * p for n, p in point.items()}]
    alone = torch.stack([gradient_loop(model, each, x, y, per_example_loss) for each in points]).mean(0)
    model.run = run
    assert worst_error(kept(model, [point], x, y), gradient_loop_at(model, point, x, y), point) < 1e-9
    expected = alone.view(2, 2, -1).mean(1)
    assert worst_error(kept(model, points, x, y, views=2), expected, point) < 1e-9


def gradient_loop_at(model: nn.Module, point: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Each example's gradient by plain automatic differentiation of the checkpointed model, as the gate takes it."""
    found = []
    for one in range(len(x)):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in point.items()}
        loss = per_example_loss(called(model, leaves, (x[one : one + 1],)), y[one : one + 1]).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        found.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(found)


def test_checkpointed_sequences_and_selected_operations() -> None:
    """`checkpoint_sequential`, and contexts of its own, with which everything is kept."""
    model, x, y = made("linear")
    point = trained(model)
    expected = gradient_loop(model, point, x, y, per_example_loss)
    model.run = lambda inner, z: checkpoint_sequential(inner, 2, z, use_reentrant=False)
    assert worst_error(kept(model, [point], x, y), expected, point) < 1e-9
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    model.run = partial(checkpoint, use_reentrant=False, context_fn=contexts)
    assert worst_error(kept(model, [point], x, y), expected, point) < 1e-9


def language_models() -> dict[str, Callable[[Any], nn.Module]]:
    some = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2}
    return {
        "GPT-2": lambda hf: hf.GPT2LMHeadModel(
            hf.GPT2Config(n_layer=2, n_head=2, n_embd=8, n_positions=8, **some)
        ),
        "T5": lambda hf: hf.T5ForConditionalGeneration(
            hf.T5Config(
                d_model=8,
                d_kv=4,
                d_ff=16,
                num_layers=2,
                num_heads=2,
                decoder_start_token_id=0,
                vocab_size=WORDS,
            )
        ),
    }


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["GPT-2", "T5"])
def test_gradient_checkpointing_enable(name: str, reentrant: bool) -> None:
    """Hugging Face's switch; T5's first layer returns a learned bias, which the layers after it use."""
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = language_models()[name](hf).double().train()
    words = torch.randint(WORDS, (3, 5), generator=torch.Generator().manual_seed(1))

    def loss(predict: Run, batch: Tensor) -> Tensor:
        more = {"decoder_input_ids": batch} if name == "T5" else {}
        return per_example_loss(predict(input_ids=batch, **more).logits, batch)

    contribution = sf.per_example(model, loss).still()
    point = trained(model)
    plain = contribution([point], [1.0], words)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    again = contribution([point], [1.0], words)
    torch.testing.assert_close(again.norms(), plain.norms(), rtol=1e-9, atol=0)
    sums = [flat(each.weighted_sum(torch.ones(3).double())) for each in (plain, again)]
    torch.testing.assert_close(*sums, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("run", [REENTRANT, NOT], ids=["reentrant", "not"])
def test_draws_are_the_same_when_it_runs_again(run: Run) -> None:
    """Dropout in and after the checkpointed function; the stream outside goes on as if it had run once."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 6), nn.Dropout(0.2))
    model = Whole(inner, 4, 6).double()
    x, y, point = torch.randn(4, 4, dtype=torch.float64), torch.arange(4) % CLASSES, trained(model)
    sums, after = [], []
    for way in (direct, run):
        model.run = way
        torch.manual_seed(3)
        sums.append(flat(kept(model, [point, point], x, y).weighted_sum(torch.ones(4).double())))
        after.append(torch.rand(()))
    torch.testing.assert_close(*sums, rtol=1e-12, atol=1e-14)
    assert after[0] == after[1]


@pytest.mark.parametrize("run", [REENTRANT, NOT], ids=["reentrant", "not"])
def test_activations_are_not_kept(run: Run) -> None:
    """In backward, what one function made is gone before the next one runs again."""
    seen: list[list[weakref.ref[Tensor]]] = []
    most = [0]

    def alive() -> int:
        return sum(any(each() is not None for each in one) for one in seen)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            most[0] = max(most[0], alive())
            first = torch.tanh(self.inner(x).view(-1, 3))  # folded: the tape holds it
            second = torch.exp(first)
            seen.append([weakref.ref(first), weakref.ref(second)])
            return self.inner(torch.sin(second).view(len(x), -1))  # whose input is kept for the sum

    torch.manual_seed(0)
    layers = nn.Sequential(*(Layer() for _ in range(5)))
    x = torch.randn(4, 6)
    weights = {name: p.detach() for name, p in layers.named_parameters()}
    for way, expected in ((direct, 4), (run, 1)):
        seen.clear()
        most[0] = 0

        def losses(point: Tree, way: Run = way) -> Tensor:
            z = x
            for layer in layers:
                z = way(partial(run_one, layer), z)
            return z.sum(1)

        def run_one(layer: nn.Module, z: Tensor) -> Tensor:
            return layer(z)

        book_keeping(
            lambda point: called(
                Holding(layers, losses), {f"layers.{n}": p for n, p in point.items()}, (point,)
            ),
            [weights],
            [1.0],
            rows=4,
        )
        print("MOST", most, expected, alive())
        assert most[0] >= expected if way is direct else most[0] <= expected
        assert alive() == 0  # no circle holds them


class Holding(nn.Module):
    def __init__(self, layers: nn.Module, function: Run) -> None:
        super().__init__()
        self.layers, self.function = layers, function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@pytest.mark.parametrize("run", [REENTRANT, NOT], ids=["reentrant", "not"])
def test_a_function_that_does_something_else_the_second_time_is_refused(run: Run) -> None:
    model, x, y = made("linear")
    inner, calls = model.inner, []

    def fickle(z: Tensor) -> Tensor:
        calls.append(1)
        return inner(z) if len(calls) <= 2 else torch.tanh(inner(torch.tanh(z)).exp())

    model.run = lambda _, z: run(fickle, z)
    with pytest.raises(ModelError, match="something else when it runs again"):
        kept(model, [trained(model)], x, y)


def test_outside_of_private_steps_it_is_torchs_own() -> None:
    """With what torch promises: the second run happens, and both kinds give gradients of the model's own weights."""
    for run in (REENTRANT, NOT):
        model, x, y = made("linear")
        calls = []
        inner = model.inner
        model.run = lambda _, z, run=run: run(lambda z: (calls.append(1), inner(z))[1], z)  # noqa: B023
        per_example_loss(model(x), y).sum().backward()
        assert len(calls) == 3  # of two calls one has a gradient
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("run", [REENTRANT, NOT], ids=["reentrant", "not"])
def test_mistakes_inside_are_refused(run: Run) -> None:
    """A batch statistic in a checkpointed function, and a draw that torch does not know of."""
    mean = lambda z: z - z.mean(0)
    for mistake in (mean, lambda z: z / z.abs().max()):
        model, x, y = made("linear")
        inner = model.inner
        model.run = lambda _, z, mistake=mistake: run(lambda z: mistake(inner(z)), z)  # noqa: B023
        with pytest.raises(ModelError, match="mixes the batch"):
            sf.fit(
                model,
                nn.CrossEntropyLoss(reduction="none"),
                (x.repeat(10, 1), y.repeat(10)),
                epsilon=8,
                delta=1e-3,
                batch_size=20,
                epochs=1,
            )
