"""``saltflat budget show`` and ``check``: what they say, and one line and exit code 2 when they cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from saltflat import cli
from saltflat.cli import ledger as command
from saltflat.errors import LedgerError, SettingError
from saltflat.privacy.record.history import Budget, read
from saltflat.privacy.record.ledger import Ledger

app = typer.Typer()
command.register(app)
run = CliRunner().invoke


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "digits.ledger"
    with Ledger.open(place, dataset="digits", budget=Budget(epsilon=3.0, delta=1e-5)) as ledger:
        ledger.run("search").charge(1.0, 20.0, steps=10)
        ledger.run("final").charge(1.0, 10.0, steps=5)
        ledger.run("final").charge(1.0, 10.0, steps=5)
    return place


def test_show_says_who_spent_what(path: Path) -> None:
    result = run(app, ["budget", "show", str(path)])
    assert result.exit_code == 0
    assert "spent on digits" in result.output
    rows = [line.replace("│", " ").split() for line in result.output.splitlines() if line.startswith("│")]
    assert [(row[0], *row[2:6]) for row in rows] == [
        ("search", "1", "10", "1", "20"),
        ("final", "2", "10", "1", "10"),
    ]
    assert "unit: one example; adjacency: add-or-remove" in result.output
    assert "% of the budget is spent: epsilon 3 at delta 1e-05" in result.output


def test_show_json_holds_the_ledgers_own_figures(path: Path) -> None:
    facts = json.loads(run(app, ["budget", "show", str(path), "--json"]).output)
    history = read(path)
    assert facts["epsilon"] == history.epsilon(1e-5)
    assert facts["gone"] == history.gone()
    assert facts["head"] == history.head
    assert [(r["name"], r["starts"], r["steps"][0]["steps"]) for r in facts["runs"]] == [
        ("search", 1, 10),
        ("final", 2, 10),
    ]
    assert all(0 < r["epsilon_alone"] < facts["epsilon"] for r in facts["runs"])
    larger = json.loads(run(app, ["budget", "show", str(path), "--json", "--delta", "1e-7"]).output)
    assert larger["epsilon"] > facts["epsilon"]


def test_show_needs_a_delta_from_somewhere(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "a.ledger", dataset="digits").close()
    result = run(app, ["budget", "show", str(tmp_path / "a.ledger")])
    assert isinstance(result.exception, SettingError)
    empty = run(app, ["budget", "show", str(tmp_path / "a.ledger"), "--delta", "1e-5"])
    assert "all runs together: epsilon 0 at delta 1e-05" in empty.output


def test_show_stamps_seeded_runs(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="digits") as ledger:
        ledger.run("debugging", private=False).charge(1.0, 20.0)
        ledger.run("later").charge(1.0, 20.0)
    arguments = ["budget", "show", str(tmp_path / "a.ledger"), "--delta", "1e-5"]
    assert run(app, arguments).output.count("NOT PRIVATE: seeded") == 2
    assert "epsilon infinite" in run(app, arguments).output
    facts = json.loads(run(app, [*arguments, "--json"]).output)
    assert (facts["stamp"], facts["epsilon"]) == ("NOT PRIVATE: seeded", None)
    assert facts["runs"][1]["epsilon_alone"] > 0


def test_show_names_a_filter(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="x", budget=Budget(3.0, 1e-5, order=8.0)) as ledger:
        ledger.run("one").charge(1.0, 20.0)
    assert "a filter at Renyi order 8" in run(app, ["budget", "show", str(tmp_path / "a.ledger")]).output


def test_show_does_not_read_markup_in_names(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="[bold]x[/bold]") as ledger:
        ledger.run("[/red] run")
    output = run(app, ["budget", "show", str(tmp_path / "a.ledger"), "--delta", "1e-5"]).output
    assert "[bold]x[/bold]" in output
    assert "[/red] run" in output


def test_check_says_that_it_is_whole(path: Path) -> None:
    result = run(app, ["budget", "check", str(path)])
    assert (result.exit_code, result.output.count("\n")) == (0, 1)
    assert f"is whole: 8 lines, 3 runs on digits, head {read(path).head}" in result.output
    assert run(app, ["budget", "check", str(path), "--head", read(path).head]).exit_code == 0
    assert isinstance(run(app, ["budget", "check", str(path), "--head", "5:abc"]).exception, LedgerError)


@pytest.mark.parametrize("name", ["show", "check"])
@pytest.mark.parametrize("harm", ["cut", "flip", "missing", "text", "folder"])
def test_an_untrustworthy_ledger_gives_one_line_and_exit_code_2(
    path: Path, name: str, harm: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "folder":
        path = path.parent
    else:
        path.write_bytes(
            {"cut": data[:-200], "flip": data.replace(b'"steps":10', b'"steps":1'), "text": b"x"}[harm]
        )
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["saltflat", "budget", name, str(path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out, shown.err.count("\n")) == (2, "", 1)


def test_the_commands_start_without_torch() -> None:
    script = "import sys, saltflat.cli.ledger; sys.exit(bool({'torch', 'dp_accounting'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_commands_join_the_budget_group_of_an_app() -> None:
    whole, group = typer.Typer(), typer.Typer()
    group.command("other")(lambda: None)
    whole.add_typer(group, name="budget")
    command.register(whole)
    output = run(whole, ["budget", "--help"]).output
    assert all(word in output for word in ("other", "show", "check"))
