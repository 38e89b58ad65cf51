"""Tables of one's own on the command line: trained on, refused in one line, never told from."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from saltflat.cli import main
from saltflat.recipes import read

SECRET = "secret77"
TABLE = """[target]
name = "buys"
values = ["no", "yes"]

[columns]
age = {low = 18, high = 100}
hours = {low = 0, high = 80, missing = 40}
job = {values = ["clerk", "nurse", "cook"]}
"""
PRICE = TABLE.replace('name = "buys"\nvalues = ["no", "yes"]', 'name = "price"\nlow = 0\nhigh = 100')
HEADER = ["age", "job", "hours", "price", "buys"]


def row(draw: random.Random) -> list[object]:
    age, job, hours = draw.randint(18, 90), draw.choice(["clerk", "nurse", "cook"]), draw.randint(0, 60)
    score = (age - 50) / 20 + (job == "nurse") - (hours - 30) / 20
    return [age, job, hours if draw.random() < 0.9 else "", 50 + 10 * score, "yes" if score > 0 else "no"]


def write(path: Path, rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table, its files and arrays, which is the one at hand."""
    draw = random.Random(0)
    write(tmp_path / "mine.csv", [HEADER, *(row(draw) for _ in range(450))])
    write(tmp_path / "test.csv", [HEADER, *(row(draw) for _ in range(100))])
    (tmp_path / "mine.toml").write_text(TABLE)
    (tmp_path / "price.toml").write_text(PRICE)
    x = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    np.savez(tmp_path / "numbers.npz", x_train=x, y_train=x.sum(1), x_test=x[:50], y_test=x[:50].sum(1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, and what was said."""
    before = sys.argv
    sys.argv = ["saltflat", *words]
    try:
        with pytest.raises(SystemExit) as stopped:
            main()
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return int(stopped.value.code or 0), said.out, said.err


CSV = ["--data", "mine.csv", "--table", "mine.toml", "--size", "500"]
LAST = ["--epsilon", "8", "--epochs", "9", "--out", "one"]


def test_a_csv_becomes_a_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "train", *CSV, "--test", "test.csv", *LAST)
    assert code == 0, err
    assert float(re.findall(r"test accuracy ([\d.]+)%", out)[0]) > 60
    recipe = read(here / "one" / "recipe.toml")  # whole: it needs no table file to make its network
    assert recipe.model.settings["features"] == 5
    assert (recipe.classes, recipe.size) == (2, 500)
    assert (recipe.phase[0].clip_norm, recipe.phase[0].optimizer.lr) == (3.0, pytest.approx(0.1586, abs=1e-3))
    code, out, err = run(capsys, "train", "--resume", *CSV, "--model", "mlp", "--out", "one")
    assert code == 2
    assert "has model linear, not mlp" in err


def test_numbers_are_targets_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "mine.csv", "--table", "price.toml", "--size", "500", "--test", "test.csv"]
    code, out, err = run(capsys, "train", *words, *LAST)
    assert code == 0, err
    assert float(re.findall(r"test error ([\d.]+)", out)[-1]) < 20  # of a range of 100
    last = json.loads((here / "one" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] is None
    words = ["--data", "numbers.npz", "--target-range", "[-10, 10]", "--size", "300"]
    code, out, err = run(capsys, "train", *words, *LAST[:-1], "two")
    assert code == 0, err
    assert "test error" in out
    code, out, err = run(capsys, "landscape", "one")
    assert (code, err.count("\n")) == (2, 1)
    assert "its target is a number" in err


def test_without_test_rows_nothing_is_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "mine.npz", "--classes", "3", "--size", "300"]
    code, out, err = run(capsys, "train", *words, *LAST)
    assert code == 0, err
    assert "no test examples, so no accuracy was taken" in out
    code, _, err = run(capsys, "landscape", "one")
    assert (code, err.count("\n")) == (2, 1)
    assert "has no test examples to look at" in err
    assert json.loads((here / "one" / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"] is None


def test_a_dry_run_tries_the_network_and_reads_no_row(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.csv").unlink()
    code, out, err = run(capsys, "train", *CSV, "--dry-run")
    assert code == 0, err
    assert "made-up rows" in out
    for words, said in (
        (["--data", "mnist"], "digits_cnn does not take mnist's examples of shape (1, 28, 28)"),
        (["--data", "adult", "--model", "digits_cnn"], "does not take adult's examples of shape (104,)"),
        (
            [*CSV, "--model", "{mlp = {outputs = 1}}"],
            "gives outputs of shape (1,), and mine.csv has 2 classes",
        ),
        ([*CSV, "--model", "{mlp = {features = 9}}"], "does not take mine.csv's examples of shape (5,)"),
    ):
        code, _, err = run(capsys, "train", *words, "--dry-run")
        assert (code, err.count("\n")) == (2, 1)
        assert said in err
    assert run(capsys, "train", "--data", "adult", "--dry-run")[0] == 0
    assert not (here / "runs").exists()


ROW = [30, "cook", 20, 50, "yes"]
WRONG = [
    (["--data", "mine.csv", "--size", "500"], "needs a table file"),
    (["--data", "mine.csv", "--table", "mine.toml"], "how many rows mine.csv has is private"),
    ([*CSV[:-1], "20"], "has more than the 20 examples that were declared"),
    ([*CSV, "--classes", "3"], "declared by mine.toml"),
    (["--data", "mine.feather", "--size", "500"], "save it as .npz"),
    (["--data", "mine.parquet", "--size", "500"], "mine.parquet needs a table file"),
    (["--data", "mine.npz", "--size", "500"], "say what y in mine.npz is"),
    (["--data", "mine.npz", "--size", "500", "--classes", "2"], "labels must lie in 0 to 1; some do not"),
    (["--data", "mine.npz", "--size", "500", "--classes", "1"], "classes must be 2 or more"),
    (["--data", "mine.npz", "--size", "500", "--target-range", "[1, 0]"], "low < high"),
    (["--data", "no.npz", "--size", "500", "--classes", "2"], "does not exist"),
    (["--data", "digits", "--classes", "2"], "is for a file of yours"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_a_wrong_request_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, _, err = run(capsys, "train", *words, *LAST)
    assert (code, err.count("\n")) == (2, 1), err
    assert said in err
    assert not (here / "one").exists()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([HEADER[:-1], ROW[:-1]], "no column buys; its columns are age, job, hours, price"),
        ([[SECRET, *ROW[1:]], ROW], "no column age, hours, job, buys; its first line names none"),
        (
            [HEADER, [SECRET, *ROW[1:]]],
            "on a screen of your own): column 'age' must hold a number",
        ),
        (
            [HEADER, ["nan", *ROW[1:]]],
            "on a screen of your own): column 'age' must hold a number",
        ),
        (
            [HEADER, ["", *ROW[1:]]],
            "on a screen of your own): column 'age' must hold a number",
        ),
        (
            [HEADER, [*ROW[:-1], SECRET]],
            "on a screen of your own): the label 'buys' must be one of no, yes",
        ),
        (
            [HEADER, ROW[:-1]],
            "on a screen of your own): expected 5 values, got 4",
        ),
        ([HEADER], "holds no row"),
    ],
)
def test_wrong_rows_are_told_without_what_stands_in_them(
    here: Path, capsys: pytest.CaptureFixture[str], rows: list[list[object]], said: str
) -> None:
    write(here / "mine.csv", rows)
    code, out, err = run(capsys, "train", *CSV, *LAST)
    assert (code, err.count("\n")) == (2, 1), err
    assert said in err
    assert SECRET not in out + err
    assert not (here / "one").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("low = 18", "lo = 18", "column 'age' has no setting 'lo'"),
        ("low = 18", 'low = "a"', "column 'age': low takes a number"),
        ("low = 18", "low = 200", "column 'age' needs a finite low < high"),
        ('values = ["no", "yes"]', 'values = ["no"]', "the target needs two values or more"),
        ('name = "buys"', 'name = "age"', "column 'age' is declared twice"),
        ("[columns]", "[rows]", "has no setting 'rows'"),
        ("[target]", "[target", "is no table file"),
        ("missing = 40", "missing = 400", "missing must lie in"),
    ],
)
def test_a_wrong_table_file_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    (here / "mine.toml").write_text(TABLE.replace(old, new))
    code, _, err = run(capsys, "train", *CSV, "--dry-run")
    assert (code, err.count("\n")) == (2, 1), err
    assert said in err


X, Y = np.zeros((20, 3), np.float32), np.zeros(20, np.int64)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": X}, "needs arrays x and y, or x_train and y_train; it has a"),
        ({"x": X, "y": Y, "x_test": X}, "has no array y_test"),
        ({"x": np.full_like(X, np.nan), "y": Y}, "x holds a NaN or an infinity"),
        ({"x": X.astype(str), "y": Y}, "x must hold numbers"),
        ({"x": X, "y": Y.astype(float)}, "y holds float64, and classes are whole numbers"),
        ({"x": X, "y": Y[:-1]}, "x and y do not have the same number of rows"),
        ({"x": X[:0], "y": Y[:0]}, "holds no row"),
        ({"x": X[:, 0], "y": Y}, "x must hold numbers, one row"),
        ({"x": X, "y": Y + 7}, "labels must lie in 0 to 1; some do not"),
    ],
)
def test_wrong_arrays_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, np.ndarray], said: str
) -> None:
    np.savez(here / "mine.npz", **arrays)
    words = ["--data", "mine.npz", "--classes", "2", "--size", "500"]
    code, _, err = run(capsys, "train", *words, *LAST)
    assert (code, err.count("\n")) == (2, 1), err
    assert said in err
    assert not (here / "one").exists()


def test_after_a_signal_the_printed_command_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *CSV, "--epsilon", "8", "--epochs", "300", "--out", "my runs/one", "--threads", "1"]
    process = subprocess.Popen([sys.executable, "-m", "saltflat", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (here / "my runs" / "one" / "metrics.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    command = shlex.split(errors.split("to go on, run ")[1])
    assert command == ["saltflat", "train", "--resume", "--out", "my runs/one", "--threads", "1"]
    _, _, blocked = run(capsys, *words)
    assert shlex.split(blocked.split("To go on, run ")[1]) == command
    assert run(capsys, *command[1:])[0] == 0
    assert (here / "my runs" / "one" / "model.safetensors").exists()


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    import saltflat

    assert run(capsys, "--version") == (0, f"saltflat {saltflat.__version__}\n", "")
