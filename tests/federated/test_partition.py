"""How rows become clients: exact properties of every way, and nothing that one client owes to another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saltflat.errors import DataError, SettingError
from saltflat.federated.partition import (
    IID,
    Dirichlet,
    DirichletEqual,
    Partition,
    by_column,
    dirichlet,
    dirichlet_equal,
    iid,
)

WAYS = [IID(), Dirichlet(0.3), Dirichlet(50.0), DirichletEqual(0.3), DirichletEqual(50.0)]
each_way = pytest.mark.parametrize("way", WAYS, ids=repr)

LABELS = st.lists(st.integers(0, 6), max_size=200)


@each_way
@given(labels=LABELS, clients=st.integers(1, 30), seed=st.integers(0, 2**40))
def test_every_example_is_in_exactly_one_client(way: Any, labels: list[int], clients: int, seed: int) -> None:
    found = way.divided(np.array(labels, dtype=np.int64), clients, seed)
    assert len(found.parts) == clients
    assert found.numbers == tuple(range(clients))
    assert sorted(np.concatenate(found.parts).tolist()) == list(range(len(labels)))
    found.check(len(labels))


@each_way
def test_the_seed_decides_and_nothing_else(way: Any) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 500)
    same = [way.divided(labels, 20, 7).arrays() for _ in range(2)]
    np.random.seed(3)  # noqa: NPY002 (somebody else's stream)
    assert all(np.array_equal(same[0][name], same[1][name]) for name in same[0])
    other = way.divided(labels, 20, 8).arrays()
    assert not np.array_equal(same[0]["rows"], other["rows"])


@pytest.mark.parametrize("way", [IID(), DirichletEqual(0.3), DirichletEqual(0.01)], ids=repr)
def test_sizes_differ_by_at_most_one(way: Any) -> None:
    labels = np.random.default_rng(1).integers(0, 10, 1003)
    sizes = [len(part) for part in way.divided(labels, 20, 0).parts]
    assert sorted(sizes) == [50] * 17 + [51] * 3


def test_a_dirichlet_split_is_ragged() -> None:
    labels = np.random.default_rng(1).integers(0, 10, 1003)
    sizes = [len(part) for part in dirichlet(labels, 20, alpha=0.3, seed=0).parts]
    assert max(sizes) > 2 * min(sizes)


def mixes(labels: np.ndarray, found: Partition) -> np.ndarray:
    """(clients, classes): the share of each class in each client that has anything."""
    counts = np.array([np.bincount(labels[part], minlength=10) for part in found.parts if len(part)])
    return counts / counts.sum(1, keepdims=True)


@pytest.mark.parametrize("way", [Dirichlet, DirichletEqual])
def test_alpha_says_how_unlike_the_clients_are(way: Any) -> None:
    labels = np.repeat(np.arange(10), 600)
    spread = [
        float(mixes(labels, way(alpha).divided(labels, 60, 1)).std(0).mean()) for alpha in (0.1, 0.6, 1e6)
    ]
    assert spread[0] > 1.5 * spread[1] > 1.5 * spread[2]
    assert spread[2] < 0.05


def test_shares_of_a_class_have_the_variance_of_a_dirichlet() -> None:
    """Var p_i = (1/M)(1 - 1/M) / (M alpha + 1): 200 classes of 1000 examples, cut into 5 shares each."""
    labels = np.repeat(np.arange(200), 1000)
    found = dirichlet(labels, 5, alpha=0.6, seed=2)
    shares = np.array([np.bincount(labels[part], minlength=200) for part in found.parts]) / 1000
    expected = 0.2 * 0.8 / (5 * 0.6 + 1)
    assert np.allclose(shares.sum(0), 1)
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_the_mix_of_a_client_of_equal_size_has_the_variance_of_a_dirichlet() -> None:
    """Var p_k = (1/K)(1 - 1/K) / (K alpha + 1), while no class is short: half the examples of each stay unused."""
    labels = np.repeat(np.arange(4), 20_000)
    found = dirichlet_equal(labels, 400, alpha=0.6, seed=2)
    first = np.array([np.bincount(labels[part], minlength=4) for part in found.parts[:400]]) / 200
    assert first.var() == pytest.approx(0.25 * 0.75 / (4 * 0.6 + 1), rel=0.15)


def test_iid_clients_are_alike() -> None:
    labels = np.repeat(np.arange(10), 600)
    assert mixes(labels, iid(6000, 10, seed=0)) == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("way", [dirichlet, dirichlet_equal])
def test_the_smallest_alpha_still_gives_everyone_away(way: Any) -> None:
    labels = np.repeat(np.arange(10), 30)
    way(labels, 40, alpha=1e-3, seed=0).check(300)


# by a column


def test_a_column_makes_a_client_of_each_entry() -> None:
    found = by_column(["b", "a", "b", "c", "a"])
    assert [part.tolist() for part in found.parts] == [[0, 2], [1, 4], [3]]
    found.check(5)
    assert by_column([3, 3, 5]).parts[0].tolist() == [0, 1]
    assert by_column([]).parts == ()


def test_a_client_of_a_column_keeps_its_number_when_another_leaves() -> None:
    whole, without = by_column(["b", "a", "b", "c"]), by_column(["a", "c"])
    names = dict(zip("bac", whole.numbers, strict=True))
    assert without.numbers == (names["a"], names["c"])
    assert len(set(whole.numbers)) == 3
    assert all(0 <= number < 2**63 for number in whole.numbers)


def test_two_entries_that_cannot_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saltflat.federated.partition._number_of", lambda user: 7)
    with pytest.raises(DataError, match="cannot be told apart") as caught:
        by_column(["zoe", "bob"])
    assert "zoe" not in str(caught.value)


# kept and read back


@each_way
def test_arrays_say_the_same(way: Any) -> None:
    found = way.divided(np.random.default_rng(0).integers(0, 3, 100), 7, 0)
    back = Partition.from_arrays(found.arrays())
    assert back.numbers == found.numbers
    assert all(np.array_equal(a, b) for a, b in zip(back.parts, found.parts, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": np.zeros(3)},
        {"rows": None},
        {"sizes": np.array([5, -1])},
        {"sizes": np.array([1])},
        {"sizes": np.array([[1, 2]])},
        {"numbers": np.array([1])},
    ],
)
def test_arrays_that_say_something_else_are_refused(change: dict[str, Any]) -> None:
    good = Partition((np.array([0, 2]), np.array([1])), (0, 1)).arrays()
    with pytest.raises(DataError):
        Partition.from_arrays({**good, **change})


@pytest.mark.parametrize("count", [2, 4])
def test_clients_of_other_data_are_noticed(count: int) -> None:
    with pytest.raises(DataError, match="other data"):
        iid(3, 2, seed=0).check(count)
    twice = Partition((np.array([0, 1]), np.array([1])), (0, 1))
    with pytest.raises(DataError, match="exactly once"):
        twice.check(3)


# wrong input


@pytest.mark.parametrize("alpha", [0, -1.0, math.nan, math.inf, 1e-9, 1e9, "0.6", None, True])
def test_alpha_is_a_number_in_range(alpha: Any) -> None:
    direct = lambda alpha: dirichlet([0], 1, alpha=alpha, seed=0)
    for make in (Dirichlet, DirichletEqual, direct):
        with pytest.raises(SettingError, match="alpha"):
            make(alpha)


@pytest.mark.parametrize(
    ("clients", "seed"), [(0, 0), (1.5, 0), (None, 0), (True, 0), (3, -1), (3, None), (3, 0.5)]
)
def test_clients_and_seed_are_whole_numbers(clients: Any, seed: Any) -> None:
    for way in WAYS:
        with pytest.raises(SettingError, match="whole number"):
            way.divided(np.array([0, 1]), clients, seed)


def test_targets_that_are_numbers_are_divided_by_iid_only() -> None:
    for way in (Dirichlet(), DirichletEqual()):
        with pytest.raises(DataError, match="divide by iid"):
            way.divided(np.array([0.5, 1.5]), 2, 0)
    IID().divided(np.array([0.5, 1.5]), 2, 0).check(2)
