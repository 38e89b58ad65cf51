"""The code in docs/data.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saltflat.data import NAMES

GUIDE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.S)
    exec(compile(code, "data.md", "exec"), {})
    assert capsys.readouterr().out == "1437 (1, 8, 8) 10\n"


def test_it_names_every_data_set() -> None:
    text = GUIDE.read_text()
    assert all(f"`{name}`" in text or f"`-{name.removeprefix('emnist-')}`" in text for name in NAMES)
