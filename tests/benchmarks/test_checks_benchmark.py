"""The benchmark of the checks: what it adds up, and that it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import checks as benchmark
from checks import Cost

from saltflat.core.step import LOOK_EVERY


def test_the_share_is_of_the_steps_own_time() -> None:
    looks = 2 + benchmark.STEPS // LOOK_EVERY
    assert Cost("m", step=1, look=10 / looks, ask=0, trial=0).share == pytest.approx(0.01)
    assert Cost("m", step=2, look=0, ask=0.02, trial=0).share == pytest.approx(0.01)
    assert Cost("m", step=1, look=0, ask=0, trial=10).share == pytest.approx(0.01)


def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(["--models", "mlp", "--quick", "--threads", "1"])
    out = capsys.readouterr().out
    for text in ("a step", f"once in {LOOK_EVERY}", "target 1%"):
        assert text in out
