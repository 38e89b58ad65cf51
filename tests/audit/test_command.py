"""``saltflat audit``, in processes of its own, with tiny settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import saltflat.core.ask as ask
import saltflat.core.step as step
from saltflat.audit import read
from saltflat.cli import app, main


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "saltflat", "audit", *words]


def run(*words: str) -> Any:
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=900)


def test_a_claim_survives(tmp_path: Path) -> None:
    """Without controls, so that a few runs suffice; the result is kept, and says what was not done."""
    words = ("--runs", "40", "--together", "80", "--seed", "0", "--no-controls")
    done = run(*words, "--out", str(tmp_path / "new" / "folder"))
    assert done.returncode == 0, done.stderr
    assert "claimed: epsilon 2.9" in done.stdout
    assert "counts on no ledger" in done.stdout
    assert "the claim: 80 of 80 runs" in done.stdout
    assert "No controls were run" in done.stdout
    found = read(tmp_path / "new" / "folder").value
    assert found is not None
    assert found.verdict == "survives"
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["audit.json"]


def test_few_runs_fail_their_controls(tmp_path: Path) -> None:
    done = run("digits", "--runs", "4", "--together", "8", "--seed", "0", "--out", str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert "CONTROLS FAILED (half noise)" in done.stdout
    assert "NOT PRIVATE: seeded" in done.stdout


def test_one_run_alone(tmp_path: Path) -> None:
    done = run("--kind", "one-run", "--canaries", "50", "--no-controls", "--alone", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "alone, in made-up data" in done.stdout


@pytest.mark.slow
def test_one_run_among_the_digits(tmp_path: Path) -> None:
    done = run("--kind", "one-run", "--canaries", "1000", "--seed", "0", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "planted among examples" in done.stdout
    found = read(tmp_path).value
    assert found is not None
    assert 0 < found.lower < found.claim.epsilon


@pytest.mark.slow
def test_membership_on_the_digits(tmp_path: Path) -> None:
    done = run("--kind", "membership", "--seed", "0", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = read(tmp_path).value
    assert found is not None
    assert [control.passed for control in found.controls] == [True, True]
    assert found.intervals[0].name == "AUC"
    assert "The examples are public." in done.stdout


def test_a_refuted_claim_is_said_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the noise switched off inside the library."""
    monkeypatch.setattr(ask, "noised", lambda bounded, noise_multiplier, noise: bounded.total)
    monkeypatch.setattr(step, "check_answer", lambda answer, params: answer)
    words = ["--runs", "100", "--together", "200", "--no-controls", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["saltflat", "audit", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    assert "CLAIM REFUTED" in capsys.readouterr().out
    found = read(tmp_path).value
    assert found is not None
    assert found.refuted


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--kind", "guess"], "--kind is one of canary, one-run, membership; got 'guess'"),
        (["no-such-recipe"], "no-such-recipe cannot be read"),
        (["--runs", "1"], "runs is a whole number of at least 2; got 1"),
        (["--together", "0"], "together is a whole number of at least 1"),
        (["--kind", "one-run", "--canaries", "1", "--alone"], "canaries is a whole number of at least 2"),
        (["--kind", "one-run", "--canaries", "99999"], "99999 canaries do not fit into 9258 weights"),
        (["--kind", "membership", "mnist-dp-sat-eps3"], "membership needs a recipe on the embedded digits"),
        (["--seed", "-1"], "--seed is 0 or more"),
        (["--loud"], "No such option"),
    ],
)
def test_wrong_input_is_one_line_and_2(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["saltflat", "audit", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--out", str(tmp_path / "file" / "folder"))
    assert done.returncode == 2
    assert "is no folder that can be written" in done.stderr
    assert done.stdout.count("\n") == 2  # what is claimed, and on what it would have trained


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_says_what_was_done(number: int, tmp_path: Path) -> None:
    words = command("--runs", "40000", "--together", "40", "--out", str(tmp_path))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # what is claimed
        process.stdout.readline()  # where it trains: the first run is about to begin
        _wait_for_a_run(process)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"stopped by {signal.Signals(number).name}" in error
    assert "nothing is kept, since part of an audit is none" in error
    assert not (tmp_path / "audit.json").exists()


def _wait_for_a_run(process: subprocess.Popen) -> None:
    """Trainings take the signals, and the time between them leaves Ctrl-C to Python: either may be hit."""
    try:
        process.wait(timeout=4)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError("it ended by itself")


def test_the_command_line_lists_it() -> None:
    assert "audit" in [command.name for command in app.registered_commands]
