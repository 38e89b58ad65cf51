"""Membership by loss: the measures against their definitions, and who may look."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import nn

from saltflat import per_example, supervised
from saltflat.audit import Claim, Sides, membership
from saltflat.audit.losses import advantage_between, auc, losses
from saltflat.data import TensorUnits
from saltflat.errors import DataError, PrivacyError
from saltflat.landscape import PUBLIC, STAYS_PRIVATE

CLAIM = Claim(epsilon=1.0, delta=1e-5)
CRITERION = nn.CrossEntropyLoss(reduction="none")


def sides(*, fair: bool = False) -> Sides:
    torch.manual_seed(0)
    x, y = torch.randn(400, 20), torch.randint(2, (400,))
    return Sides(TensorUnits((x[:200], y[:200])), TensorUnits((x[200:], y[200:])), fair=fair)


def contribution(*, by_heart: bool = False):
    """A network as it begins, or one that has learnt the members' labels, which are chance, by heart."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 2))
    x, y = sides().members.tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200 if by_heart else 0):
        optimizer.zero_grad()
        CRITERION(model(x), y).mean().backward()
        optimizer.step()
    return per_example(model, supervised(CRITERION))


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=30), st.lists(st.integers(0, 6), min_size=2, max_size=30)
)
def test_auc_is_sklearns(members: list[int], others: list[int]) -> None:
    truth = [1] * len(members) + [0] * len(others)
    assert auc(np.array(members, float), np.array(others, float)).value == pytest.approx(
        roc_auc_score(truth, members + others)
    )


def test_the_interval_of_the_auc_covers() -> None:
    """DeLong's, at 95 %: over 600 draws of two Gaussians one apart, AUC Phi(1 / sqrt 2)."""
    source, inside = np.random.default_rng(0), 0
    for _ in range(600):
        found = auc(source.normal(1.0, size=80), source.normal(size=120))
        inside += found.low <= 0.76025 <= found.high
    assert 0.92 < inside / 600 < 0.98


def test_the_interval_of_the_advantage_covers() -> None:
    """Whatever threshold was chosen, a chosen one does not flatter: nothing is shown where nothing is."""
    source = np.random.default_rng(0)
    found = [advantage_between(source.normal(size=100), source.normal(size=100)) for _ in range(300)]
    assert np.mean([each.low > 0 for each in found]) <= 0.05
    assert abs(np.mean([each.value for each in found])) < 0.02


def test_a_network_that_learnt_by_heart_is_told_from_one_that_did_not() -> None:
    fresh = membership(
        contribution(), sides(), claim=CLAIM, access=PUBLIC, leaky=(contribution(by_heart=True), sides())
    )
    assert fresh.failed == ()
    assert fresh.intervals[0].low < 0.5 < fresh.intervals[0].high
    heart = membership(contribution(by_heart=True), sides(), claim=CLAIM, access=PUBLIC)
    assert heart.intervals[0].low > 0.8
    assert heart.intervals[1].low > 0.5


def test_a_control_that_leaks_nothing_fails() -> None:
    found = membership(contribution(), sides(), claim=CLAIM, access=PUBLIC, leaky=(contribution(), sides()))
    assert [control.name for control in found.failed] == ["a model that leaks"]
    assert found.as_text().startswith("CONTROLS FAILED")


def test_a_bound_follows_from_fair_coins_only() -> None:
    heart = contribution(by_heart=True)
    unfair, fair = (membership(heart, sides(fair=each), claim=CLAIM, access=PUBLIC) for each in (False, True))
    assert unfair.bounds == ()
    assert not unfair.refuted
    assert "no bound on epsilon follows" in unfair.as_text()
    assert fair.refuted
    assert fair.lower > 2


def test_nothing_is_read_without_a_declaration() -> None:
    class Unread:
        count = 10

        def take(self, indices):
            raise AssertionError("it was read")

    with pytest.raises(PrivacyError, match="access=PUBLIC"):
        membership(contribution(), Sides(Unread(), Unread()), claim=CLAIM)
    with pytest.raises(PrivacyError, match="STAYS_PRIVATE"):
        membership(contribution(), sides(), claim=CLAIM, access="public")


def test_what_must_stay_private_says_so() -> None:
    found = membership(contribution(), sides(), claim=CLAIM, access=STAYS_PRIVATE)
    assert "The examples are private: keep this file." in found.as_text()
    assert "private: keep this file" in found.as_json()


def test_too_few_examples_or_none_that_can_be_read() -> None:
    few = TensorUnits((torch.randn(3, 20), torch.zeros(3, dtype=torch.long)))
    with pytest.raises(DataError, match="at least 4 examples on each side"):
        losses(contribution(), few)
    broken = TensorUnits((torch.full((5, 20), float("nan")), torch.zeros(5, dtype=torch.long)))
    with pytest.raises(DataError, match="5 of them without one"):
        losses(contribution(), broken)
