"""The papers' rows: every arm is a recipe, published numbers stand in it, killed runs go on, the page is the files'."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import results
from papers import page, run
from papers.rows import Arm, Paper, Published, Row

from saltflat.core.plan import Phase
from saltflat.errors import Interrupted
from saltflat.methods import DPLIS, DPSGD, SAT
from saltflat.privacy.accounting import bounds
from saltflat.recipes import about, plan_of, shipped
from saltflat.recipes.build import draft_of, size_of
from saltflat.recipes.documents import Document
from saltflat.recipes.recipe import from_document

ROWS = [row for paper in run.PAPERS for row in paper.rows]
ARMS = [(row, arm) for row in ROWS for arm in row.arms]


def named(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def phases(row: Row, arm: str) -> tuple[Phase, ...]:
    """What an arm runs, before its noise is calibrated."""
    recipe = row.arm(arm).made(0)
    return draft_of(recipe, size_of(recipe)).phases


class TestRows:
    @pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
    def test_every_arm_is_a_recipe_with_its_published_number(self, row: Row) -> None:
        first = row.arms[0].made(2)
        for arm in row.arms:
            recipe = arm.made(2)
            assert (recipe.delta, recipe.seed, recipe.spare) == (1e-5, 2, 0)
            assert (recipe.data, recipe.model, recipe.rate) == (first.data, first.model, first.rate)
            methods = [stage.method for stage in recipe.phase]
            assert [each.seed for each in methods if isinstance(each, DPLIS)] in ([], [2])
            if arm.published is not None:
                assert f"{arm.published.accuracy:.2f}" in about(arm.recipe)
                assert arm.published.spread is None or f"+- {arm.published.spread:.2f}" in about(arm.recipe)

    @pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
    def test_names_belong_to_arms(self, row: Row) -> None:
        names = [arm.name for arm in row.arms]
        assert len(set(names)) == len(names)
        assert {name for _, *pair in row.parts for name in pair} <= set(names)
        assert row.arm(row.baseline or names[0]).published is not None

    def test_one_seed_of_all_arms_comes_before_the_next(self) -> None:
        seeds = [wanted.seed for wanted in run.runs() if wanted.row.name == "cifar10-eps1"]
        assert seeds == sorted(seeds)

    @pytest.mark.parametrize(
        ("row", "steps", "portion", "radius", "clip_norm"),
        [
            ("fashion-mnist-eps1", (450, 750), 0.8, 0.05, 0.1),
            ("fashion-mnist-eps3", (600, 600), 0.9, 0.03, 0.2),
            ("cifar10-eps1", (250, 500), 0.8, 0.3, 0.1),
            ("cifar10-eps2", (250, 500), 0.9, 0.05, 0.2),
            ("cifar10-eps3", (375, 375), 0.9, 0.05, 0.2),
        ],
    )
    def test_sai_has_the_paper_s_settings(
        self, row: str, steps: tuple[int, int], portion: float, radius: float, clip_norm: float
    ) -> None:
        recipe, both = named(row).arm("sai").made(0), phases(named(row), "sai")
        assert tuple(phase.steps for phase in both) == steps
        assert recipe.phase[0].portion == portion
        assert recipe.budget_split == "sequential"
        assert both[0].method == SAT(radius)
        assert [phase.clip_norm for phase in both] == [clip_norm, 0.1]
        assert [phase.optimizer.lr for phase in both] == [2.0, 0.1]

    @pytest.mark.parametrize("row", [row for row in ROWS if row.name.startswith(("fashion", "cifar10"))])
    def test_a_control_differs_in_what_it_says(self, row: Row) -> None:
        sai, no_climb = (row.arm(name).made(0) for name in ("sai", "sai-no-climb"))
        assert sai.but({"phase.0.method": "DPSGD"}) == no_climb
        drop, climbs = phases(row, "dp-sgd-drop"), phases(row, "sat-drop")
        assert [phase.method for phase in drop] == [DPSGD(), DPSGD()]
        assert isinstance(climbs[0].method, SAT)
        assert climbs[0].method == sai.phase[0].method
        assert [phase.steps for phase in drop] == [phase.steps for phase in phases(row, "sai")]
        assert all(stage.portion is None for stage in row.arm("dp-sgd-drop").made(0).phase)
        assert sai.but({"budget_split": "joint_ratio"}) == row.arm("sai-joint").made(0)

    def test_calibration_by_rdp_is_the_papers_noise(self) -> None:
        """4.557 at epsilon 1, as the DP-SAT paper's accountant gives it, and 4.2 by privacy loss distributions."""
        paper = shipped("dp-sgd-cifar10-cnn-tanh-eps1")
        plan = plan_of(paper, size_of(paper))
        assert plan.phases[0].noise_multiplier == pytest.approx(4.557, rel=2e-3)
        assert 0.99 <= bounds.rdp_epsilon(plan.event(), 1e-5) <= 1.0
        assert plan.epsilon(1e-5) < 0.93


TINY = """
version = 2
data = "digits"
model = "digits_cnn"
batch_size = 500
spare = 0

[[phase]]
steps = 6
noise_multiplier = 4.0
method = "DPSGD"
clip_norm = 1.0
optimizer = {SGD = {lr = 1.0}}
"""


@pytest.fixture
def first(tmp_path: Path) -> run.Wanted:
    """A run of two epochs of three steps."""
    (tmp_path / "tiny.toml").write_text(TINY)
    arm = Arm("one", "One", str(tmp_path / "tiny.toml"), {}, Published(50.0))
    row = Row(name="tiny", title="Digits", source="nowhere", arms=(arm,), minutes=0.01)
    return run.Wanted(Paper("fake", "Nobody, nowhere", (row,)), row, arm, 0)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens at each evaluation: an exception, a signal, or nothing."""
    planned: list[Any] = []
    real = run.accuracy

    def accuracy(*given: Any) -> float:
        what = planned.pop(0) if planned else None
        if isinstance(what, BaseException):
            raise what
        if what is not None:
            os.kill(os.getpid(), what)
        return real(*given)

    monkeypatch.setattr(run, "accuracy", accuracy)
    return planned


class TestRunning:
    def test_a_run_is_recorded_whole(self, first: run.Wanted, tmp_path: Path) -> None:
        out = tmp_path / "results.jsonl"
        run.series([first], tmp_path / "work", out)
        run.series([first], tmp_path / "work", out)  # it is there already
        (found,) = results.read(out)
        assert [step for step, _ in found["curve"]] == [3, 6]
        assert found["last"] == found["curve"][-1][1] <= found["best"]
        assert found["epsilon_pld"] == plan_of(first.arm.made(0), 1437).epsilon(1e-5) < found["epsilon_rdp"]
        assert (found["steps"], found["steps_again"], found["clip_norms"]) == ([6], 0, ["1.0"])
        assert min(found["seconds"], found["cpu_seconds"]) > 0
        assert len(list((tmp_path / "work/tiny/one/seed-0/weights").iterdir())) == 2

    def test_a_killed_run_goes_on_and_is_charged_for_what_may_have_run(
        self, first: run.Wanted, tmp_path: Path, stops: list[Any]
    ) -> None:
        stops += [None, RuntimeError("killed")]
        with pytest.raises(RuntimeError, match="killed"):
            run.run(first, tmp_path)
        kept = json.loads((tmp_path / "tiny/one/seed-0/progress.json").read_text())
        assert kept["open"]
        assert list(kept["curve"]) == ["3"]
        found = run.run(first, tmp_path)
        assert found["curve"][0] == [3, kept["curve"]["3"]]
        assert found["curve"][-1][0] == 6
        assert found["steps_again"] == 3
        longer = plan_of(first.arm.made(0).but({"phase.0.steps": 9}), 1437)
        assert found["epsilon_pld"] == pytest.approx(longer.epsilon(1e-5), rel=1e-6)

    def test_a_run_that_is_stopped_in_good_order_takes_no_step_twice(
        self, first: run.Wanted, tmp_path: Path, stops: list[Any]
    ) -> None:
        stops.append(signal.SIGTERM)
        with pytest.raises(Interrupted):
            run.run(first, tmp_path)
        found = run.run(first, tmp_path)
        assert found["steps_again"] == 0
        assert [step for step, _ in found["curve"]] == [3, 6]

    def test_two_processes_do_not_take_one_run(self, first: run.Wanted, tmp_path: Path) -> None:
        with run.claimed(first, tmp_path) as mine, run.claimed(first, tmp_path) as other:
            assert (mine, other) == (True, False)


def done(row: Row, arm: str, seed: int, last: float) -> results.Result:
    """A finished run, as far as the page looks at it."""
    own = row.arm(arm)
    return {
        "settings": {"recipe": own.recipe, "changes": dict(own.changes), "seed": seed},
        **{"last": last / 100, "best": last / 100 + 0.01, "epsilon_pld": 0.9, "epsilon_rdp": 1.0},
        **{"noise_multipliers": [4.5], "cpu_seconds": 3600.0},
    }


class TestPage:
    def test_nothing_is_said_of_what_was_not_run(self) -> None:
        text = page.page(run.PAPERS, [])
        assert "reproduced:" not in text
        assert text.count("not run yet") > len(ARMS)
        assert "no run has finished yet" in page.readme(named("cifar10-eps1"), [])

    def test_a_row_with_three_seeds(self) -> None:
        row = named("cifar10-eps1")
        found = [
            done(row, arm, seed, base + seed / 10)
            for arm, base in (("dp-sgd-rdp", 45.0), ("sai", 51.5), ("sai-no-climb", 51.0))
            for seed in (0, 1, 2)
        ]
        found[-1]["last"] += 0.002  # so that the climb's part differs from seed to seed
        text = page.page(run.PAPERS, found)
        assert (
            "| SAI as in the paper | 51.79 ± 0.66 | 51.60 ± 0.06 | 52.60 ± 0.06 | 0.90 / 1.00 | 4.50 | 1.00 | 3 of 3 |"
            in text
        )
        assert "the climb, with both +0.43 ± 0.07 (3 seeds)" in text
        assert "not decided: 3 of 12 arms have three seeds" in text
        assert "| SAI with radius 0 | - | 51.17" in page.readme(row, found)

    @pytest.mark.parametrize(
        ("gain", "published", "said"),
        [
            (None, 1.0, "not run yet"),
            (page.Figure(6.0, None, 1), 6.0, "not decided"),
            (page.Figure(6.0, 0.1, 2), 6.0, "not decided"),
            (page.Figure(0.5, 0.3, 3), 0.5, "no difference of two standard errors"),
            (page.Figure(6.0, 0.3, 3), 6.55, "reproduced"),
            (page.Figure(6.0, 0.2, 3), 6.55, "a gain shows, and not the published difference"),
            (page.Figure(-6.0, 0.2, 3), 6.55, "it loses, and not the published difference"),
            (page.Figure(-1.0, 0.2, 3), -0.94, "reproduced"),
        ],
    )
    def test_a_verdict(self, gain: page.Figure | None, published: float, said: str) -> None:
        assert page.verdict(gain, published, same_network=True).startswith(said)

    def test_another_network_is_never_reproduced(self) -> None:
        assert page.verdict(page.Figure(6.0, 0.3, 3), 6.0, same_network=False).startswith("a gain shows:")

    def test_a_run_counts_in_every_row_that_asks_for_it(self) -> None:
        one = done(named("cifar10-eps3"), "dp-sgd-rdp", 0, 60.0)
        drift = named("drift-cifar10-eps3")
        assert page.finder([one])(drift, drift.arms[0], 0) is one

    def test_the_list_has_published_numbers_and_times(self) -> None:
        row = named("cifar10-eps1")
        text = page.listed([(row, row.arms, row.seeds)], [done(row, "sai", 0, 51.0)])
        (line,) = [line for line in text.splitlines() if line.startswith("  sai ")]
        assert "51.79 ± 0.66" in line
        assert "2 left, about 60 minutes each" in line

    def test_page_and_readme_are_what_the_files_say(self) -> None:
        found = results.read(run.KEPT)
        assert run.PAGE.read_text(encoding="utf-8") == page.page(run.PAPERS, found)
        text = run.README.read_text(encoding="utf-8")
        assert run.with_headline(text, found) == text

    def test_what_was_measured_is_what_ships(self) -> None:
        for one in results.read(run.KEPT):
            (wanted,) = [each for each in run.runs() if each.settings == one["settings"]]
            whole = from_document(Document(one["whole"], "a kept run"))
            assert whole == wanted.arm.made(wanted.seed)
