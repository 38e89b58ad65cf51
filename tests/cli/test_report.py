"""``saltflat report``: files where they were asked for, mistakes in one line, nothing of others' written over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

from folders import write_interpolation, write_landscape, write_run

from saltflat.cli import main
from saltflat.privacy.record.ledger import Ledger

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def saltflat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``saltflat report`` in this process; (exit code, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["saltflat", "report", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


def test_report_pictures_and_card(saltflat: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "one")
    code, out, err = saltflat("runs/one", "--pictures", "pics", "--card", "cards/README.md")
    assert (code, err) == (0, "")
    assert out == "pictures: pics\nmodel card: cards/README.md\nreport: runs/report.html\n"
    assert (tmp_path / "runs" / "report.html").read_text().startswith("<!doctype html>")
    assert sorted(file.name for file in (tmp_path / "pics").iterdir()) == [
        f"{name}.{kind}"
        for name in ("accuracy-epsilon", "accuracy-training", "epsilon-training", "trade-off")
        for kind in ("png", "svg")
    ]
    assert (tmp_path / "cards" / "README.md").read_text().startswith("---\n")
    assert saltflat("runs/one", "--card", "cards/README.md")[0] == 0  # its own files may be replaced
    assert saltflat(*sorted(Path("runs").iterdir()))[0] == 0  # `saltflat report runs/*` meets its own report


def test_what_to_know_is_said_on_the_way(saltflat: Call, tmp_path: Path) -> None:
    write_landscape(write_run(tmp_path / "one"), status="private: keep this file")
    (tmp_path / "one" / "landscape" / "surface.npz").write_bytes(b"no")
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "killed", steps=20, ended=False)
    code, out, _ = saltflat(tmp_path / "one", tmp_path / "killed", tmp_path / "empty")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("one: surface.npz is damaged: ")
    assert lines[1:4] == [
        "killed: not finished",
        "empty: empty folder",
        "keep it private: it holds results on private data without noise, or of unknown status",
    ]
    assert lines[4].endswith("report.html")


def test_nothing_that_is_mailed_tells_a_path_of_the_machine(saltflat: Call, tmp_path: Path) -> None:
    """A shared ledger, a damaged one, none, one of a run elsewhere; an empty folder; a way between two models."""
    runs = [tmp_path / "runs" / name for name in ("one", "two", "three", "killed", "empty")]
    for path in runs[:3]:
        write_landscape(write_run(path))
    write_run(runs[3], steps=20, ended=False)
    runs[4].mkdir()
    write_interpolation(runs[0], [f"{runs[0]} to {runs[1]}", f"{runs[0]} to {tmp_path / 'x' / 'far'}"])
    for file in ("ledger.jsonl", "ledger.jsonl.head"):
        (runs[0] / file).unlink()
        (runs[3] / file).unlink()
    (runs[1] / "ledger.jsonl").write_bytes(b"{}\n")
    with Ledger.open(tmp_path / "all.ledger", dataset="digits") as book:
        for path in (runs[0], tmp_path / "x" / "far"):
            book.run(str(path)).charge(0.25, 6.0, steps=40)
    for page in (tmp_path / "runs" / "report.html", tmp_path / "mail" / "report.html"):
        code, _, err = saltflat(
            *runs, "--ledger", tmp_path / "all.ledger", "--out", page, "--card", page.with_suffix(".md")
        )
        assert (code, err) == (0, "")
        for file in (page, page.with_suffix(".md")):
            text = file.read_text()
            assert str(tmp_path) not in text
            assert str(tmp_path).lstrip("/") not in text
        assert "saltflat train --resume --out killed" in page.read_text()
        assert "one to far" in page.read_text()
    card = saltflat(runs[1], "--out", page, "--card", page.with_suffix(".md"))
    assert card[0] == 0
    assert str(tmp_path) not in page.with_suffix(".md").read_text()
    whole = tmp_path / "report.html"
    assert (
        saltflat(*runs, "--out", whole)[0] == 0
    )  # without the shared ledger: a hint, relative to the report
    assert "saltflat report --ledger FILE runs/one" in whole.read_text()
    assert str(tmp_path) not in whole.read_text()


def test_an_end_without_a_number_is_said_on_the_way(saltflat: Call, tmp_path: Path) -> None:
    with (write_run(tmp_path / "one") / "metrics.jsonl").open("a") as file:
        file.write('{"step": 44, "accuracy": NaN}\n')
    _, out, _ = saltflat(tmp_path / "one")
    assert out.splitlines()[0] == "one: test accuracy not a number at the end (step 44)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument"),
        (["nowhere"], "nowhere does not exist; give the folder of a run"),
        (["run", "nowhere"], "nowhere does not exist"),
        (["empty"], "no run is here"),
        (["run", "--out", "theirs.html"], "theirs.html is there already and was not made by saltflat"),
        (["run", "--card", "theirs.html"], "was not made by saltflat; give another --card"),
        (["run", "--out", "empty"], "--out empty is a folder"),
        (["killed", "--card", "card.md"], "no model card of killed"),
        (["run", "--ledger", "no.ledger"], "--ledger no.ledger is no file"),
        (["run", "--pictures", "theirs.html"], "cannot go on"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    saltflat: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    write_run(tmp_path / "killed", steps=4, ended=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "theirs.html").write_text("<p>Years of work</p>")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = saltflat(*words)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "theirs.html").read_text() == "<p>Years of work</p>"


def test_without_matplotlib(saltflat: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = saltflat(write_run(tmp_path / "one"))
    assert (code, err) == (2, "saltflat: the report needs matplotlib: pip install 'saltflat[report]'\n")


def test_it_needs_no_torch(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    code = (
        f"import sys; sys.argv = ['saltflat', 'report', {str(tmp_path / 'one')!r}]\n"
        "from saltflat.cli import main\n"
        "try: main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "False\n")


def test_help_says_what_it_makes(saltflat: Call) -> None:
    code, out, _ = saltflat("--help")
    assert code == 0
    for flag in ("--out", "--pictures", "--card", "--ledger"):
        assert flag in out
