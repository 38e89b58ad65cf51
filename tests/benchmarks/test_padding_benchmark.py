"""The benchmark of padding: its texts, its ways, and that it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import padding
from padding import LENGTHS, LONGEST, Row


def test_every_way_pads_a_text_by_its_own_length() -> None:
    words, label = padding.texts()[0]
    for way, length in {"collated": LONGEST, "equal": len(words), "eights": -(-len(words) // 8) * 8}.items():
        found = padding.collate_to(LENGTHS[way])([(words, label)])
        assert found["words"].shape == (1, length)


def test_the_table_has_ratios() -> None:
    shown = padding.table_of(
        [Row("fixed", 100.0, 1.0, 90.0, 1.0, 600.0), Row("equal", 212.0, 2.12, 180.0, 2.0, 470.0)]
    )
    assert "| equal | 212.0 | 2.12 | 180.0 | 2.00 | 470 |" in shown


@pytest.mark.slow
def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    padding.main(["--batch", "32", "--rounds", "1", "--steps", "1"])
    out = capsys.readouterr().out
    assert all(f"| {way} |" in out for way in padding.WAYS)
