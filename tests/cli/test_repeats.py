"""``saltflat train --repeats``: one recipe several times, on one ledger, with mean, standard error and joint cost."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from saltflat.cli import main
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.history import read
from saltflat.recipes import recipe
from saltflat.report.folder import gather
from saltflat.report.joint import joint
from saltflat.runs import evaluation

Call = Callable[..., tuple[int, str, str]]
SHORT = ("--epochs", "1", "--batch-size", "400", "--threads", "1")  # 4 steps


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``saltflat train`` in this process; (exit code, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["saltflat", "train", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


def test_repeats_share_a_ledger_and_say_what_all_cost(train: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, errors = train("--repeats", 3, "--seed", 4, "--out", out, *SHORT)
    assert code == 0, errors
    seeds = [recipe.read(out / f"seed-{seed}" / "recipe.toml").seed for seed in (4, 5, 6)]
    assert seeds == [4, 5, 6]
    history = read(out / "ledger.jsonl")
    assert sum(history.steps().values()) == 12
    lines = [(out / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()[-1] for seed in seeds]
    right = [json.loads(line)["accuracy"] for line in lines]
    mean, error = np.mean(right), np.std(right, ddof=1) / 3**0.5
    assert f"test accuracy {mean:.2%} ± {error:.2%} (mean and standard error over 3 repeats" in said
    spent = rounded_up(history.epsilon(1e-5), 4)
    assert (
        f"All 3 together, and whatever else is on record in the ledger: epsilon {spent} at delta 1e-05"
        in said
    )
    kept = [evaluation.read(out / f"seed-{seed}" / "evaluation.json") for seed in seeds]
    assert [each.hits / each.count for each in kept] == right
    assert {each.count for each in kept} == {360}  # the test examples, and nobody else's
    assert history.budget is not None
    assert history.epsilon(1e-5) < history.budget.epsilon  # it holds the spare steps too, and refuses more
    runs = gather([out])  # the report finds the runs and their ledger by the folder
    assert [run.name for run in runs] == ["seed-4", "seed-5", "seed-6"]
    assert joint(runs)[0].epsilon == pytest.approx(history.epsilon(1e-5), rel=1e-6)

    shutil.rmtree(out / "seed-6")
    code, _, errors = train("--resume", "--out", out, "--threads", 1)
    assert code == 0, errors
    assert sum(read(out / "ledger.jsonl").steps().values()) == 16  # what had ended was not run again
    assert "was begun with --repeats 3, not 5" in train("--resume", "--repeats", 5, "--out", out)[2]
    assert "not empty" in train("--repeats", 2, "--out", out, *SHORT)[2]


def test_a_start_that_fails_leaves_nothing(train: Call, tmp_path: Path) -> None:
    code, _, errors = train("--repeats", 3, "--model", "tutorial_cnn", "--out", tmp_path / "out", *SHORT)
    assert (code, errors.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []
    assert "--repeats is a whole number" in train("--repeats", 0, "--out", tmp_path / "out")[2]


def test_a_dry_run_says_what_all_would_cost(train: Call, tmp_path: Path) -> None:
    code, said, _ = train("--repeats", 4, "--dry-run", "--out", tmp_path / "out", *SHORT)
    assert code == 0
    assert "4 repeats, seeds 0 to 3: together epsilon " in said
    assert list(tmp_path.iterdir()) == []
