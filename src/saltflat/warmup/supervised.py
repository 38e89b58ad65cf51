"""Warm-up on labelled examples: those that people shared, or those that a generator made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from saltflat.data import Examples
from saltflat.data.augment import Transform
from saltflat.errors import SettingError
from saltflat.methods.draws import public_draws
from saltflat.settings import is_number
from saltflat.warmup.descent import Descent, Loss, Predict
from saltflat.warmup.known import Known, Watch

POOLS = ("public", "synthetic")


@dataclass(frozen=True, kw_only=True)
class Supervised(Descent):
    """Cross-entropy on the ``public`` or ``synthetic`` examples, which ``augment`` changes anew in every step.

    With ``cutmix`` so much of the batches is mixed: a rectangle of every image comes from another image of the batch,
    and its label counts by its area. Images may be mixed here, as they are public; never in the private phase, where an
    example must be seen alone. Yun et al., "CutMix", ICCV 2019.

    >>> Supervised(on="synthetic", epochs=3, radius=0.1).in_words()
    '3 epochs of SAM on the synthetic examples'
    """

    on: str = "public"
    augment: tuple[Transform, ...] = ()
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on not in POOLS:
            raise SettingError(f"on is one of {', '.join(POOLS)}; got {self.on!r}")
        if not is_number(self.cutmix, 0, 1):
            raise SettingError(f"cutmix is a part of all batches, in [0, 1]; got {self.cutmix!r}")

    def in_words(self) -> str:
        how = ("adaptive SAM" if self.adaptive else "SAM") if self.radius else "SGD"
        return f"{self.epochs} epochs of {how} on the {self.on} examples"

    def warmed(self, model: nn.Module, known: Known, *, seed: int, watch: Watch) -> None:
        self.trained(model, known.pool(self.on), seed=seed, watch=watch)

    def trained(
        self, model: nn.Module, examples: Examples, *, seed: int = 0, watch: Watch = lambda done, total: None
    ) -> None:
        """The model after training on these examples; what is drawn is a function of ``seed``."""
        batches = -(-examples.count // self.batch_size)
        self.descended(
            model, self._loss(examples, seed, batches), self.epochs * batches, seed=seed, watch=watch
        )

    def _loss(self, examples: Examples, seed: int, batches: int) -> Loss:
        device = examples.inputs.device

        def loss(predict: Predict, step: int) -> Tensor:
            epoch, place = divmod(step, batches)
            order = torch.randperm(examples.count, generator=public_draws(seed, epoch))
            chosen = order[place * self.batch_size : (place + 1) * self.batch_size]
            inputs, targets = examples.take(chosen.numpy())
            source = public_draws(seed, epoch, place, 2)
            for transform in self.augment:
                inputs = transform(inputs, source)
            if self.cutmix and float(torch.rand(1, generator=source)) < self.cutmix:
                mixed, others, share = cutmix(inputs, source)
                outputs = predict(mixed)
                own, other = (
                    F.cross_entropy(outputs, each) for each in (targets, targets[others.to(device)])
                )
                return (1 - share) * own + share * other
            return F.cross_entropy(predict(inputs), targets)

        return loss


def cutmix(images: Tensor, source: Generator) -> tuple[Tensor, Tensor, float]:
    """Images with one rectangle each from another image; which other, and how much of the area.

    The rectangle has the image's proportions and a uniformly drawn part of its area, around a random pixel; what lies
    over the edge is cut off, and does not count.

    >>> images = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 1, 8, 8)
    >>> mixed, others, share = cutmix(images, torch.Generator().manual_seed(1))
    >>> bool(0 <= share <= 1), mixed.shape, sorted(others.tolist())
    (True, torch.Size([2, 1, 8, 8]), [0, 1])
    """
    count, _, height, width = images.shape
    others = torch.randperm(count, generator=source)
    side = float(torch.rand(1, generator=source)) ** 0.5
    down, across = (int(torch.randint(length, (1,), generator=source)) for length in (height, width))
    top, bottom = _span(down, side * height, height)
    left, right = _span(across, side * width, width)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images[others.to(images.device)][:, :, top:bottom, left:right]
    return mixed, others, (bottom - top) * (right - left) / (height * width)


def _span(middle: int, length: float, most: int) -> tuple[int, int]:
    low, high = round(middle - length / 2), round(middle + length / 2)
    return max(0, low), min(most, high)
