"""Warm-up without any label, on images that programs paint: two views of an image agree, different images spread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.data import Flip, Jitter, PadCrop, Zoom
from saltflat.data.augment import Transform
from saltflat.errors import ModelError, SettingError
from saltflat.methods.draws import public_draws
from saltflat.settings import is_number, is_positive, is_whole
from saltflat.synthesis import DeadLeaves, Images, Process
from saltflat.warmup.descent import Descent, Loss, Predict
from saltflat.warmup.known import Known, Watch


@dataclass(frozen=True, kw_only=True)
class Contrast(Descent):
    """The feature layers on ``images`` images of a random ``process``, of which no photograph is part.

        alignment    E ||f(x) - f(x')||^2                       x, x' two views of one image by ``augment``
        uniformity   log E exp(-spread ||f(x) - f(y)||^2)       x, y of different images

    L = alignment + ``weight`` uniformity, with f what enters the last linear layer, scaled to length 1. That last layer
    is left as it was. Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
    Uniformity on the Hypersphere", ICML 2020; for private training Tang et al., NeurIPS 2023.

    >>> Contrast(epochs=2).in_words()
    '2 epochs of alignment and uniformity on 5,000 images of DeadLeaves'
    """

    process: Process = field(default_factory=DeadLeaves)
    images: int = 5_000
    weight: float = 0.5
    spread: float = 2.0
    batch_size: int = 250
    augment: tuple[Transform, ...] = (Zoom(), Flip(), PadCrop(2), Jitter())

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.images, 2, 10**9):
            raise SettingError(f"images is a whole number of 2 or more; got {self.images!r}")
        if self.batch_size < 2:
            raise SettingError("batch_size is 2 or more: images are told apart from each other")
        if not is_number(self.weight, 0) or not is_positive(self.spread):
            raise SettingError(
                f"weight is 0 or more, spread above 0; got {self.weight!r} and {self.spread!r}"
            )

    def in_words(self) -> str:
        called = type(self.process).__name__
        return f"{self.epochs} epochs of alignment and uniformity on {self.images:,} images of {called}"

    def warmed(self, model: nn.Module, known: Known, *, seed: int, watch: Watch) -> None:
        if len(known.shape) != 3 or known.shape[1] != known.shape[2] or known.shape[0] not in (1, 3):
            raise SettingError(
                f"random processes paint square images, grey or coloured, and examples here have shape {known.shape}; "
                "leave Contrast out"
            )
        channels, side, _ = known.shape
        painted = Images(process=self.process, channels=channels, side=side, seed=seed).first(self.images)
        inputs, _ = known.examples(painted / 255, torch.zeros(self.images)).whole()
        batches = max(1, self.images // self.batch_size)
        last = last_linear(model)
        with frozen(last):
            loss = self._loss(last, inputs, seed, batches)
            self.descended(model, loss, self.epochs * batches, seed=seed, watch=watch)

    def _loss(self, last: nn.Linear, inputs: Tensor, seed: int, batches: int) -> Loss:
        def loss(predict: Predict, step: int) -> Tensor:
            epoch, place = divmod(step, batches)
            order = torch.randperm(len(inputs), generator=public_draws(seed, epoch, 3))
            images = inputs[order[place * self.batch_size : (place + 1) * self.batch_size]]
            source = public_draws(seed, epoch, place, 4)
            with heard(last) as features:
                predict(torch.cat([self._view(images, source), self._view(images, source)]))
            one, other = F.normalize(features[-1].flatten(1), dim=1).chunk(2)
            return (
                alignment(one, other)
                + self.weight * (uniformity(one, self.spread) + uniformity(other, self.spread)) / 2
            )

        return loss

    def _view(self, images: Tensor, source: torch.Generator) -> Tensor:
        for transform in self.augment:
            images = transform(images, source)
        return images


def alignment(one: Tensor, other: Tensor) -> Tensor:
    """The mean squared distance of two views of one image; 0 is best.

    >>> alignment(torch.eye(2), torch.eye(2))
    tensor(0.)
    """
    return (one - other).square().sum(1).mean()


def uniformity(features: Tensor, spread: float = 2.0) -> Tensor:
    """log of the mean of exp(-spread ||x - y||^2) over pairs; 0 if all are one, lower the further apart they are.

    >>> uniformity(torch.ones(3, 2))
    tensor(0.)
    """
    return F.pdist(features).square().mul(-spread).exp().mean().log()


def last_linear(model: nn.Module) -> nn.Linear:
    """The last linear layer: what stands before it are the features."""
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not found or not any(
        p.requires_grad for m in model.modules() if m is not found[-1] for p in m.parameters(recurse=False)
    ):
        raise ModelError(
            "the model has no layers before its last linear one, so there are no features to warm up; take another"
        )
    return found[-1]


@contextmanager
def heard(layer: nn.Module) -> Iterator[list[Tensor]]:
    """What enters a layer while the model runs."""
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    try:
        yield inputs
    finally:
        handle.remove()


@contextmanager
def frozen(layer: nn.Module) -> Iterator[None]:
    """A layer whose weights are not trained meanwhile: decay would shrink them."""
    before = [(p, p.requires_grad) for p in layer.parameters()]
    try:
        for p, _ in before:
            p.requires_grad_(False)
        yield
    finally:
        for p, trained in before:
            p.requires_grad_(trained)
