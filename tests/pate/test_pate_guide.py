"""The code in docs/pate.md runs as printed, and the page names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from saltflat import pate
from saltflat.cli.pate import FLAGS

GUIDE = Path(__file__).parents[2] / "docs" / "pate.md"
FENCED = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.S)


def test_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for code, printed in FENCED.findall(GUIDE.read_text()):
        exec(compile(code, "pate.md", "exec"), names)
        assert capsys.readouterr().out == printed


def test_it_names_only_what_exists() -> None:
    text = GUIDE.read_text()
    assert set(re.findall(r"pate\.([A-Za-z_]\w*)", text)) - {"json", "md", "py"} <= set(pate.__all__)
    own = {flag.word for flag in FLAGS}
    own |= {"--dry-run", "--out", "--resume", "--data-dir", "--workers", "--set"}
    assert set(re.findall(r"(--[a-z][a-z0-9-]+)", text)) <= own


def test_every_public_name_is_there() -> None:
    assert all(getattr(pate, name) is not None for name in pate.__all__)
