"""``saltflat train``: a run in a folder, stopped, resumed, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saltflat.privacy.record.history import read
from saltflat.recipes import Recipe

SHORT = ["--epochs", "4", "--batch-size", "400", "--threads", "1"]  # 14 steps
STEPS = 14


def saltflat(*words: str, **settings: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "saltflat", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **settings)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_keeps_everything(tmp_path: Path) -> None:
    out = tmp_path / "one"
    assert saltflat("train", "--out", str(out), "--model", "tutorial_cnn", *SHORT).returncode == 2
    done = saltflat("train", "--out", str(out), "--method", "dp-sgd", *SHORT)  # the corrected command
    assert done.returncode == 0, done.stderr
    for words in ("differentially private for each example", "add or remove", "Poisson", "test accuracy"):
        assert words in done.stdout
    assert 'method = "dp-sgd"' in (out / "recipe.toml").read_text()
    assert [row["step"] for row in metrics(out)] == list(range(1, STEPS + 1))
    assert metrics(out)[-1]["epsilon"] <= 3.0
    assert not {"loss", "norm", "clipped"} & metrics(out)[-1].keys()
    assert json.loads((out / "statement.json").read_text())["epsilon"] <= 3.0
    weights = load_file(out / "model.safetensors")
    assert all(bool(torch.isfinite(leaf).all()) for leaf in weights.values())
    assert sum(read(out / "ledger.jsonl").steps().values()) == STEPS
    again = saltflat("train", "--out", str(out), *SHORT)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert again.stderr.count("\n") == 1


def test_a_dry_run_touches_nothing(tmp_path: Path) -> None:
    done = saltflat(
        "train", "fashion-mnist-sai-eps3", "--dry-run", "--out", str(tmp_path / "x"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "then" in done.stdout
    assert "epsilon 2.9" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "method"),
    [
        (signal.SIGINT, "dp-sat"),
        (signal.SIGTERM, "dp-sat"),
        (signal.SIGKILL, "dp-sat"),
        (signal.SIGKILL, "sai"),  # in its first phase, whose steps cost many of the second
    ],
)
def test_a_stopped_run_ends_at_the_same_step_within_epsilon(
    number: signal.Signals, method: str, tmp_path: Path
) -> None:
    out = tmp_path / "one"
    length = ["--epochs", "12", "--batch-size", "400"]  # 43 steps
    words = ["train", "--out", str(out), "--method", method, *length, "--threads", "1"]
    process = subprocess.Popen([sys.executable, "-m", "saltflat", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (out / "metrics.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert errors.count("\n") == 1
        assert "run again to go on" in errors
    assert not (out / "model.safetensors").exists()
    done = saltflat("train", "--resume", "--out", str(out), "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert metrics(out)[-1]["step"] == 43
    spent = read(out / "ledger.jsonl")
    assert sum(spent.steps().values()) >= 43
    assert spent.epsilon(1e-5) <= 3.0
    stated = json.loads((out / "statement.json").read_text())["epsilon"]
    assert stated >= 0.9999 * spent.epsilon(1e-5)  # what ran again is in the statement, and in the metrics
    assert metrics(out)[-1]["epsilon"] >= 0.9999 * spent.epsilon(1e-5)
    once_more = saltflat("train", "--resume", "--out", str(out), "--threads", "1")
    assert once_more.returncode == 0
    assert read(out / "ledger.jsonl").epsilon(1e-5) == spent.epsilon(1e-5)


def test_another_recipe_does_not_go_on(tmp_path: Path) -> None:
    out = tmp_path / "one"
    assert saltflat("train", "--out", str(out), *SHORT).returncode == 0
    done = saltflat("train", "--resume", "--out", str(out), "--epsilon", "8")
    assert done.returncode == 2
    assert "epsilon 3.0, not 8.0" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "nan"], "epsilon"),
        (["--clip-norm", "0"], "clip_norm must be positive"),
        (["--batch-size", "5000"], "larger than the data"),
        (["--method", "dp-magic"], "method is one of"),
        (["--model", "tutorial_cnn"], "does not take digits's examples"),
        (["--data", "cifar"], "there is no data set"),
        (
            ["--data", "mnist", "--model", "tutorial_cnn", "--batch-size", "64", "--data-dir", "nowhere"],
            "not a folder",
        ),
        (["--device", "abacus"], "--device abacus cannot be used"),
        (["--epsilon", "1e-9"], "epsilon"),
        (["--resume"], "holds no run"),
        (["no-such-recipe"], "give a TOML file or one of"),
        (["--epochz", "3"], "No such option"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_run(words: list[str], message: str, tmp_path: Path) -> None:
    done = saltflat("train", "--out", str(tmp_path / "x"), *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_help_shows_every_setting_and_its_default() -> None:
    done = saltflat("train", "--help", env={**os.environ, "COLUMNS": "200", "TERM": "dumb"})
    for name, value in vars(Recipe()).items():
        assert "--" + name.replace("_", "-") in done.stdout
        assert f"[default: ({value})]" in done.stdout


def test_recipes_are_listed_and_printed(tmp_path: Path) -> None:
    assert "fashion-mnist-dp-sat-eps3" in saltflat("recipes").stdout
    text = saltflat("recipes", "mnist-dp-sat-eps3").stdout
    (tmp_path / "mine.toml").write_text(text)
    done = saltflat("train", str(tmp_path / "mine.toml"), "--epsilon", "2", "--dry-run")
    assert "at most 2" in done.stdout


def test_tensorboard_has_every_reading(tmp_path: Path) -> None:
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "one"
    done = saltflat("train", "--out", str(out), "--tensorboard", *SHORT)
    assert done.returncode == 0, done.stderr
    events = board.EventAccumulator(str(out / "tensorboard")).Reload()
    assert sorted(events.Tags()["scalars"]) == ["accuracy", "epsilon", "examples_per_second"]
    seen = [(event.step, event.value) for event in events.Scalars("epsilon")]
    assert seen == [(row["step"], pytest.approx(row["epsilon"])) for row in metrics(out)]


def test_without_tensorboard_the_flag_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "tensorboard"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError")
    path = os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", "")])
    done = saltflat(
        "train", "--out", str(tmp_path / "x"), "--tensorboard", env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 2
    assert "saltflat[tensorboard]" in done.stderr
    assert not (tmp_path / "x").exists()
