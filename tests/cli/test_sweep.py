"""``saltflat sweep``: a grid of settings on one ledger; what is charged, who won, what is kept and what is not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from saltflat.cli import main
from saltflat.errors import DataError
from saltflat.privacy.accounting.bounds import epsilon
from saltflat.privacy.accounting.events import compose, phase_event
from saltflat.privacy.accounting.selection import geometric_trials
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.costs import BestOf
from saltflat.privacy.record.history import Budget, read
from saltflat.privacy.record.ledger import Ledger
from saltflat.recipes import recipe
from saltflat.report.folder import gather
from saltflat.report.page import page
from saltflat.runs import sweep as kept

Call = Callable[..., tuple[int, str, str]]
SMALL = """
version = 2
data = "digits"
model = {mlp = {width = 4}}
batch_size = 100
spare = 2

[[phase]]
steps = 3
method = "DPSGD"
noise_multiplier = 2.0
clip_norm = 0.1
optimizer = {SGD = {lr = 2.0, momentum = 0.9}}
"""


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run ``saltflat sweep`` in this process, on a small recipe; (exit code, stdout, stderr)."""
    (tmp_path / "small.toml").write_text(SMALL)

    def call(*words: object, recipe: str | None = "small.toml") -> tuple[int, str, str]:
        named = [] if recipe is None else [str(tmp_path / recipe)]
        monkeypatch.setattr(sys, "argv", ["saltflat", "sweep", *named, *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


def scores(out: Path, trials: list[str]) -> list[float]:
    lines = [(out / name / "metrics.jsonl").read_text().splitlines()[-1] for name in trials]
    return [json.loads(line)["accuracy"] for line in lines]


def test_every_trial_is_charged_and_the_winner_is_named_with_what_looking_cost(
    sweep: Call, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("--over", "lr=1,4", "--seeds", 2, "--out", out)
    code, said, errors = sweep(*command)
    assert code == 0, errors
    names = [f"lr={lr}/seed-{seed}" for lr in (1, 4) for seed in (0, 1)]
    runs = [recipe.read(out / name / "recipe.toml") for name in names]
    assert [(run.phase[0].optimizer.lr, run.seed) for run in runs] == [(1, 0), (1, 1), (4, 0), (4, 1)]
    history = read(out / "ledger.jsonl")
    assert history.steps() == {(100 / 1437, 2.0): 12}  # four trials of three steps, whoever won
    assert len(history.starts()) == 4
    spent = rounded_up(epsilon(phase_event(100 / 1437, 2.0, 12), 1e-5), 4)
    assert f"whether they won, lost or failed, cost epsilon {spent} at delta 1e-05" in said

    right = np.array(scores(out, names)).reshape(2, 2)
    best = int(np.argmax(right.mean(axis=1)))
    mean, error = right[best].mean(), right[best].std(ddof=1) / 2**0.5
    winner = names[2 * best].split("/")[0]
    assert f"Winner: {winner}, accuracy {100 * mean:.2f} % ± {100 * error:.2f} % over 2 seeds." in said
    assert "that score is too good" in said
    means = [float(line.split()[1]) for line in said.splitlines() if "2 of 2" in line]
    assert means == pytest.approx(sorted(100 * right.mean(axis=1), reverse=True), abs=0.006)
    statement = (out / names[0] / "statement.txt").read_text()
    assert "one of 4 trials of a sweep on this data: choosing among them costs what all of them" in statement
    assert f"epsilon {spent} at delta 1e-05 as planned" in statement
    report = (out / "report.html").read_text()
    assert f"Winner: {winner}" in report
    assert f"cost epsilon {spent} at delta" in report
    assert (out / "result.txt").read_text().splitlines()[0].startswith("setting")

    before = (out / "ledger.jsonl").read_bytes()
    assert sweep("--resume", "--out", out, recipe=None)[0] == 0  # nothing is left to run
    assert (out / "ledger.jsonl").read_bytes() == before
    code, _, errors = sweep("--over", "lr=1,2", "--out", out)
    assert code == 2
    assert "holds another sweep: it was begun with --over phase.0.optimizer.SGD.lr=1,4, not" in errors
    assert "leave the recipe and all that changes it out" in sweep("--resume", "--out", out)[2]


@pytest.mark.slow
def test_trials_of_different_costs_add_up(sweep: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (
        "--set",
        "epsilon=2",
        "--set",
        "spare=2",
        "--over",
        "epsilon=2,3",
        "--over",
        "lr=1,4",
        "--out",
        out,
    )
    (tmp_path / "small.toml").write_text(SMALL.replace("noise_multiplier = 2.0\n", ""))
    code, said, errors = sweep(*words)
    assert code == 0, errors
    steps = read(out / "ledger.jsonl").steps()
    assert sorted(steps.values()) == [6, 6]  # two noises, two trials of three steps each
    joint = epsilon(compose(*(phase_event(*cost, n) for cost, n in steps.items())), 1e-5)
    assert f"cost epsilon {rounded_up(joint, 4)} at delta" in said
    assert sweep(*words)[0] == 0  # the same command goes on with what is there
    assert sum(read(out / "ledger.jsonl").steps().values()) == 12


def test_only_the_best_of_a_selection_is_left(
    sweep: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept.Drawn, "at_random", classmethod(lambda cls, sweep: cls((0, 1, 1), (5, 6, 7))))
    out = tmp_path / "out"
    code, said, errors = sweep("--over", "lr=0.003141,8", "--select", 4, "--out", out)
    assert code == 0, errors
    left = {str(file.relative_to(out)).split("/")[0] for file in out.rglob("*")}
    assert left == {
        *(
            "sweep.json",
            "identity.txt",
            "ledger.jsonl",
            "ledger.jsonl.head",
            "winner",
            "result.txt",
            "report.html",
        )
    }
    history = read(out / "ledger.jsonl")
    (cost,) = history.steps()
    assert isinstance(cost, BestOf)
    assert [n for _, _, n in cost.steps] == [5]  # three steps, and the two spare ones that a kill may waste
    rate, noise, _ = cost.steps[0]
    theorem = epsilon(geometric_trials(phase_event(rate, noise, 5), mean=4), 1e-5)
    assert history.epsilon(1e-5) == pytest.approx(theorem)
    statement = json.loads((out / "winner" / "statement.json").read_text())
    assert statement["epsilon"] == pytest.approx(theorem)
    assert "random number of trials" in statement["selection"]
    metrics = (out / "winner" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["epsilon"] for line in metrics} == {statement["epsilon"]}
    run = gather([out])
    assert [(each.name, round(each.spent.epsilon or 0, 6)) for each in run] == [("winner", round(theorem, 6))]
    told = (out / "result.txt").read_text() + page(run)
    assert "trial-0" not in said + told
    assert "0.003141" not in told  # the loser's
    assert {entry.body["time"] for entry in history.entries if entry.kind == "run"} == {""}
    begun = (out / "sweep.json").stat().st_mtime_ns
    assert {each.stat().st_mtime_ns for each in (out, *out.rglob("*"))} == {begun}, (
        "no file tells how long it took"
    )
    claim = next(entry for entry in history.entries if entry.kind == "charge")
    assert list(history.drawn(claim.number).values()) == [1]  # one model, by its hash
    assert sweep("--resume", "--out", out, recipe=None)[0] == 0  # ended: nothing is drawn or charged again
    assert sum(read(out / "ledger.jsonl").steps().values()) == 1


def test_a_selection_that_goes_on_draws_nothing_anew_and_pays_once(
    sweep: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, drawn = tmp_path / "out", []
    draws = iter([kept.Drawn((0,), (5,)), kept.Drawn((1, 1), (6, 7))])

    def at_random(cls: type, sweep: kept.Sweep) -> kept.Drawn:
        drawn.append(next(draws))
        return drawn[-1]

    monkeypatch.setattr(kept.Drawn, "at_random", classmethod(at_random))
    from saltflat.runs import trial

    whole = trial.execute

    def broken(*given: object, **settings: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trial, "execute", broken)
    code, _, errors = sweep("--over", "lr=1,8", "--select", 4, "--out", out)
    assert code == 2
    assert "No space left" in errors
    assert "is private" in errors
    assert (out / "private").stat().st_mode & 0o777 == 0o700
    assert [run.name for run in gather([out])] == ["out"]  # a report sees no trial
    monkeypatch.setattr(trial, "execute", whole)
    code, _, errors = sweep("--over", "lr=1,8", "--select", 4, "--out", out)
    assert code == 0, errors
    assert len(drawn) == 1
    assert recipe.read(out / "winner" / "recipe.toml").seed == 5
    assert list(read(out / "ledger.jsonl").steps().values()) == [1]


def test_the_coin_of_a_selection_is_geometric() -> None:
    lr = kept.Axis("phase.0.optimizer.SGD.lr", "lr", ("1", "2"))
    asked = kept.Sweep("", (lr,), (0,), kept.SELECTED, 3.0)
    found = [kept.Drawn.at_random(asked) for _ in range(4000)]
    counts = np.array([len(each.settings) for each in found])
    assert counts.min() == 1
    assert abs(counts.mean() - 3) < 6 * 6**0.5 / 4000**0.5  # variance (1 - p) / p^2 = 6
    for k in (1, 2, 5):
        share = (2 / 3) ** (k - 1) / 3
        assert abs((counts == k).mean() - share) < 6 * (share / 4000) ** 0.5
    places = np.concatenate([each.settings for each in found])
    assert abs(places.mean() - 0.5) < 6 * 0.5 / len(places) ** 0.5
    assert len({each.seeds for each in found}) == 4000


@pytest.mark.slow
def test_a_copy_of_a_selection_releases_no_second_winner(
    sweep: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from saltflat.runs import trial

    out, whole = tmp_path / "out", trial.execute

    def broken(*given: object, **settings: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trial, "execute", broken)
    shared = tmp_path / "shared.ledger"
    assert sweep("--over", "lr=1,8", "--select", 4, "--out", out, "--ledger", shared)[0] == 2
    monkeypatch.setattr(trial, "execute", whole)
    shutil.copytree(out, tmp_path / "copy")
    assert sweep("--resume", "--out", out, recipe=None)[0] == 0
    code, _, errors = sweep("--resume", "--out", tmp_path / "copy", recipe=None)
    assert code == 2
    assert "would pass what was claimed" in errors
    assert not (tmp_path / "copy" / "winner").exists()

    small = tmp_path / "small.ledger"  # a selection that does not fit is not begun
    Ledger.open(small, dataset="digits", budget=Budget(epsilon=0.1, delta=1e-5)).close()
    words = ("--over", "lr=1,8", "--select", 4, "--out", tmp_path / "refused", "--ledger", small)
    code, _, errors = sweep(*words)
    assert code == 2
    assert "nothing was charged" in errors
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_public_examples_are_on_no_private_record(sweep: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, errors = sweep("--over", "lr=1,4", "--public", "--out", out)
    assert code == 0, errors
    assert read(out / "ledger.jsonl").dataset == "digits (declared public)"  # no private run shares it
    assert "declared public: nothing of this protects them" in said
    assert "Used as public, and not protected at all" in (out / "lr=1/seed-0/statement.txt").read_text()
    assert "leave --ledger out" in sweep("--over", "lr=1,4", "--public", "--ledger", tmp_path / "x")[2]


@pytest.mark.slow
def test_a_trial_that_fails_is_told_and_stays_charged_and_others_go_on(
    sweep: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from saltflat.runs import trial

    whole, out = trial.execute, tmp_path / "out"

    def failing(recipe, plan, split, folder, *, watch, **settings):  # type: ignore[no-untyped-def]
        def broken(progress) -> None:  # type: ignore[no-untyped-def]
            watch(progress)
            if recipe.phase[0].optimizer.lr == 1 and progress.step == 2:
                raise RuntimeError("of its own")

        return whole(recipe, plan, split, folder, watch=broken, **settings)

    monkeypatch.setattr(trial, "execute", failing)
    ledger = tmp_path / "shared.ledger"
    code, said, errors = sweep("--over", "lr=1,4", "--out", out, "--ledger", ledger)
    assert code == 2
    assert "lr=1/seed-0 failed: RuntimeError: of its own; what it took stays charged" in said
    assert "Winner: lr=4" in said
    assert sum(read(ledger).steps().values()) == 5
    monkeypatch.setattr(trial, "execute", whole)
    code, said, errors = sweep("--resume", "--out", out, recipe=None)
    assert code == 0, errors
    steps = sum(read(ledger).steps().values())  # step 2 ran again: its weights were not kept
    assert steps == 7
    assert "2 of 2 trials ended" in said
    spent = rounded_up(epsilon(phase_event(100 / 1437, 2.0, 7), 1e-5), 4)
    assert f"cost epsilon {spent} at delta 1e-05" in said


MISTAKES = {
    ("--over", "lr="): "has no values",
    ("--over", "lr=1,,2"): "has no values, or an empty one",
    ("--over", "lr=1,1"): "is there twice",
    ("--over", "lr=1", "--over", "phase.0.optimizer.SGD.lr=2"): "is varied twice",
    ("--over", "lr=1,1.0"): "one and the same recipe",
    ("--over", "momentum=0,0.5", "--over", "phase.0.optimizer={SGD = {lr = 1}}"): "one and the same recipe",
    ("--over", "raduis=1"): "the recipe has no such setting",
    ("--over", "seed=1,2"): "give --seeds instead",
    ("--over", "data=mnist,digits"): "a sweep is on one data set",
    ("--over", "public.count=1,2"): "examples are public in all of them or in none",
    ("--over", "lr=-1,2"): "--over phase.0.optimizer.SGD.lr=-1",
    ("--over", "phase.0.method.SAT.raduis=1"): "raduis",
    ("--over", "lr=1,2", "--seeds", "0"): "--seeds is a whole number",
    ("--over", "lr=1,2", "--jobs", "0"): "--jobs is a whole number",
    ("--over", "lr=1,2", "--engine", "dask"): "--engine is one of",
    ("--over", "lr=1,2", "--select", "1"): "above 1",
    ("--over", "lr=1,2", "--select", "3", "--seeds", "2"): "leave --seeds out",
    ("--over", "batch_size=100,200", "--select", "3"): "all cost the same",
    ("--over", "lr=1,2", "--select", "3", "--public"): "leave one out",
    ("--over", "model=mlp,tutorial_cnn"): "does not take",
    (): "nothing is varied",
}


def test_a_mistake_is_one_line_and_leaves_nothing(sweep: Call, tmp_path: Path) -> None:
    for words, said in MISTAKES.items():
        code, _, errors = sweep(*words, "--out", tmp_path / "out")
        assert (code, errors.count("\n")) == (2, 1), (words, errors)
        assert said in errors, words
        assert [file.name for file in tmp_path.iterdir()] == ["small.toml"], words


def test_a_short_name_that_may_mean_several_lists_them(sweep: Call, tmp_path: Path) -> None:
    more = SMALL + SMALL[SMALL.index("[[phase]]") :]
    (tmp_path / "two.toml").write_text(more)
    _, _, errors = sweep("--over", "momentum=0,0.5", recipe="two.toml")
    assert "may mean 2 settings: write --over phase.0.optimizer.SGD.momentum=... or --over phase.1" in errors
    assert "phase.1.clip_norm" in sweep("--over", "clip_norm=0.5,1", recipe="two.toml")[2]


def test_a_dry_run_says_what_looking_would_cost(sweep: Call, tmp_path: Path) -> None:
    code, said, _ = sweep("--over", "lr=1,2,4", "--seeds", 2, "--dry-run", "--out", tmp_path / "out")
    assert code == 0
    assert "6 trials" in said
    assert "All 6 together: epsilon " in said
    assert not (tmp_path / "out").exists()


def test_a_list_of_trials_is_read_without_trust(tmp_path: Path) -> None:
    lr = kept.Axis("phase.0.optimizer.SGD.lr", "lr", ("1", "2"))
    good = kept.Sweep("", (lr,), (0,))
    (tmp_path / "sweep.json").write_text(good.as_json())
    assert kept.read(tmp_path) == good
    for old, new in (
        ('"lr"', '"../../etc"'),
        ('"mode": "counted"', '"mode": "free"'),
        ('"mode": "counted"', '"mode": "selected"'),  # without how many are expected
        ('"seeds": [\n  0\n ]', '"seeds": [0.5]'),
        ("[", ""),
        ('"version": 1', '"version": 2'),
    ):
        (tmp_path / "sweep.json").write_text(good.as_json().replace(old, new))
        assert good.as_json() != good.as_json().replace(old, new)
        assert kept.runs_in(tmp_path) == []
        with pytest.raises(DataError, match="damaged"):
            kept.read(tmp_path)
