"""Noise on the sum is the same wherever it is added: at the server, or in shares, whoever is missing."""

from __future__ import annotations

import pytest
import torch
from steps import phase, plan

from saltflat import train
from saltflat.core.step import Safeguards
from saltflat.errors import SettingError
from saltflat.federated import InShares, share_of, top_up
from saltflat.privacy.noise import SecureNoise, SeededNoise
from saltflat.tree import Tree, add, mul

LIKE = {"w": torch.zeros(1000, 999), "b": torch.zeros(1000)}  # 1e6 coordinates


def variance(noise: Tree) -> float:
    return float(torch.cat([leaf.flatten().double() for leaf in noise.values()]).square().mean())


def is_right(noise: Tree, expected: float = 1.0) -> bool:
    """Within 0.71 %: five standard deviations of the variance of 1e6 Gaussians."""
    return abs(variance(noise) / expected - 1) < 0.0071


@pytest.mark.parametrize("source", [SecureNoise(), InShares(1), InShares(7)], ids=["server", "one", "seven"])
def test_the_noise_on_the_sum(source: SecureNoise | InShares) -> None:
    noise = source.normal(LIKE)
    assert is_right(noise)
    assert not is_right(mul(noise, 0.99))


@pytest.mark.parametrize("arrived", [0, 1, 5, 9, 10])
def test_the_server_adds_what_is_missing(arrived: int) -> None:
    total = top_up(LIKE, 10, arrived, SecureNoise())
    for _ in range(arrived):
        total = add(total, share_of(LIKE, 10, SecureNoise()))
    assert is_right(total)


def test_more_shares_than_planned_are_more_noise_and_never_less() -> None:
    assert variance(top_up(LIKE, 4, 6, SecureNoise())) == 0
    total = share_of(LIKE, 4, SecureNoise())
    for _ in range(5):
        total = add(total, share_of(LIKE, 4, SecureNoise()))
    assert is_right(total, 6 / 4)


def test_one_share_by_itself_is_a_part_only() -> None:
    assert is_right(share_of(LIKE, 10, SecureNoise()), 0.1)


def test_shares_are_independent() -> None:
    one, other = (share_of(LIKE, 2, SecureNoise())["w"].flatten() for _ in range(2))
    assert abs(float(torch.dot(one, other)) / len(one) / 0.5) < 5.5 / len(one) ** 0.5


def test_seeded_shares_are_not_private() -> None:
    assert InShares(3).private
    assert not InShares(3, SeededNoise(0)).private
    assert not Safeguards(noise=InShares(3, SeededNoise(0))).secret


def test_wrong_numbers_are_named() -> None:
    for shares in (0, -1, 2.5, True):
        with pytest.raises(SettingError, match="shares"):
            InShares(shares)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="arrived"):
        top_up(LIKE, 3, -1, SecureNoise())


def test_a_round_with_noise_in_shares_runs() -> None:
    from test_contribution import clients, federated  # the clients of the other page

    params = train(
        plan(phase(steps=2, clip_norm=0.2), size=10),
        federated(),
        clients(),
        safeguards=Safeguards(noise=InShares(5)),
    )
    assert all(torch.isfinite(leaf).all() for leaf in params.values())
