"""The timed epoch of DPNASNet, on a tiny data set in the official format."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

import dpnas_epoch
from formats import pixels, write_idx


@pytest.mark.slow
def test_both_orders_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part, count in (("train", 24), ("t10k", 10)):
        write_idx(tmp_path / "mnist", part, pixels(count, 28, 28), np.arange(count, dtype=np.uint8) % 10)
    words = [
        "--steps=1",
        "--batch=8",
        "--threads=1",
        "--order",
        *dpnas_epoch.ORDERS,
        "--data-dir",
        str(tmp_path),
    ]
    assert dpnas_epoch.main(words) == 0
    last, first = (ast.literal_eval(line) for line in capsys.readouterr().out.splitlines())
    assert (last["order"], first["order"]) == ("channels_last", "contiguous")
    for one in (last, first):
        assert one["parameters"] == 213_418
        assert one["steps"] == 1
        assert 0 < one["epsilon"] <= 3
        assert 0 <= one["test_accuracy"] <= 1


def test_missing_data_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dpnas_epoch.main(["--data-dir", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
