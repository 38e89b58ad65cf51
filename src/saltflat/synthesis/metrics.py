"""How good made images are, in the features of any extractor: Frechet distance, precision and recall, and copies.

An extractor is a function from images (n, channels, height, width) to features (n, d); a feature map of
`saltflat.features`, flattened, or a network trained on public images serves. Written out here because the libraries
that have them (torchmetrics, torch-fidelity) are built around one network whose weights they fetch.

*Guarantee*: none of privacy. The images that are compared with must be public: whoever chooses a generator, a
checkpoint or a setting by these numbers on private images has asked about them, and nobody paid for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from saltflat.errors import DataError, SettingError
from saltflat.settings import is_positive, is_whole

Extractor = Callable[[Tensor], Tensor]
BLOCK = 1024  # rows whose distances are in memory together


@dataclass(frozen=True)
class Gaussian:
    """The mean (d,) and the covariance (d, d) of features."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Gaussian:
        """Those of rows; the covariance divides by n - 1."""
        rows = _rows(features, least=2)
        centred = rows - rows.mean(0)
        return cls(rows.mean(0), centred.T @ centred / (len(rows) - 1))


def frechet(one: Gaussian, other: Gaussian) -> float:
    """||m1 - m2||^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)): the squared Wasserstein distance of two Gaussians, FID's formula.

    The trace of the root is that of (S1^(1/2) S2 S1^(1/2))^(1/2), which is symmetric, so that no root is complex.
    Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium", NeurIPS 2017.

    >>> plane = torch.eye(2).double()
    >>> round(frechet(Gaussian(torch.zeros(2), plane), Gaussian(torch.tensor([3.0, 4.0]), 4 * plane)), 9)
    27.0
    """
    if one.mean.shape != other.mean.shape:
        raise SettingError(
            f"features of one width are compared; got {one.mean.numel()} and {other.mean.numel()}"
        )
    root = _root(one.covariance.double())
    shared = torch.linalg.eigvalsh(root @ other.covariance.double() @ root).clamp(min=0).sqrt().sum()
    moved = (one.mean.double() - other.mean.double()).square().sum()
    spread = torch.trace(one.covariance.double()) + torch.trace(other.covariance.double())
    return float(moved + spread - 2 * shared)


def inception_score(probabilities: Tensor, *, splits: int = 10) -> tuple[float, float]:
    """exp(mean_x KL(p(y | x) || p(y))), its mean and standard deviation over ``splits``; higher is better.

    ``probabilities`` (n, classes) are a classifier's, rows that sum to 1. From 1 (all alike) to the number of classes.
    Salimans et al., "Improved Techniques for Training GANs", NeurIPS 2016.

    >>> inception_score(torch.eye(4).repeat(10, 1), splits=2)
    (4.0, 0.0)
    """
    rows = _rows(probabilities)
    if bool((rows < 0).any()) or not torch.allclose(rows.sum(1), torch.ones(len(rows)).double(), atol=1e-4):
        raise DataError("probabilities are rows of numbers from 0 that sum to 1; take a softmax first")
    if not is_whole(splits, 1, len(rows)):
        raise SettingError(f"splits is a whole number from 1 to the number of rows; got {splits!r}")
    scores = []
    for part in rows.tensor_split(splits):
        ratio = torch.xlogy(part, part) - torch.xlogy(part, part.mean(0))
        scores.append(ratio.sum(1).mean().exp())
    found = torch.stack(scores)
    return float(found.mean()), float(found.std(correction=0))


def precision_recall(public: Tensor, made: Tensor, *, nearest: int = 3) -> tuple[float, float]:
    """The share of made features within some public one's ball, and of public ones within some made one's.

    A ball reaches to its centre's ``nearest``-th neighbour in its own set. Precision is how much of what was made
    looks real, recall how much of what is real is covered.
    Kynkaanniemi et al., "Improved Precision and Recall Metric for Assessing Generative Models", NeurIPS 2019.

    >>> line = torch.arange(10.0).view(-1, 1)
    >>> precision_recall(line, torch.cat([line[:5], line[:5] + 100]), nearest=1)
    (0.5, 0.6)
    """
    if not is_whole(nearest):
        raise SettingError(f"nearest is a number of neighbours, at least 1; got {nearest!r}")
    real, fake = (_rows(each, least=nearest + 1) for each in (public, made))
    within = lambda points, centres: float(
        _covered(points, centres, _radii(centres, nearest)).double().mean()
    )
    return within(fake, real), within(real, fake)


@dataclass(frozen=True)
class Copies:
    """The nearest public neighbour of everything made: which it is, how far, and whether that is a copy's distance."""

    index: Tensor  # (made,)
    distance: Tensor  # (made,)
    copied: Tensor  # (made,), true or false

    @property
    def share(self) -> float:
        """How much of what was made is a copy."""
        return float(self.copied.double().mean())


def copies(public: Tensor, made: Tensor, *, closer: float = 0.2) -> Copies:
    """What a generator knows by heart: made features much closer to a public one than other public ones are.

    Something made is a copy if its distance to the nearest public neighbour is below ``closer`` times the median
    distance between a public one and its nearest other.

    >>> square = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    >>> copies(square, torch.tensor([[0.01, 0.0], [0.5, 0.5]])).copied
    tensor([ True, False])
    """
    if not is_positive(closer):
        raise SettingError(f"closer is a part of the usual distance, above 0; got {closer!r}")
    real, fake = _rows(public, least=2), _rows(made)
    found = [each.min(1) for each in _distances(fake, real)]
    distance = torch.cat([each.values for each in found])
    usual = _radii(real, 1).median()
    return Copies(torch.cat([each.indices for each in found]), distance, distance <= closer * usual)


@dataclass(frozen=True)
class Judged:
    """What the metrics say of made images beside public ones."""

    frechet: float
    precision: float
    recall: float
    copied: float

    def __str__(self) -> str:
        return (
            f"Frechet distance {self.frechet:.3g}, precision {self.precision:.3f}, recall {self.recall:.3f}, "
            f"{100 * self.copied:.1f} % copies of public images"
        )


def judge(public: Tensor, made: Tensor, extractor: Extractor, *, nearest: int = 3) -> Judged:
    """All of them that need no classifier, in the features of ``extractor``."""
    real, fake = (_rows(extractor(images).flatten(1), least=nearest + 1) for images in (public, made))
    precision, recall = precision_recall(real, fake, nearest=nearest)
    return Judged(
        frechet=frechet(Gaussian.of(real), Gaussian.of(fake)),
        precision=precision,
        recall=recall,
        copied=copies(real, fake).share,
    )


def _rows(features: Tensor, *, least: int = 1) -> Tensor:
    """Features as float64 rows; refused are too few of them, and what is no number."""
    if features.ndim != 2 or len(features) < least:
        raise DataError(
            f"features are rows (n, d), {least} of them at least; got shape {tuple(features.shape)}"
        )
    if not bool(features.isfinite().all()):
        raise DataError("features hold a NaN or an infinity; look at the images and the extractor")
    return features.double()


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def _distances(points: Tensor, centres: Tensor) -> Iterator[Tensor]:
    """(block, centres), block by block; differences are taken, as squares would lose those of copies."""
    for block in points.split(BLOCK):
        yield torch.cdist(block, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _radii(centres: Tensor, nearest: int) -> Tensor:
    """How far each centre's ``nearest``-th neighbour among the others is; itself is the first of all."""
    return torch.cat([each.kthvalue(nearest + 1, 1).values for each in _distances(centres, centres)])


def _covered(points: Tensor, centres: Tensor, radii: Tensor) -> Tensor:
    return torch.cat([(each <= radii).any(1) for each in _distances(points, centres)])
