"""The README's own code runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    """One call, one's own loop, the parts, all on the same model; each prints what the README says it does."""
    call, loop, parts = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    (printed,) = re.findall(r"```text\n(.*?)```", README.read_text(), flags=re.S)
    names: dict[str, Any] = {}
    assert len(call.splitlines()) <= 22
    exec(compile(call, "README.md", "exec"), names)
    assert capsys.readouterr().out == printed
    assert 2.97 <= names["fitted"].epsilon <= 3.0
    exec(compile(loop, "README.md", "exec"), names)
    first, second = _printed_epsilons(capsys)
    assert first < second
    assert 2.97 <= second <= 3.0
    exec(compile(parts, "README.md", "exec"), names)
    (spent,) = _printed_epsilons(capsys)
    assert 2.97 <= spent <= 3.0


def _printed_epsilons(capsys: pytest.CaptureFixture[str]) -> list[float]:
    return [float(e) for e in re.findall(r"epsilon ([\d.]+) at delta 1e-5", capsys.readouterr().out)]


def test_the_tree_names_real_places() -> None:
    root = README.parent
    tree = README.read_text().split("## The tree")[1]
    for room in re.findall(r"^      (\w+)/ ", tree, flags=re.M):
        assert (root / "src" / "saltflat" / room).is_dir(), room
    for name in re.findall(r"\b(\w+\.py)\b", tree):
        assert list((root / "src").rglob(name)) or list((root / "tests").rglob(name)), name


def test_the_methods_page_runs() -> None:
    (code,) = re.findall(
        r"```python\n(.*?)```", (README.parent / "docs" / "methods.md").read_text(), flags=re.S
    )
    exec(compile(code, "methods.md", "exec"), {})


def test_the_methods_page_names_what_there_is() -> None:
    import saltflat
    from saltflat import clipping, methods, optimizers, schedules

    groups = (saltflat, clipping, methods, optimizers, schedules)
    there = {name for group in groups for name in group.__all__}
    page = (README.parent / "docs" / "methods.md").read_text().split("## Legacy")[0]
    named = set(re.findall(r"`?(?:=|`)([A-Z]\w+)\(", page)) - {"Budget"}
    assert len(named) > 12
    assert named <= there, named - there
