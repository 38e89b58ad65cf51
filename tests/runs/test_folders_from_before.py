"""Folders of version 0.1, kept as they were left: one finished, two that were killed. They report and go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from saltflat.privacy import read

BEFORE = Path(__file__).with_name("before")
STOPPED = ("stopped-dplis", "stopped-sai")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folders under the names that their ledgers know them by."""
    shutil.copytree(BEFORE, tmp_path / "runs")
    return tmp_path


def saltflat(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "saltflat", *words],
        cwd=where,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_that_was_killed_goes_on_to_its_end(runs: Path, name: str) -> None:
    """SAI with views in its second phase; DPLIS under an adaptive clip norm with a running mean."""
    folder = runs / "runs" / name
    before = read(folder / "ledger.jsonl")
    done = saltflat(runs, "train", "--resume", "--out", f"runs/{name}")
    assert done.returncode == 0, done.stderr
    assert (folder / "model.safetensors").exists()
    statement = json.loads((folder / "statement.json").read_text())
    after = read(folder / "ledger.jsonl")
    assert after.entries[: len(before.entries)] == before.entries
    assert sum(after.steps().values()) >= 57  # the plan's steps, and what ran again
    assert statement["epsilon"] <= 3.0
    assert statement["epsilon"] == pytest.approx(after.epsilon(1e-5), rel=1e-6)


def test_settings_that_differ_are_still_told(runs: Path) -> None:
    wrong = saltflat(runs, "train", "--resume", "--out", "runs/stopped-dplis", "--epsilon", "2")
    assert wrong.returncode == 2
    assert "epsilon" in wrong.stderr
    assert len(wrong.stderr.strip().splitlines()) == 1


def test_all_of_them_report_and_have_a_landscape(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    folders = [f"runs/{name}" for name in ("finished", *STOPPED)]
    looked = saltflat(
        runs, "landscape", *folders, "--only", "eigenvalues", "--examples", "60", "--lanczos", "10"
    )
    assert looked.returncode == 0, looked.stderr
    made = saltflat(runs, "report", *folders, "--out", "page.html", "--card", "card.md")
    assert made.returncode == 0, made.stderr
    page = (runs / "page.html").read_text()
    for words in ("finished", "stopped-sai", "digits_cnn", "dplis", "dp-sat", "largest Hessian eigenvalue"):
        assert words in page, words
    assert "dp-sat" in (runs / "card.md").read_text()
