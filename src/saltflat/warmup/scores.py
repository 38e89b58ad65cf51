"""How good made images are for a classifier: CAS, and features of a network that was trained on public images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from saltflat.data import Examples, PadCrop
from saltflat.errors import SettingError
from saltflat.synthesis import metrics
from saltflat.warmup.contrast import heard, last_linear
from saltflat.warmup.known import Known
from saltflat.warmup.supervised import Supervised

ROWS = 500  # images that are looked at together
LESSONS, BATCH = 400, 50  # steps that an extractor is trained by, about, and examples in each


def right(model: nn.Module, examples: Examples) -> float:
    """The share of examples whose largest output is the label."""
    model.eval()
    with torch.no_grad():
        found = sum(int((model(x).argmax(1) == y).sum()) for x, y in examples.batches(ROWS))
    return found / examples.count


def cas(
    make: Callable[[], nn.Module], made: Examples, test: Examples, *, how: Supervised, seed: int = 0
) -> float:
    """Classification accuracy score: the share of ``test`` that a network gets right which saw made examples only.

    Ravuri and Vinyals, "Classification Accuracy Score for Conditional Generative Models", NeurIPS 2019. Test examples
    are public; whoever chooses a generator by this number has tuned on them, and should say so.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
    how.trained(model, made, seed=seed)
    return right(model, test)


@dataclass(frozen=True)
class Extractor:
    """Features and class probabilities of a small network trained on public images: no download, no private image.

    Distances in its features are not those in Inception's, and cannot be compared with published ones.
    """

    network: nn.Module = field(repr=False)

    @classmethod
    def trained(
        cls, public: Examples, classes: int, *, how: Supervised | None = None, seed: int = 0
    ) -> Extractor:
        """Trained on ``public``, labelled images of any size; 64 features."""
        if public.inputs.ndim != 4:
            raise SettingError("an extractor is trained on images (n, c, h, w); these examples are none")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = _network(public.shape[0], classes)
        side = public.shape[1]
        epochs = -(-LESSONS * BATCH // public.count)
        usual = Supervised(epochs=epochs, batch_size=BATCH, augment=(PadCrop(max(1, side // 8)),))
        (how or usual).trained(network, public, seed=seed)
        return cls(network.requires_grad_(False))

    def features(self, examples: Examples) -> Tensor:
        """(n, 64): what enters the last layer."""
        last, found = last_linear(self.network.requires_grad_(True)), []
        self.network.requires_grad_(False)
        with torch.no_grad():
            for inputs, _ in examples.batches(ROWS):
                with heard(last) as rows:
                    self.network(inputs)
                found.append(rows[-1])
        return torch.cat(found)

    def probabilities(self, examples: Examples) -> Tensor:
        """(n, classes), rows that sum to 1: for `metrics.inception_score`."""
        with torch.no_grad():
            return torch.cat([self.network(inputs).softmax(1) for inputs, _ in examples.batches(ROWS)])


def _network(channels: int, classes: int) -> nn.Module:
    """Two convolutions, the mean over four quarters, 64 features; for images from 8 x 8 pixels on."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, classes)),
    )


def judged(known: Known, extractor: Extractor | None = None, *, seed: int = 0) -> dict[str, float]:
    """All figures of the synthetic examples beside the public ones: Frechet distance, IS, precision, recall, copies."""
    public, made = known.pool("public"), known.pool("synthetic")
    found = extractor or Extractor.trained(public, known.classes, seed=seed)
    real, fake = found.features(public), found.features(made)
    precision, recall = metrics.precision_recall(real, fake)
    score, _ = metrics.inception_score(found.probabilities(made), splits=min(10, made.count))
    flat = lambda each: replace(each).whole()[0].flatten(1)
    return {
        "frechet": metrics.frechet(metrics.Gaussian.of(real), metrics.Gaussian.of(fake)),
        "inception_score": score,
        "precision": precision,
        "recall": recall,
        "copied": metrics.copies(flat(public), flat(made)).share,  # by pixels: a copy looks like its original
    }
