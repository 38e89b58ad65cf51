"""The membership advantage as a target, in the place of epsilon: in Python, in recipes and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import saltflat as sf
from saltflat.errors import SettingError
from saltflat.front.given import Settings
from saltflat.privacy.accounting.risk import tradeoff
from saltflat.recipes import shipped
from saltflat.recipes.build import budget_of, plan_of, with_spare
from saltflat.runs.execute import _budget

CRITERION = nn.CrossEntropyLoss(reduction="none")
DATA = (torch.randn(60, 3), torch.randint(2, (60,)))


def test_fit_keeps_to_an_advantage() -> None:
    given: dict[str, Any] = {"batch_size": 30, "epochs": 2, "method": sf.methods.DPSGD(), "quiet": True}
    done = sf.fit(nn.Linear(3, 2), CRITERION, DATA, advantage=0.1, **given)
    assert 0.099 <= done.statement.membership_advantage <= 0.1
    assert done.plan.tradeoff().advantage == done.statement.membership_advantage
    assert 0.9 < done.epsilon < 1.2  # which is stated as always
    assert "right in at most 55 % of cases (advantage at most 0.0" in repr(done)
    assert "right in at most 55 % of cases (50 % is a coin flip)" in str(done.statement)


def test_a_loop_and_a_plan_keep_to_one_too() -> None:
    model = nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = sf.make_private(model, CRITERION, DATA, optimizer=sgd, advantage=0.2, batch_size=30, epochs=1)
    assert 0.198 <= loop.statement.membership_advantage <= 0.2
    phase = sf.Phase(
        method=sf.methods.DPSGD(),
        steps=3,
        noise_multiplier=1.0,
        clip_norm=0.1,
        optimizer=sf.optimizers.SGD(lr=0.1),
    )
    ready = Settings(plan=sf.Plan(phases=(phase,), rate=0.5, size=60), advantage=0.3).planned(60)
    assert 0.297 <= ready.plan.tradeoff().advantage <= 0.3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advantage": 0.1, "epsilon": 1.0}, "epsilon and advantage both decide the noise"),
        ({"advantage": 0.1, "noise_multiplier": 1.0}, "give advantage or noise_multiplier, not both"),
        ({"advantage": 1.0}, "at least 1e-05 and below 1"),
        ({"advantage": 0}, "keeps right guesses to 55 %"),
        ({"advantage": "0.1"}, "it must be a number"),
        ({}, "such as epsilon=3, or advantage=0.1"),
    ],
)
def test_mistakes_are_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Settings(**given)


class TestRecipe:
    def test_its_plan_and_spare_steps_keep_to_it(self) -> None:
        recipe = shipped("digits").but({"phase.0.epochs": 2})
        document = {name: value for name, value in recipe.as_document().items() if name != "epsilon"}
        recipe = sf.recipes.recipe.from_document(
            sf.recipes.documents.Document({**document, "advantage": 0.2})
        )
        assert "advantage = 0.2\n" in recipe.as_toml()
        plan = plan_of(recipe, 1437)
        longest = with_spare(plan, recipe.spare)
        assert plan.tradeoff().advantage < 0.198 <= longest.tradeoff().advantage <= 0.2
        kept = _budget(recipe, plan)
        assert kept is not None
        assert kept.epsilon == budget_of(recipe, plan) == pytest.approx(longest.epsilon(1e-5), rel=1e-5)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"advantage": 0.2}, "epsilon both decide the noise"),
            ({"advantage": 2.0}, "epsilon both decide the noise"),
        ],
    )
    def test_one_target_is_given(self, changes: dict[str, Any], said: str) -> None:
        with pytest.raises(SettingError, match=said):
            shipped("digits").but(changes)


class TestCommandLine:
    def test_a_run_keeps_to_it(self, saltflat: Any, tmp_path: Path) -> None:
        short = ["--epochs", "2", "--batch-size", "400", "--threads", "1", "--out", str(tmp_path / "one")]
        ran = saltflat("train", "--advantage", "0.2", *short)
        assert ran.code == 0, ran.err
        facts = json.loads((tmp_path / "one" / "statement.json").read_text())
        assert facts["membership_advantage"] <= 0.2
        text = (tmp_path / "one" / "statement.txt").read_text()
        assert text.startswith("In plain words\n")
        assert "advantage = 0.2" in (tmp_path / "one" / "recipe.toml").read_text()
        assert "epsilon" not in (tmp_path / "one" / "recipe.toml").read_text()

    def test_one_target_is_given(self, saltflat: Any, tmp_path: Path) -> None:
        for words in (("--epsilon", "1"), ("--set", "epsilon=1")):
            ran = saltflat("train", "--advantage", "0.2", *words, "--out", str(tmp_path / "one"), "--dry-run")
            assert (ran.code, "--epsilon and --advantage both decide the noise" in ran.err) == (2, True)
        ran = saltflat("train", "--advantage", "2", "--out", str(tmp_path / "one"), "--dry-run")
        assert (ran.code, "--advantage: advantage: is the true minus" in ran.err) == (2, True)

    def test_budgets(self, saltflat: Any) -> None:
        run = ["--delta", "1e-5", "--rate", "1", "--json"]  # nothing sampled: a closed form, at once
        noise = json.loads(saltflat("budget", "noise", "--advantage", "0.1", "--steps", "20", *run).out)
        assert 0.099 <= noise["advantage"] <= 0.1
        sigma = str(noise["noise"][0])
        steps = json.loads(saltflat("budget", "plan", "--advantage", "0.1", "--noise", sigma, *run).out)
        assert steps["steps"] in (20, 21)
        cost = ["budget", "epsilon", "--noise", sigma, "--steps", "20"]
        facts = json.loads(saltflat(*cost, "--prior", "0.2", "--prior", "0.9", *run).out)
        curve = tradeoff(sf.privacy.phase_event(1.0, noise["noise"][0], 20))
        assert facts["posteriors"] == [[p, curve.posterior(p)] for p in (0.2, 0.9)]
        assert facts["true_positives"] == [[f, curve.true_positives(f)] for f in (0.001, 0.01)]
        assert "right in at most 55 % of cases" in saltflat(*cost, *run[:-1]).out
        for words, said in (
            ((), "add --epsilon or --advantage"),
            (("--epsilon", "1", "--advantage", "0.1"), "leave one of them out"),
            (
                ("--advantage", "0.1", "--phase", "5:0.5", "--phase", "5:0.5"),
                "shares of several phases divide",
            ),
        ):
            ran = saltflat("budget", "noise", *words, *run[:-1])
            assert (ran.code, said in ran.err) == (2, True), ran.err


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def saltflat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line in this process, as the entry point runs it."""
    import sys

    from saltflat import cli

    def call(*words: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["saltflat", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return Ran(int(stop.value.code or 0), out, err)

    return call
