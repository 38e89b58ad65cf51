"""The comparison on Reddit comments: one epsilon for both methods, and the page prints the finished runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import reddit
import results

from saltflat.errors import SaltflatError
from saltflat.methods import DPLIS, DPSGD

KEPT, CHOSEN = results.read(reddit.KEPT), results.read(reddit.CHOSEN)
PAGE = Path(reddit.__file__).parent / "README.md"


def test_both_methods_cost_one_epsilon() -> None:
    plans = [reddit.plan_of(reddit.Settings(method=method), 43_410) for method in reddit.METHODS]
    assert [type(plan.phases[0].method) for plan in plans] == [DPSGD, DPLIS]
    costs = {plan.epsilon(reddit.DELTA) for plan in plans}
    assert len(costs) == 1
    assert 2.9 < costs.pop() <= 3.0


def test_the_page_has_the_finished_runs() -> None:
    text = PAGE.read_text()
    printed = text.split("<!-- reddit -->\n")[1].split("\n<!-- end of reddit -->")[0]
    assert printed == reddit.table(KEPT)
    assert [reddit.kept(each, KEPT) is not None for each in reddit.comparison([0, 1], CHOSEN)] == [True] * 8


def test_settings_come_from_other_text() -> None:
    assert all(one["settings"]["brown"] for one in CHOSEN)
    assert not any(one["settings"]["brown"] for one in KEPT)
    for start in reddit.STARTS:
        tried = {
            one["settings"]["lr"]: one["perplexity"] for one in CHOSEN if one["settings"]["start"] == start
        }
        assert reddit.chosen(start, CHOSEN) == min(tried, key=tried.get)  # type: ignore[arg-type]


def test_a_search_that_is_not_over() -> None:
    with pytest.raises(SaltflatError, match="--choose first"):
        list(reddit.comparison([0], CHOSEN[:2]))


def test_runs_are_known_by_their_settings() -> None:
    own = reddit.Settings(**KEPT[0]["settings"])
    assert reddit.kept(own, KEPT) == KEPT[0]
    assert reddit.kept(replace(own, seed=99), KEPT) is None
