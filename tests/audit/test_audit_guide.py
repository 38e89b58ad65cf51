"""The code in docs/audit.md runs as printed, and the page names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from saltflat import audit
from saltflat.audit.result import CERTAIN, CONFIDENCE, MEANING

GUIDE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.S)
    names: dict[str, Any] = {}
    exec(compile(code, "audit.md", "exec"), names)
    printed = capsys.readouterr().out
    assert MEANING[0] in printed
    assert re.search(r"epsilon is at least [\d.]+ and, says the plan, at most 4.38", printed)
    assert names["many"].lower > 1


def test_it_names_only_what_exists() -> None:
    text = GUIDE.read_text()
    named = set(re.findall(r"sf\.audit\.(\w+)", text))
    assert named >= {"canary", "one_run", "membership", "Sides", "Company", "Claim", "read"}
    assert named <= set(audit.__all__)
    for flag in set(re.findall(r"`?(--[a-z][a-z-]+)", text)):
        source = (Path(audit.__file__).parents[1] / "cli" / "audit.py").read_text()
        assert flag[2:].removeprefix("no-").replace("-", "_") in source, flag


def test_it_tells_the_confidences() -> None:
    text = GUIDE.read_text()
    assert (CONFIDENCE, CERTAIN) == (0.95, 0.9999)
    assert "95 %" in text
    assert "99.99 %" in text
