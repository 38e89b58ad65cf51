"""Plain training: of teachers, on their own part, and of students, on released labels. Nothing here adds noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.core.rng import fenced_draws, find_generators
from saltflat.data import Examples
from saltflat.errors import SettingError
from saltflat.methods.draws import public_draws
from saltflat.settings import check_descent, is_number, is_whole
from saltflat.tree import Tree, add, called, dense, map_tree

MOST_COPIES = 1024
Watch = Callable[[int, int], None]  # epochs done, epochs in all


@dataclass(frozen=True, kw_only=True)
class SGD:
    """How a teacher is trained: shuffled batches, cross-entropy, heavy-ball momentum, a tenth of ``lr`` from half time.

    >>> SGD(epochs=20).rate(9), SGD(epochs=20).rate(10)
    (0.05, 0.005)
    """

    CALLED: ClassVar[str] = "a training"

    epochs: int = 20
    batch_size: int = 32
    lr: float = 0.05
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_descent(self.epochs, self.batch_size, self.lr, self.momentum)

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        return self.lr if 2 * epoch < self.epochs else self.lr / 10

    def gradient(
        self, model: nn.Module, params: Tree, batch: tuple[Tensor, Tensor], key: tuple[int, ...]
    ) -> Tree:
        """The gradient at the weights; ``key`` numbers the step, for those that draw."""
        return _gradient(model, params, batch)


@dataclass(frozen=True, kw_only=True)
class SmoothedStudent(SGD):
    """Plain SGD on a smoothed loss: the gradient is the mean over K = ``copies`` jittered copies of the weights.

    (1/K) sum_k grad L(w + u_k),   u_k ~ N(0, sigma^2 I), drawn anew at every step from a public seed

    Without jitter (``sigma=0``) it is plain SGD. *Guarantee*: inputs are public and labels released, so training is
    post-processing and costs nothing.

    Wang et al., "DPlis: Boosting Utility of Differentially Private Deep Learning via Randomized Smoothing",
    PoPETs 2021.
    """

    epochs: int = 40
    batch_size: int = 100
    copies: int = 10
    sigma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.copies, 1, MOST_COPIES):
            raise SettingError(f"copies is a whole number from 1 to {MOST_COPIES}; got {self.copies!r}")
        if not is_number(self.sigma, 0):
            raise SettingError(f"sigma must be 0 or more, and finite; got {self.sigma!r}")

    def gradient(
        self, model: nn.Module, params: Tree, batch: tuple[Tensor, Tensor], key: tuple[int, ...]
    ) -> Tree:
        if self.sigma == 0:
            return _gradient(model, params, batch)
        source = public_draws(*key)
        total: Tree = {}
        for _ in range(self.copies):
            jitter = map_tree(lambda leaf: self.sigma * torch.randn(leaf.shape, generator=source), params)
            found = _gradient(model, add(params, jitter), batch)
            total = add(total, found, scale=1 / self.copies) if total else _times(found, 1 / self.copies)
        return total


def _times(tree: Tree, factor: float) -> Tree:
    return map_tree(lambda leaf: leaf * factor, tree)


def _gradient(model: nn.Module, params: Tree, batch: tuple[Tensor, Tensor]) -> Tree:
    """The mean gradient over a batch at ``params``."""
    inputs, targets = batch
    at = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    loss = F.cross_entropy(called(model, at, (inputs,)), targets)
    found = torch.autograd.grad(loss, list(at.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else dense(gradient)
        for (name, leaf), gradient in zip(at.items(), found, strict=True)
    }


def fitted(
    model: nn.Module,
    examples: Examples,
    how: SGD,
    *,
    seed: int = 0,
    watch: Watch = lambda done, total: None,
) -> nn.Module:
    """The model after training on ``examples``, in eval mode; without an example it stays as it is.

    Shuffles, jitter and whatever the network draws come from the public ``seed``: the same call gives the same weights,
    whoever was trained before.
    """
    with draws_from(seed, model, examples.scale):
        return _fitted(model, examples, how, seed, watch)


def _fitted(model: nn.Module, examples: Examples, how: SGD, seed: int, watch: Watch) -> nn.Module:
    model.train()
    params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    speed: Tree = {}
    for epoch in range(how.epochs if examples.count else 0):
        for place, batch in enumerate(_shuffled(examples, how.batch_size, (seed, epoch))):
            gradient = how.gradient(model, params, batch, (seed, epoch, place, 1))
            speed = add(gradient, speed, scale=how.momentum) if speed and how.momentum else gradient
            params = add(params, speed, scale=-how.rate(epoch))
        watch(epoch + 1, how.epochs)
    model.load_state_dict(params, strict=False)
    return model.eval()


def _shuffled(examples: Examples, size: int, key: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """All examples once, in an order that the key decides."""
    order = torch.randperm(examples.count, generator=public_draws(*key)).numpy()
    for begin in range(0, len(order), size):
        yield examples.take(order[begin : begin + size])


def made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network whose first weights the public ``seed`` decides; random streams are left as they were."""
    with draws_from(seed, make):
        return make()


@contextmanager
def draws_from(seed: int, *holders: object) -> Iterator[None]:
    """Start all random streams, and generators that ``holders`` have, at a public seed; put them back afterwards.

    So what a network draws depends on its own seed alone, and not on how many numbers were drawn for others before.
    """
    with fenced_draws(find_generators(*holders)) as start_from:
        start_from(seed)
        yield


def predictions(model: nn.Module, inputs: Examples, size: int = 1000, *, seed: int = 0) -> NDArray[np.int16]:
    """The class that the model chooses for each input; -1, which is no class, where an output is no number.

    Args:
        model: The network; it is put into eval mode.
        inputs: Public examples.
        size: Examples at a time.
        seed: Where draws of a network begin that draws in eval mode, too.
    """
    model.eval()
    found: list[Tensor] = []
    with torch.no_grad(), draws_from(seed, model):
        for batch, _ in inputs.batches(size):
            outputs = model(batch)
            sound = torch.isfinite(outputs).all(1)
            found.append(torch.where(sound, outputs.argmax(1), -1))
    return torch.cat(found).numpy().astype(np.int16) if found else np.zeros(0, np.int16)


def share_right(model: nn.Module, examples: Examples) -> float:
    """The share of public examples whose largest output is the label; NaN if there are none."""
    if not examples.count:
        return math.nan
    return float((predictions(model, examples) == examples.targets.numpy()).mean())
