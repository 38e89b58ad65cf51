"""The models of the step benchmark, each with random data of the right shape."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from saltflat import models
from saltflat.models.language import BROWN_VOCABULARY

Batch = tuple[Tensor, Tensor]


class Logits(nn.Module):
    """A model of Hugging Face that gives its logits, as the others here do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs).logits


@contextmanager
def _without_torchvision() -> Iterator[None]:
    """Nothing of it is used here, and one that was built for another torch fails at its import."""
    if "torchvision" in sys.modules:
        yield
        return
    sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torchvision"]


def hf_vit() -> nn.Module:
    """ViT for images of 64 x 64 in patches of 16: 17 positions of width 384, six layers, 10.9 million parameters."""
    with _without_torchvision():
        from transformers import ViTConfig, ViTForImageClassification
    config = ViTConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=64,
        patch_size=16,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Logits(ViTForImageClassification(config))


def hf_bert() -> nn.Module:
    """BERT-small on 32 tokens, four layers of width 512, classes from the first position."""
    with _without_torchvision():
        from transformers import BertConfig, BertForSequenceClassification
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=2048,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Logits(BertForSequenceClassification(config))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, the shape of one of its inputs, and how many units a step takes."""

    title: str
    build: Callable[[], nn.Module]
    units: int
    shape: tuple[int, ...]
    answers: int = 10
    words: bool = False
    vocabulary: int = 0  # of inputs that are tokens, where targets are classes
    needs: str = ""  # a package

    @property
    def missing(self) -> bool:
        """Whether a package that it is made of is not installed."""
        return bool(self.needs) and find_spec(self.needs) is None

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
        if self.vocabulary:
            return torch.randint(self.vocabulary, size, generator=generator), targets
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
    "lstm-brown": Case(
        title="next-word LSTM, 36,743 words",
        build=models.next_word_lstm,
        units=64,
        shape=(20,),
        answers=BROWN_VOCABULARY,
        words=True,
    ),
    "hf-vit": Case(
        title="Hugging Face ViT", build=hf_vit, units=192, shape=(3, 64, 64), needs="transformers"
    ),
    "hf-bert": Case(
        title="Hugging Face BERT",
        build=hf_bert,
        units=192,
        shape=(32,),
        vocabulary=VOCABULARY,
        needs="transformers",
    ),
}
QUICK = ("tutorial-cnn", "dpnas-mnist", "lstm")
