"""Metrics of made images: closed forms, constructed sets, and copies that are found out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from saltflat.errors import DataError, SettingError
from saltflat.synthesis import DeadLeaves, Images, metrics
from saltflat.synthesis.metrics import (
    Gaussian,
    copies,
    frechet,
    inception_score,
    judge,
    precision_recall,
)

SOURCE = torch.Generator().manual_seed(0)


def exactly(mean: Tensor, covariance: Tensor, count: int = 200) -> Tensor:
    """Rows whose mean and covariance are these, not nearly but to rounding."""
    rows = torch.randn(count, len(mean), generator=SOURCE, dtype=torch.float64)
    rows = rows - rows.mean(0)
    white = rows @ torch.linalg.inv(torch.linalg.cholesky(rows.T @ rows / (count - 1))).T
    return mean + white @ torch.linalg.cholesky(covariance).T


class TestFrechet:
    def test_diagonal_covariances_have_a_closed_form(self) -> None:
        """||m1 - m2||^2 + sum_i (a_i - b_i)^2, with a and b the standard deviations."""
        a, b = torch.tensor([0.5, 2.0, 3.0]).double(), torch.tensor([1.5, 0.1, 3.0]).double()
        m = torch.tensor([1.0, -2.0, 0.5]).double()
        one, other = exactly(m, torch.diag(a**2)), exactly(torch.zeros(3).double(), torch.diag(b**2))
        wanted = float(m.square().sum() + (a - b).square().sum())
        assert frechet(Gaussian.of(one), Gaussian.of(other)) == pytest.approx(wanted, rel=1e-6)

    def test_a_linear_map_has_a_closed_form(self) -> None:
        """From N(0, I) to N(0, S) the distance is tr(I + S - 2 S^(1/2)); axes that are not those of the features."""
        turn = torch.linalg.qr(torch.randn(4, 4, generator=SOURCE, dtype=torch.float64)).Q
        values = torch.tensor([0.25, 1.0, 4.0, 9.0]).double()
        rows = exactly(torch.zeros(4).double(), turn @ torch.diag(values) @ turn.T)
        white = exactly(torch.zeros(4).double(), torch.eye(4).double())
        wanted = float((1 - values.sqrt()).square().sum())
        for pair in ((white, rows), (rows, white)):
            assert frechet(*map(Gaussian.of, pair)) == pytest.approx(wanted, rel=1e-6)

    def test_it_is_scipys_root_for_covariances_that_do_not_commute(self) -> None:
        linalg = pytest.importorskip("scipy.linalg")
        one, other = (torch.randn(50, 5, generator=SOURCE, dtype=torch.float64) for _ in range(2))
        other = other @ torch.randn(5, 5, generator=SOURCE, dtype=torch.float64)
        a, b = Gaussian.of(one), Gaussian.of(other)
        root = linalg.sqrtm((a.covariance @ b.covariance).numpy()).real
        wanted = float((a.mean - b.mean).square().sum()) + float(
            torch.trace(a.covariance + b.covariance) - 2 * np.trace(root)
        )
        assert frechet(a, b) == pytest.approx(wanted, rel=1e-6)

    def test_fewer_rows_than_features(self) -> None:
        rows = torch.randn(5, 30, generator=SOURCE)
        assert frechet(Gaussian.of(rows), Gaussian.of(rows)) == pytest.approx(0, abs=1e-5)


class TestInceptionScore:
    def test_all_alike_is_one_and_all_certain_is_the_number_of_classes(self) -> None:
        assert inception_score(torch.full((40, 5), 0.2)) == pytest.approx((1.0, 0.0))
        assert inception_score(torch.eye(5).repeat(8, 1)[torch.randperm(40, generator=SOURCE)], splits=1)[
            0
        ] == pytest.approx(5.0)

    def test_two_kinds_by_hand(self) -> None:
        rows = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).repeat(10, 1)
        wanted = math.exp(0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5))
        assert inception_score(rows, splits=2) == pytest.approx((wanted, 0.0), abs=1e-6)


class TestPrecisionRecall:
    def test_a_constructed_set(self) -> None:
        """Public ones at 0, 1, ..., 9: with one neighbour every ball has radius 1, so they cover [-1, 10]."""
        public = torch.arange(10.0).view(-1, 1)
        made = torch.tensor([-1.0, -1.1, 4.5, 10.0, 10.1, 50.0]).view(-1, 1)
        precision, recall = precision_recall(public, made, nearest=1)
        assert precision == 3 / 6
        # made balls: -1 and -1.1 reach 0.1, 4.5 reaches 5.5, 10 and 10.1 reach 0.1, 50 reaches 39.9 down to 10.1
        assert recall == 10 / 10

    def test_one_mode_of_two(self) -> None:
        near = torch.randn(200, 3, generator=SOURCE)
        public, made = torch.cat([near, near + 100]), torch.randn(200, 3, generator=SOURCE)
        precision, recall = precision_recall(public, made)
        assert precision > 0.9
        assert 0.4 < recall <= 0.5

    def test_blocks_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = (torch.randn(50, 2, generator=SOURCE) for _ in range(2))
        whole = precision_recall(one, other)
        monkeypatch.setattr(metrics, "BLOCK", 7)
        assert precision_recall(one, other) == whole


class TestCopies:
    def test_copied_images_score_precision_one_and_are_flagged(self) -> None:
        """As a generator would that knows its few public images by heart."""
        public = Images(process=DeadLeaves(), side=8).first(60).float() / 255
        found = judge(public, public.repeat(5, 1, 1, 1), lambda images: images)
        assert found.precision == 1
        assert found.copied == 1
        assert "100.0 % copies" in str(found)

    def test_new_images_of_the_same_kind_are_not(self) -> None:
        made = Images(process=DeadLeaves(), side=8).first(400).float() / 255
        found = judge(made[:200], made[200:], lambda images: images)
        assert found.copied < 0.05
        assert found.precision > 0.5

    def test_which_one_was_copied(self) -> None:
        public = torch.randn(30, 4, generator=SOURCE)
        found = copies(public, public[[7, 3]] + 1e-4)
        assert found.index.tolist() == [7, 3]
        assert found.copied.all()
        assert float(found.distance.max()) < 1e-3


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Gaussian.of(torch.zeros(1, 3)), DataError, "2 of them"),
        (lambda: Gaussian.of(torch.zeros(5)), DataError, "rows"),
        (lambda: copies(torch.full((4, 2), float("nan")), torch.zeros(4, 2)), DataError, "NaN"),
        (lambda: inception_score(torch.ones(4, 2)), DataError, "softmax"),
        (lambda: inception_score(torch.eye(4), splits=5), SettingError, "splits"),
        (lambda: precision_recall(torch.zeros(3, 2), torch.zeros(9, 2)), DataError, "4 of them"),
        (lambda: precision_recall(torch.zeros(3, 2), torch.zeros(9, 2), nearest=0), SettingError, "nearest"),
        (lambda: copies(torch.zeros(3, 2), torch.zeros(3, 2), closer=0.0), SettingError, "closer"),
        (
            lambda: frechet(Gaussian.of(torch.rand(4, 2)), Gaussian.of(torch.rand(4, 3))),
            SettingError,
            "one width",
        ),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()
