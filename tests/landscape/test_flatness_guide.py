"""The code in docs/flatness.md runs as printed, and the page names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from saltflat import landscape
from saltflat.runs.measures import PARTS

GUIDE = Path(__file__).parents[2] / "docs" / "flatness.md"


def test_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.S)
    names: dict[str, Any] = {}
    exec(compile(code, "flatness.md", "exec"), names)
    solver, largest = capsys.readouterr().out.splitlines()
    assert solver.startswith("L-BFGS-B, 10 iterations, 3 starts")
    assert largest == "3.0000"
    assert names["ends"].converged
    assert names["picture"].loss.shape == (3, 3)


def test_it_names_every_part_and_only_what_exists() -> None:
    text = GUIDE.read_text()
    for part in PARTS.values():
        found = [key for entry in part.entries if not entry.detail for key in (entry.key, entry.error) if key]
        for name in [part.file, *found]:
            assert f"`{name}`" in text, name
    assert all(hasattr(landscape, name) for name in re.findall(r"land\.(\w+)", text))
