"""How good a classifier's probabilities are on rows with known classes. No torch: the report reads by it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 10
SMALLEST = 1e-12
"""Probabilities below it count as it, so that one confident mistake leaves the log-loss finite."""


@dataclass(frozen=True)
class Scores:
    """Scores of predicted class probabilities.

    Args:
        count: The number of rows.
        accuracy: The share of rows whose most probable class is theirs.
        log_loss: mean of -log p(class), in nats.
        ece: Expected calibration error, sum over bins of share(bin) |accuracy(bin) - mean confidence(bin)|, with
            `BINS` bins of equal width of the highest probability.
        auc: Area under the ROC curve of class 1; of several classes the mean over each against the rest. None where a
            class has all rows, or none has any.
        confusion: Rows of class i that were predicted as class j, as a list of lists.
        bins: For each bin the number of rows, the mean confidence and the accuracy; None in an empty one.
    """

    count: int
    accuracy: float
    log_loss: float
    ece: float
    auc: float | None
    confusion: list[list[int]]
    bins: list[tuple[int, float | None, float | None]]

    @property
    def majority(self) -> float:
        """The accuracy of always naming the most common class."""
        return max(map(sum, self.confusion)) / self.count

    @property
    def names_one_class(self) -> bool:
        """Whether every row was given one and the same class, while there are rows of others."""
        predicted = np.array(self.confusion).sum(0)
        return int((predicted > 0).sum()) == 1 and self.majority < 1

    @property
    def per_class(self) -> list[dict[str, float | int | None]]:
        """Precision, recall and number of rows of each class; None where there is nothing to divide by."""
        found = []
        for k, row in enumerate(self.confusion):
            support, named, right = sum(row), sum(other[k] for other in self.confusion), row[k]
            found.append(
                {
                    "precision": right / named if named else None,
                    "recall": right / support if support else None,
                    "rows": support,
                }
            )
        return found


def score(probabilities: NDArray[Any], classes: NDArray[Any]) -> Scores:
    """The scores of ``probabilities`` (n, classes) on rows of these ``classes`` (n,), whole numbers.

    >>> found = score(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1]))
    >>> round(found.accuracy, 3), round(found.log_loss, 3), found.auc, found.confusion
    (0.667, 0.415, 1.0, [[1, 0], [1, 1]])
    """
    count, width = probabilities.shape
    labels = classes.astype(np.int64)
    predicted, confidence = probabilities.argmax(1), probabilities.max(1)
    right = predicted == labels
    confusion = np.zeros((width, width), dtype=np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    bins: list[tuple[int, float | None, float | None]] = []
    ece = 0.0
    for k in range(BINS):
        inside = place == k
        rows = int(inside.sum())
        if rows == 0:
            bins.append((0, None, None))
            continue
        mean, share = float(confidence[inside].mean()), float(right[inside].mean())
        bins.append((rows, mean, share))
        ece += rows / count * abs(share - mean)
    own = probabilities[np.arange(count), labels]
    return Scores(
        count=count,
        accuracy=float(right.mean()),
        log_loss=float(-np.log(np.maximum(own, SMALLEST)).mean()),
        ece=ece,
        auc=_auc(probabilities, labels),
        confusion=confusion.tolist(),
        bins=bins,
    )


def _auc(probabilities: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """P(score of a row of the class > score of another row), ties count half; by ranks."""
    width = probabilities.shape[1]
    found = []
    for k in [1] if width == 2 else range(width):
        positive = labels == k
        first, other = int(positive.sum()), int((~positive).sum())
        if first and other:
            _, inverse, counts = np.unique(probabilities[:, k], return_inverse=True, return_counts=True)
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
            found.append(float((ranks[positive].sum() - first * (first + 1) / 2) / (first * other)))
    return sum(found) / len(found) if found else None
