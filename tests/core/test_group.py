"""B5: several processes of torch.distributed do what one does: one sample, one noise, one charge for each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
from reference import flat
from test_every_method import TABLE

from saltflat.core.group import ALONE, Group


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
