"""The app of ``saltflat federate init``: written whole or not at all, readable, and what its page says of it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from saltflat.cli import app
from saltflat.core.plan import with_spare
from saltflat.errors import SettingError
from saltflat.federated.flower import flower
from saltflat.federated.flower.start import start_app

DOCS = Path(__file__).parents[2] / "docs" / "federated_deployment.md"


def test_the_app_is_written_and_reads_as_python(tmp_path: Path) -> None:
    written = start_app(tmp_path / "deep" / "app")
    names = {file.relative_to(tmp_path / "deep" / "app").as_posix() for file in written}
    parts = {f"federation/{name}.py" for name in ("__init__", "task", "data", "client_app", "server_app")}
    assert names == {"pyproject.toml", "README.md", *parts}
    for file in written:
        if file.suffix == ".py":
            assert ast.get_docstring(ast.parse(file.read_text()))
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select",
            "E,F",
            "--line-length",
            "120",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_what_is_there_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for wrong in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(SettingError, match="folder that is new"):
            start_app(wrong)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_the_command_says_what_to_do_next(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["federate", "init", str(tmp_path / "app")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "app" / "federation" / "data.py").exists()
    assert "flwr run . --stream --federation-config num-supernodes=20" in done.output
    again = CliRunner().invoke(app, ["federate", "init", str(tmp_path / "app")])
    assert isinstance(again.exception, SettingError)


def test_the_app_and_the_pages_declare_as_many_clients_as_they_simulate(tmp_path: Path) -> None:
    start_app(tmp_path / "app")
    (declared,) = re.findall(r"CLIENTS = (\d+)", (tmp_path / "app" / "federation" / "task.py").read_text())
    for page in (tmp_path / "app" / "README.md", DOCS):
        assert set(re.findall(r"num-supernodes=(\d+)", page.read_text())) == {declared}


def test_the_plan_of_the_app_keeps_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_app(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from federation import task

    longest = with_spare(task.plan(), task.SPARE)
    assert task.plan().steps == task.ROUNDS
    assert task.SPARE >= 3
    assert 0.99 * task.EPSILON < longest.epsilon(task.DELTA) <= task.EPSILON
    assert task.DELTA <= 1 / (10 * task.CLIENTS)
    assert task.plan().size == task.CLIENTS


def test_on_python_3_10_the_extra_installs_nothing_and_the_message_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower 1.41 needs 3.11: without the marker pip finds no version of it, and refuses the whole extra."""
    metadata = (DOCS.parents[1] / "pyproject.toml").read_text()
    (extra,) = re.findall(r'^federated = \["(.*?)"\]', metadata, flags=re.MULTILINE)
    needed = Requirement(extra)
    assert needed.marker is not None
    assert not needed.marker.evaluate({"python_version": "3.10"})
    assert needed.marker.evaluate({"python_version": "3.11"})
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    with pytest.raises(SettingError, match=r"needs Python 3\.11 or later, and this is 3\.10"):
        flower()
