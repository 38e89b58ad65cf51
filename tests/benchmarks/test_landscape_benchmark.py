"""The landscape benchmark: counts products rightly, and runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import landscape as benchmark

from saltflat.landscape import krylov


def test_products_are_counted_until_the_value_stays() -> None:
    dense = torch.diag(torch.tensor([10.0, 9.0, 1.0, 0.0], dtype=torch.float64))
    space = krylov(dense, torch.ones(4, dtype=torch.float64), steps=4)
    tops = [float(torch.linalg.eigvalsh(dense_of(space, k))[-1]) for k in range(1, 5)]
    true = next(k for k in range(1, 5) if all(abs(top - 10) <= 0.1 for top in tops[k - 1 :]))
    assert benchmark.products_needed(space, 10.0) == true
    assert benchmark.products_needed(space, 11.0) is None
    assert benchmark.products_needed(space, 10.0, within=10.0) == 1


def dense_of(space, k: int) -> torch.Tensor:
    inner = space.betas[: k - 1]
    return torch.diag(space.alphas[:k]) + torch.diag(inner, 1) + torch.diag(inner, -1)


def test_it_runs_without_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--examples", "4", "--grid", "2", "--rounds", "1", "--training", "1", "--threads", "1"]
    benchmark.main([*words, "--data-dir", str(tmp_path)])
    out = capsys.readouterr().out
    for text in ("random images", "gradients", "lambda_max within 1 %", "a 2x2 surface"):
        assert text in out
