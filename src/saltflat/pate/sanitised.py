"""What votes cost as they were, released: one noisy number, by settings that were fixed in advance.

It holds at the data at hand and says nothing of other data; the worst case, which the ledger has, holds whatever the
data is. Where teachers agree the released number is far below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat.core.mechanism import Noise
from saltflat.pate.gnmax import Allowance, Cap, ConfidentGNMax, check_queries, check_source
from saltflat.pate.renyi import Array, rdp_gnmax, rdp_threshold
from saltflat.pate.smooth import Slope, Smooth, plurality_changes, smooth_sensitivity, threshold_changes
from saltflat.pate.votes import TeacherVotes, private_counts
from saltflat.privacy.accounting import renyi
from saltflat.privacy.limits import checked_delta
from saltflat.privacy.noise import SecureNoise
from saltflat.privacy.record.costs import RenyiBound

RELEASES = "releases"


@dataclass(frozen=True)
class Sanitised:
    """A released upper bound ``rdp`` on the Renyi cost of an interaction at ``order``, and that of its own release.

    ``miss`` is the probability that the bound is below what it bounds.
    """

    rdp: float
    order: float
    release_rdp: float
    miss: float

    def epsilon(self, delta: float) -> float:
        """At the data at hand, with the cost of this release: an upper bound but for ``miss``."""
        total = self.rdp + self.release_rdp + renyi.conversion(self.order, checked_delta(delta))
        return max(total, 0.0)


def release_cost(smooth: Smooth) -> RenyiBound:
    """What the release costs whatever the data is, as a ledger charges it."""
    orders = sorted({order for order in renyi.ORDERS if 2 * order * smooth.beta < 0.999} | {smooth.order})
    points = tuple((order, smooth.rdp(order)) for order in orders)
    return RenyiBound("what votes cost, by smooth sensitivity", points)


def check_smooth(gnmax: ConfidentGNMax, smooth: Smooth, *, teachers: int, classes: int) -> None:
    """Refuse settings at which smooth sensitivity is not proved; nothing of it depends on votes."""
    Slope(gnmax.sigma2, smooth.order, classes).check(teachers)


def release(
    votes: TeacherVotes,
    gnmax: ConfidentGNMax,
    queries: Sequence[int],
    smooth: Smooth,
    allowance: Allowance,
    *,
    noise: Noise | None = None,
) -> Sanitised:
    """The data-dependent cost of asking ``queries``, noised so that it may be published, once.

    *Guarantee*: ``queries`` are those that were asked, which is public. On every path at most the limit's answers are
    given, so tests count all, and answers with so many of the dearest. The one release is drawn from ``allowance``
    (a claim of `release_cost`) before its noise is.
    """
    source = SecureNoise() if noise is None else noise
    check_source(source, allowance)
    asked = check_queries(queries, votes.queries)
    check_smooth(gnmax, smooth, teachers=votes.teachers, classes=votes.classes)
    allowance.draw(lambda used: used[RELEASES] <= 1, releases=1)
    cost, sensitivity = _private(votes, gnmax, asked, smooth)
    z = float(source.normal({"z": torch.zeros(1, dtype=torch.float64)})["z"])
    found = smooth.released(cost, sensitivity, z)
    return Sanitised(found, smooth.order, smooth.rdp(smooth.order), smooth.miss)


def _private(
    votes: TeacherVotes, gnmax: ConfidentGNMax, asked: NDArray[np.int64], smooth: Smooth
) -> tuple[float, float]:
    """(cost, smooth sensitivity), neither of which may leave."""
    counts, order, teachers = private_counts(votes, asked), smooth.order, votes.teachers
    largest = counts.max(1) if len(counts) else np.zeros(0)
    many = min(gnmax.limit.answers if isinstance(gnmax.limit, Cap) else len(asked), len(asked))
    tests = rdp_threshold(largest, gnmax.threshold, gnmax.sigma1, [order])[:, 0]
    answers = rdp_gnmax(counts, gnmax.sigma2, [order])[:, 0]
    near = threshold_changes(largest, gnmax.threshold, gnmax.sigma1, order=order, teachers=teachers)
    slope = Slope(gnmax.sigma2, order, votes.classes)
    far = plurality_changes(counts, slope, teachers)
    changes = near.sum(1) + np.array([_dearest(row, many) for row in far])
    return math.fsum(tests) + _dearest(answers, many), smooth_sensitivity(changes, smooth.beta)


def _dearest(values: Array, many: int) -> float:
    """The sum of so many of the largest."""
    return float(np.sort(values)[len(values) - many :].sum()) if many else 0.0
