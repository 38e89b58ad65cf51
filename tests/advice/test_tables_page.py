"""docs/tables.md: its table file is one, its code runs, its commands are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from saltflat.cli import app
from saltflat.data import read_table

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "shop.toml").write_text(text)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    names: dict[str, object] = {}
    exec(compile(code, "tables.md", "exec"), names)
    out = capsys.readouterr().out
    assert float(re.findall(r"accuracy on public rows: ([\d.]+)", out)[0]) > 0.7
    assert read_table(tmp_path / "shop.toml") == names["table"]
    commands = [
        line.strip().split("  #")[0] for line in PAGE.splitlines() if line.startswith("    saltflat ")
    ]
    assert len(commands) == 6
    for command in commands[:2]:  # the others train, as tests/cli/test_tables.py does
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
