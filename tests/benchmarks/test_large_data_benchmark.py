"""The benchmark of data on disk: what it makes, what it compares, and that it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import large_data as benchmark
from large_data import Row


def test_every_layout_holds_the_same_examples(tmp_path: Path) -> None:
    layouts = ["npy", "memmap", "memory"]
    benchmark.make(tmp_path, 50, layouts)
    inputs, targets = benchmark.opened(tmp_path, "memory").take(np.array([0, 7, 49]))
    for layout in layouts[:2]:
        found, labels = benchmark.opened(tmp_path, layout).take(np.array([0, 7, 49]))
        if found.dtype == torch.uint8:
            found = benchmark.HALF(found.unsqueeze(1))
        assert torch.equal(found, inputs)
        assert torch.equal(labels, targets)


def test_parquet_holds_them_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    benchmark.make(tmp_path, 50, ["parquet"])
    inputs, targets = benchmark.opened(tmp_path, "memory").take(np.array([0, 7, 49]))
    found, labels = benchmark.opened(tmp_path, "parquet").take(np.array([0, 7, 49]))
    assert torch.allclose(found, inputs, atol=1e-6)
    assert torch.equal(labels, targets)


def test_ratios_are_to_the_smallest_of_the_same_layout() -> None:
    rows = [
        Row("npy", 10, 2.0, 1.0, 100.0, 50.0, 0.1),
        Row("memmap", 10, 4.0, 1.0, 100.0, 50.0, 0.1),
        Row("npy", 1000, 3.0, 1.2, 130.0, 40.0, 0.1),
    ]
    last = benchmark.table_of(rows).splitlines()[-1]
    assert [cell.strip() for cell in last.split("|")[1:-1]] == [
        *("npy", "1,000", "3.0", "1.500", "1.2", "1.200", "130", "+30", "40", "-10", "0.10")
    ]


def test_draws() -> None:
    ((count, scattered, coins),) = benchmark.draws([100_000], 64)
    assert count == 100_000
    assert scattered > 0
    assert coins > 0


@pytest.mark.slow
def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main(
        [*("--sizes", "300", "600", "--layouts", "npy", "--batch", "4"), *("--steps", "1", "--rounds", "1")]
    )
    out = capsys.readouterr().out
    assert "| npy | 600 |" in out
    assert "| memory | 300 |" in out
