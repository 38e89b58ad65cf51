"""B5: several processes of torch.distributed do what one does: one sample, one noise, one charge for each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
from reference import flat
from scipy.stats import kstest
from test_every_method import TABLE

from saltflat.core.group import ALONE, Group, _kinds, _packed, _unpacked
from saltflat.errors import GroupError


def test_shares_are_disjoint_and_as_large_as_each_other() -> None:
    drawn = np.arange(40, 51)
    shares = [Group(rank, 4).mine(drawn) for rank in range(4)]
    assert sorted(np.concatenate(shares)) == list(drawn)
    assert {len(share) for share in shares} == {2, 3}
    assert Group.here() == ALONE


@pytest.mark.slow
def test_two_processes_are_one_in_every_row_of_the_table(tmp_path: Path) -> None:
    first, second = ranks.started(ranks.every_row, tmp_path)
    for name in TABLE:
        assert torch.equal(flat(first[name]), flat(second[name])), name
        torch.testing.assert_close(flat(first[name]), flat(ranks.row(name)), rtol=1e-6, atol=1e-9, msg=name)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks.started(ranks.all_at_once, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("job", [ranks.one_unit, ranks.own_loop], ids=["an empty process", "own loop"])
def test_two_processes_are_one(job: ranks.Job, ended: list[dict[str, Any]], tmp_path: Path) -> None:
    """With noise that is the same each time it is drawn: drawn twice, or not at all, it would show."""
    first, second = (flat(each[job.__name__]) for each in ended)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, flat(job(0, tmp_path)), rtol=1e-6, atol=1e-9)


def test_a_refusal_of_the_first_is_everybodys(ended: list[dict[str, Any]]) -> None:
    assert [each["refused"] for each in ended] == ["that would be too much"] * 2


def test_a_run_that_was_stopped_goes_on_in_all(ended: list[dict[str, Any]]) -> None:
    (early, late), (same, other) = (each["resumed"] for each in ended)
    assert torch.equal(flat(early), flat(same))
    assert torch.equal(flat(late), flat(other))
    assert not torch.equal(flat(early), flat(late))


def test_secret_noise_is_there_once(ended: list[dict[str, Any]]) -> None:
    """In one process it is N(1, 3^2); in two the sum is 2, and the noise must not be one of two, nor none."""
    first, second = (each["secret_noise"] for each in ended)
    assert torch.equal(flat(first), flat(second))
    drawn = (first["w"].double().numpy() - 2) / 3.0
    assert abs(drawn.std() - 1) < 0.0071  # 4.5 standard errors
    assert kstest(drawn, "norm").pvalue > 1e-6


def test_all_return_what_the_first_saw(ended: list[dict[str, Any]]) -> None:
    (stopped, steps, spent, text, params), other = (each["stopped_fit"] for each in ended)
    assert (stopped, steps) == ("watch", 2)
    assert "stopped by watch after step 2" in text
    assert (stopped, steps, spent, text) == other[:4]
    assert torch.equal(flat(params), flat(other[4]))


def test_an_error_that_cannot_travel_is_told_in_words(ended: list[dict[str, Any]]) -> None:
    (kind, words), (other, same) = (each["unreadable"] for each in ended)
    assert (kind, other) == ("Taken", "SaltflatError")
    assert words == same
    assert "holds a run already" in words


def test_what_fails_between_processes_is_one_kind_of_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*given: Any, **more: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    for name in ("reduce", "all_reduce", "broadcast_object_list"):
        monkeypatch.setattr(torch.distributed, name, gone)
    alone = Group(1, 2)
    for ask in (
        lambda: alone.released({"w": torch.ones(2)}, lambda total: total),
        lambda: alone.most(1),
        lambda: alone.told(int),
    ):
        with pytest.raises(GroupError, match="another process of this run ended"):
            ask()


def test_leaves_travel_in_one_order_whoever_has_them() -> None:
    """A process without units may have its leaves in another order: what is packed must not depend on it."""
    one = {"b": torch.ones(2), "a": torch.zeros(3, 1), "c": torch.ones(1, dtype=torch.float64)}
    other = {name: one[name] for name in ("c", "a", "b")}
    pieces = _packed(one, one)
    assert [piece.tolist() for piece in pieces] == [piece.tolist() for piece in _packed(other, other)]
    back = _unpacked(pieces, _kinds(one), other)
    assert list(back) == ["c", "a", "b"]
    assert all(torch.equal(back[name], one[name]) for name in one)
