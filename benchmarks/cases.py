"""The nine models of the step benchmark, each with random data of the right shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saltflat import models

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, the shape of one of its inputs, and how many units a step takes."""

    title: str
    build: Callable[[], nn.Module]
    units: int
    shape: tuple[int, ...]
    answers: int = 10
    words: bool = False

    def model(self) -> nn.Module:
        """The same weights at every call, so that all engines start from one point."""
        torch.manual_seed(0)
        return self.build()

    def batch(self) -> Batch:
        """Inputs and targets; a language model has a target for each token."""
        generator = torch.Generator().manual_seed(1)
        size = (self.units, *self.shape)
        if self.words:
            tokens = torch.randint(self.answers, (2, *size), generator=generator)
            return tokens[0], tokens[1]
        targets = torch.randint(self.answers, (self.units,), generator=generator)
        return torch.randn(size, generator=generator), targets


VOCABULARY = 5_000
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
CASES = {
    "mlp": Case(title="MLP 784-512-128-10", build=models.mlp_mnist, units=2048, shape=MNIST),
    "tutorial-cnn": Case(title="tutorial CNN", build=models.tutorial_cnn, units=512, shape=MNIST),
    "cnn-tanh": Case(title="CNN-Tanh", build=models.cnn_tanh, units=256, shape=CIFAR),
    "dpnas-mnist": Case(title="DPNAS-MNIST", build=models.dpnas_mnist, units=64, shape=MNIST),
    "dpnas-cifar": Case(title="DPNAS-CIFAR", build=models.dpnas_cifar, units=32, shape=CIFAR),
    "gnresnet10": Case(title="GNResNet-10", build=models.gnresnet10, units=64, shape=MNIST),
    "wrn-16-4": Case(title="WRN-16-4", build=models.wrn_16_4, units=32, shape=CIFAR),
    "small-vit": Case(title="small ViT", build=models.small_vit, units=128, shape=CIFAR),
    "lstm": Case(
        title="next-word LSTM",
        build=lambda: models.next_word_lstm(VOCABULARY),
        units=64,
        shape=(20,),
        answers=VOCABULARY,
        words=True,
    ),
}
QUICK = ("tutorial-cnn", "dpnas-mnist", "lstm")
