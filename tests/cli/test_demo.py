"""`saltflat demo`, shortened: it trains, it reports, and it refuses nonsense in one line."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saltflat.cli import demo, main
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record import durable
from saltflat.privacy.record.checkpoint import load
from saltflat.privacy.record.history import read
from saltflat.privacy.record.ledger import Ledger
from saltflat.recipes.build import network_of


def test_it_trains_and_reports(short, tmp_path: Path) -> None:
    code, out, err = short("--epsilon", "3")
    assert (code, err) == (0, "")
    for fact in ("DP-SAT", "DP-SGD", "delta 1e-05", "unit: one example", "add or remove", "Poisson"):
        assert fact in out
    place = Path("runs/demo/report.html")
    assert out.splitlines()[-1] == f"report: {place} (open it in a browser; the next demo replaces it)"
    page = place.read_text(encoding="utf-8")
    assert "DP-SAT" in page
    assert page.index("<canvas") < page.index('id="summary"')  # it opens on the landscapes of both
    assert page.count("<canvas") == 4
    assert "decides little" in page
    assert "Two single runs on 360 test digits decide little" in out
    assert "Made by `saltflat demo`" in (place.parent / demo.NOTE).read_text()


def test_the_next_demo_replaces_this_one_and_nothing_else(short) -> None:
    assert short()[0] == 0
    place = Path("runs/demo")
    (place / "mine.txt").write_text("kept")
    first = read(place / "DP-SAT" / "ledger.jsonl").head
    assert short()[0] == 0
    assert read(place / "DP-SAT" / "ledger.jsonl").head != first
    assert (place / "mine.txt").read_text() == "kept"


def test_a_folder_that_is_not_the_demos_is_left_alone(short, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "DP-SAT").mkdir(parents=True)
    assert "did not make" in one_line(short("--out", theirs))
    (tmp_path / "file").touch()
    assert "is a file" in one_line(short("--out", tmp_path / "file"))
    assert sorted(theirs.rglob("*")) == [theirs / "DP-SAT"]


def test_two_demos_at_once_do_not_clear_each_other(short, tmp_path: Path) -> None:
    place = tmp_path / "one"
    place.mkdir()
    with (place / demo.NOTE).open("w") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        assert "a demo is running" in one_line(short("--out", place))


def test_without_matplotlib_it_says_so_and_ends_well(short, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = short()
    assert (code, err) == (0, "")
    assert "no report: the report needs matplotlib: pip install 'saltflat[report]'" in out.splitlines()[-1]
    assert not Path("runs/demo/report.html").exists()


def test_the_network_is_as_small_as_it_says() -> None:
    network = network_of(demo._recipe(demo.METHODS["DP-SAT"], 3.0, 1e-5))
    assert sum(p.numel() for p in network.parameters()) == 9258


def test_nonsense_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["saltflat", "demo", "--epsilon", "nan"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run ``saltflat demo`` with three steps in this process and an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.setattr(demo, "STEPS", 3)
    monkeypatch.setattr(demo, "LOOK", {"parts": ("surface", "trajectory"), "examples": 10, "grid": 3})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["saltflat", "demo", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return int(stopped.value.code or 0), out, err

    return call


def test_runs_are_charged_and_kept(short, tmp_path: Path) -> None:
    options = ("--ledger", tmp_path / "a.ledger", "--out", tmp_path / "kept")
    code, out, err = short(*options)
    assert (code, err) == (0, "")
    history = read(tmp_path / "a.ledger")
    runs = [(Path(run.name).name, sum(run.steps.values())) for run in history.runs()]
    assert runs == [("DP-SAT", 3), ("DP-SGD", 3)]
    assert f"epsilon {rounded_up(history.epsilon(1e-5), 4)} for all runs so far" in " ".join(out.split())
    assert {load(tmp_path / "kept" / name / "checkpoints").meta["step"] for name in ("DP-SAT", "DP-SGD")} == {
        3
    }
    assert "Whole: " in (tmp_path / "kept" / "report.html").read_text(encoding="utf-8")  # the shared ledger
    assert "other settings" in one_line(short(*options, "--resume", "--epsilon", 2))
    assert short(*options, "--resume")[0] == 0  # finished runs are not run again
    assert sum(read(tmp_path / "a.ledger").steps().values()) == 6


def one_line(ran: tuple[int, str, str]) -> str:
    code, _, err = ran
    assert code == 2
    assert err.startswith("saltflat: ")
    assert err.count("\n") == 1
    return err


def test_a_corrupt_ledger_is_one_line(short, tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with Ledger.open(path, dataset="digits") as ledger:
        ledger.run("before").charge(1.0, 20.0, steps=10)
    data = path.read_bytes().replace(b'"steps":10', b'"steps":1')
    path.write_bytes(data)
    assert "bring back a good copy" in one_line(short("--ledger", path))
    assert path.read_bytes() == data


def test_a_second_writer_is_one_line(short, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="digits") as ledger:
        ledger.run("first").charge(1.0, 20.0, steps=10)
        assert "wait until that run ends" in one_line(short("--ledger", tmp_path / "a.ledger"))
        ledger.run("goes on").charge(1.0, 20.0)
    assert read(tmp_path / "a.ledger").steps() == {(1.0, 20.0): 11}


@pytest.mark.parametrize("what", ["--ledger", "--out"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(
    short, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="digits") as ledger:
        ledger.run("before").charge(1.0, 20.0, steps=10)

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = {"--ledger": tmp_path / "a.ledger", "--out": tmp_path / "kept"}[what]
    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", SimpleNamespace(**{**vars(os), "fsync": full}))
        said = one_line(short(what, place))
    assert "No space left on device" in said
    assert "free the disk" in said
    assert read(tmp_path / "a.ledger").steps() == {(1.0, 20.0): 10}
    assert short("--ledger", tmp_path / "a.ledger", "--out", tmp_path / "kept")[0] == 0


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_ends_the_step_keeps_it_and_exits_with_128_and_its_number(
    tmp_path: Path, number: int
) -> None:
    arguments = ["demo", "--ledger", str(tmp_path / "a.ledger"), "--out", str(tmp_path / "kept")]
    code = f"import sys; sys.argv = {['saltflat', *arguments]}\nfrom saltflat.cli import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    first = tmp_path / "kept" / "DP-SAT" / "checkpoints" / "000001.json"
    limit = time.monotonic() + 60
    while not first.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert err.count("\n") == 1
    assert f"stopped by {signal.Signals(number).name} after step" in err
    assert f"to go on, run saltflat demo --resume --out {tmp_path / 'kept'} --ledger" in err
    kept = load(tmp_path / "kept" / "DP-SAT" / "checkpoints").meta["step"]
    assert f"after step {kept} of 200" in err
    assert sum(read(tmp_path / "a.ledger").steps().values()) == kept  # a clean end: settled to the step
