"""A served run in its folder: what it leaves there, what it says of trust, and whose adjacency it charges."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "federated"))
from posts import FakePost, data, fixed, fleet, honest, nodes, remote
from reference import trained
from steps import network, phase, plan

import saltflat.federated.flower
from saltflat import Plan, calibrate
from saltflat.core.draw import WithoutReplacement
from saltflat.core.plan import with_spare
from saltflat.errors import SettingError
from saltflat.optimizers import SGD
from saltflat.privacy import read
from saltflat.privacy.record.statement import Statement
from saltflat.runs.begin import held
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


DELTA = 0.02


class Killed(BaseException):
    """Ends a server in the middle of a round, where nothing catches it."""


def served(the_plan: Plan, folder: Path, *, kills: int = 0, **more) -> Statement:
    """A run of four clients whose server dies at so many broadcasts, and is started again each time."""
    left = [kills]

    def seen(question) -> None:
        if left[0]:
            left[0] -= 1
            raise Killed

    while True:
        post = FakePost(nodes(data(4), [honest] * 4), seen)
        try:
            return serve(the_plan, remote(fleet(post, 4)), folder, delta=DELTA, **more)
        except Killed:
            continue


def rounds_taken(folder: Path) -> int:
    return sum(read(Folder(folder).ledger).steps().values())


class TestKills:
    """Rate 1: every round has a broadcast, so that every kill hits one."""

    def planned(self, spare: int) -> Plan:
        return calibrate(plan(NOISY, rate=1.0, size=4), epsilon=8.0, delta=DELTA, spare=spare)

    def test_three_kills_fit_into_the_declared_epsilon(self, tmp_path: Path) -> None:
        said = served(self.planned(3), tmp_path / "run", kills=3, epsilon=8.0)
        assert rounds_taken(tmp_path / "run") == 3 + 3
        assert 0.99 * 8 <= said.epsilon <= 8.0
        assert not any("planned rounds" in each for each in said.warnings)

    @pytest.mark.parametrize("spare", [0, 1])
    def test_more_kills_than_spare_rounds_end_the_run_with_what_it_has(
        self, spare: int, tmp_path: Path
    ) -> None:
        said = served(self.planned(spare), tmp_path / "run", kills=2, epsilon=8.0)
        place = Folder(tmp_path / "run")
        assert said.epsilon <= 8.0
        assert rounds_taken(place.path) == 3 + spare
        (early,) = (each for each in said.warnings if "planned rounds" in each)
        assert f"ended after {1 + spare} of 3 planned rounds" in early
        assert place.model.exists()
        assert early in place.statement_text.read_text()
        assert served(self.planned(spare), place.path, epsilon=8.0) == said
        assert rounds_taken(place.path) == 3 + spare

    def test_without_an_epsilon_the_plan_is_the_most(self, tmp_path: Path) -> None:
        the_plan = plan(NOISY, rate=1.0, size=4)
        said = served(the_plan, tmp_path / "run", kills=2)
        assert said.epsilon <= the_plan.epsilon(DELTA)
        assert rounds_taken(tmp_path / "run") == 3

    def test_of_several_phases_only_what_was_taken_is_stated(self, tmp_path: Path) -> None:
        """The first phase is dearer: what ran again there is paid for by rounds of the second, which are left out."""
        both = (replace(NOISY, noise_multiplier=1.0), replace(NOISY, steps=6))
        the_plan = calibrate(Plan(phases=both, rate=1.0, size=4), epsilon=8.0, delta=DELTA)
        said = served(the_plan, tmp_path / "run", kills=1, epsilon=8.0)
        assert said.epsilon <= 8.0
        assert any("of 9 planned rounds" in each for each in said.warnings)

    def test_results_may_choose_the_rounds(self, tmp_path: Path) -> None:
        first = replace(NOISY, until=lambda state: False)
        the_plan = Plan(phases=(first, replace(NOISY, noise_multiplier=4.0)), rate=1.0, size=4)
        said = served(the_plan, tmp_path / "run")
        assert rounds_taken(tmp_path / "run") == 6
        assert said.epsilon <= the_plan.epsilon(DELTA)
        assert read(Folder(tmp_path / "run").ledger).budget.order is not None

    def test_another_epsilon_is_on_record_and_in_the_statement(self, tmp_path: Path) -> None:
        served(self.planned(0), tmp_path / "run", kills=1, epsilon=8.0)
        said = served(self.planned(0), tmp_path / "run", epsilon=12.0)
        assert 8 < said.epsilon <= 12
        assert any("changed while it went on: epsilon 8 at delta 0.02, then 12" in w for w in said.warnings)

    def test_a_plan_above_its_epsilon_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        quiet = plan(replace(NOISY, noise_multiplier=0.0), rate=1.0, size=4)
        for the_plan in (with_spare(self.planned(0), 1), quiet):
            with pytest.raises(SettingError, match="8 is the most that it may cost"):
                served(the_plan, tmp_path / "run", epsilon=8.0)
        assert not (tmp_path / "run").exists()

    def test_a_folder_in_use_says_what_another_one_costs(self, tmp_path: Path) -> None:
        served(self.planned(0), tmp_path / "run", epsilon=8.0)
        with held(Folder(tmp_path / "run")), pytest.raises(SettingError, match="cost adds up") as caught:
            served(self.planned(0), tmp_path / "run", epsilon=8.0)
        assert "--out" not in str(caught.value)


def test_spare_steps_are_a_whole_number() -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(SettingError, match="spare"):
            calibrate(plan(NOISY), epsilon=8.0, delta=DELTA, spare=wrong)


CHILD = """
import runpy, sys, time
runpy.run_path(sys.argv[1])["end_with_parent"](0.02)
print("on", flush=True)
time.sleep(60)
"""
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]).wait()"


def test_a_server_app_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Flower's grid waits for a killed SuperLink without end, and the folder of the run would stay taken."""
    watch = Path(saltflat.federated.flower.__file__).with_name(
        "parent.py"
    )  # alone: torch takes long to import
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, watch], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"on\n"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    begun = time.monotonic()
    assert parent.stdout.read() == b""  # until the child, which has it open too, is gone
    assert time.monotonic() - begun < 20
