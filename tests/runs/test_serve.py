"""A served run in its folder: what it leaves there, what it says of trust, and whose adjacency it charges."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "federated"))
from posts import FakePost, data, fixed, fleet, honest, nodes, remote
from reference import trained
from steps import network, phase, plan

from saltflat.core.draw import WithoutReplacement
from saltflat.errors import SettingError
from saltflat.optimizers import SGD
from saltflat.privacy import read
from saltflat.runs.layout import Folder
from saltflat.runs.serve import TRUST, serve

NOISY = phase(steps=3, noise_multiplier=3.0, clip_norm=0.2, optimizer=SGD(lr=1.0))


def test_a_finished_run_says_so_again_and_asks_nobody(tmp_path: Path) -> None:
    post = FakePost(nodes(data(4), [honest] * 4))
    first = serve(plan(NOISY, size=4), remote(fleet(post, 4)), tmp_path / "run", delta=0.02)
    place = Folder(tmp_path / "run")
    assert all(part.exists() for part in (place.ledger, place.statement, place.statement_text, place.model))
    assert json.loads(place.statement.read_text())["not_covered"][-len(TRUST) :] == list(TRUST)
    assert first.epsilon == pytest.approx(plan(NOISY, size=4).epsilon(0.02))
    asked = len(post.asked)
    assert serve(plan(NOISY, size=4), remote(fleet(post, 4)), tmp_path / "run", delta=0.02) == first
    assert len(post.asked) == asked
    assert sum(read(place.ledger).steps().values()) == 3


def test_a_plan_for_another_number_of_clients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="the plan is for 12 clients, and the fleet has places for 4"):
        serve(plan(NOISY), remote(fleet(FakePost([]), 4)), tmp_path / "run", delta=0.02)
    assert not (tmp_path / "run").exists()


def test_draws_of_a_fixed_size_are_charged_and_stated_as_such(tmp_path: Path) -> None:
    post = FakePost(fixed(k, {n: p * 0.01 for n, p in trained(network()).items()}) for k in range(4))
    exact = replace(plan(NOISY, rate=0.5, size=4), draw=WithoutReplacement())
    said = serve(exact, remote(fleet(post, 4)), tmp_path / "run", delta=0.02)
    assert "replace" in said.adjacency
    assert read(Folder(tmp_path / "run").ledger).unit == ("client", exact.adjacency)
    assert len(post.asked) == 2 * 3
