"""``saltflat federate``: a run over clients, from a recipe or a file with a user column; stopped, killed, resumed."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import saltflat as sf
from saltflat.cli import main
from saltflat.errors import Interrupted, PrivacyError, SettingError
from saltflat.privacy.record.costs import FixedSize
from saltflat.privacy.record.history import read
from saltflat.recipes import documents, shipped

FEW = ["--clients", "20", "--rate", "0.5", "--local-epochs", "1", "--delta", "1e-3", "--threads", "1"]
SHORT = ["--rounds", "3", *FEW]
SECRET = "secret77"
TABLE = """[target]
name = "buys"
values = ["no", "yes"]

[columns]
age = {low = 18, high = 100}
"""


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def saltflat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Said:
    """The command in this process: its exit code, and what it said, without regard to where lines were broken."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["saltflat", *words])
        code = 0
        try:
            main()
        except SystemExit as error:
            code = int(error.code or 0)
        said = capsys.readouterr()
        return code, " ".join(said.out.split()), said.err

    return run


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows of 30 people, from 1 to 9 each, which is the one at hand."""
    draw = random.Random(0)
    rows = [
        [f"{SECRET}-{person}", age := draw.randint(18, 90), "yes" if age > 50 else "no"]
        for person in range(30)
        for _ in range(draw.randint(1, 9))
    ]
    draw.shuffle(rows)
    write(tmp_path / "people.csv", [["person", "age", "buys"], *rows])
    write(tmp_path / "test.csv", [["person", "age", "buys"], *rows[:40]])
    (tmp_path / "people.toml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


OWN = [
    "people.csv",
    "--table",
    "people.toml",
    "--clients",
    "40",
    "--epsilon",
    "8",
    "--rounds",
    "3",
    "--threads",
    "1",
]


# a run


def test_a_run_keeps_everything(tmp_path: Path, saltflat: Said) -> None:
    out = tmp_path / "one"
    code, said, _ = saltflat("federate", "--out", str(out), *SHORT)
    assert code == 0
    for words in ("for each client", "add or remove one unit", "Poisson sampling at rate 0.5"):
        assert words in said
    for words in ("round 3 of 3", "clients/s"):
        assert words in said
    assert [row["step"] for row in metrics(out)] == [1, 2, 3]
    history = read(out / "ledger.jsonl")
    assert history.unit == ("client", "add-or-remove")
    assert [e.body["steps"] for e in history.entries if e.kind == "charge"] == [1, 1, 1]  # by round
    assert json.loads((out / "statement.json").read_text())["unit"] == "client"
    loaded = sf.load_run(out)
    assert loaded.recipe.clients is not None
    assert loaded.plan.size == loaded.recipe.clients.count == 20
    code, _, error = saltflat("federate", "--out", str(out), *SHORT)
    assert code == 2
    assert "saltflat federate --resume" in error


def test_the_clients_are_kept_and_read_back(
    tmp_path: Path, saltflat: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    from saltflat.recipes.build import partition_of, split_of
    from saltflat.runs.clients import units_of
    from saltflat.runs.layout import Folder

    out = tmp_path / "one"
    assert saltflat("federate", "--out", str(out), *SHORT)[0] == 0
    recipe = sf.recipes.read(out / "recipe.toml")
    split = split_of(recipe)
    before = partition_of(recipe, split)
    monkeypatch.setattr("saltflat.runs.clients.partition_of", None)  # nothing is worked out again
    kept = units_of(recipe, split, Folder(out))
    assert all(np.array_equal(a, b) for a, b in zip(kept.parts, before.parts, strict=True))  # type: ignore[attr-defined]


EXACTLY = ["--draw", "WithoutReplacement", "--epsilon", "20"]


def test_exactly_so_many_clients_are_drawn_where_asked_for(tmp_path: Path, saltflat: Said) -> None:
    out = tmp_path / "one"
    code, said, _ = saltflat("federate", "--out", str(out), *SHORT, *EXACTLY)
    assert code == 0
    assert "exactly 10 of 20 clients in a round, without replacement" in said
    assert "adjacency: replace one unit by another" in said
    (cost,) = read(out / "ledger.jsonl").steps()
    assert isinstance(cost, FixedSize)
    assert (cost.size, cost.batch) == (20, 10)
    assert read(out / "ledger.jsonl").unit == ("client", "replace")


def test_a_dry_run_touches_nothing(tmp_path: Path, saltflat: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, _ = saltflat("federate", "federated-mnist-dp-fedsam-top", "--dry-run")
    assert code == 0
    assert "epsilon 7.304 at delta 0.002; unit: one client" in said
    assert "50 of 500 clients expected in a round" in said
    assert list(tmp_path.iterdir()) == []


def test_the_report_has_its_rounds_and_norms_only_where_declared_public(
    tmp_path: Path, saltflat: Said
) -> None:
    for name, flags in {"told": ["--norms"], "untold": []}.items():
        assert saltflat("federate", "--out", str(tmp_path / name), *SHORT, *flags)[0] == 0
        page = tmp_path / f"{name}.html"
        assert saltflat("report", str(tmp_path / name), "--out", str(page))[0] == 0
        text = page.read_text()
        assert f"Rounds of {name}" in text
        assert "20 clients are declared" in text
        assert ("inconsistency" in text) == (name == "told")
        last, statement = metrics(tmp_path / name)[-1], (tmp_path / name / "statement.txt").read_text()
        assert (last["clip_factor"] is not None) == (name == "told")
        assert ("norms of clients" in statement) == (name == "told")
    assert 0 < metrics(tmp_path / "told")[-1]["clip_factor"] <= 1


def test_norms_are_kept_of_public_data_alone() -> None:
    from saltflat.landscape import STAYS_PRIVATE
    from saltflat.runs.execute import _updates

    with pytest.raises(PrivacyError, match="declared PUBLIC"):
        _updates(None, None, None, STAYS_PRIVATE, None)  # type: ignore[arg-type]


# a file of one's own


def test_a_csv_with_a_user_column_federates_in_one_command(people: Path, saltflat: Said) -> None:
    code, said, error = saltflat("federate", *OWN, "--user", "person", "--test", "test.csv")
    assert code == 0
    assert "for each client" in said
    assert "test accuracy" in said
    out = people / "runs" / "latest"
    assert not (out / "clients.npz").exists()  # who has what is private
    for file in out.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes()
    assert SECRET not in said + error
    recipe = sf.recipes.read(out / "recipe.toml")
    assert recipe.clients is not None
    assert (recipe.clients.user, recipe.clients.count, recipe.delta) == ("person", 40, 1e-5)


REFUSED: dict[str, tuple[list[str], str]] = {
    "no number of clients": (["people.csv", "--table", "people.toml", "--user", "person"], "--clients 5000"),
    "nobody's rows": (OWN, "--user COLUMN"),
    "no such column": ([*OWN, "--user", "name"], "has no column name"),
    "too few declared": ([*OWN, "--user", "person", "--clients", "29"], "more than the 29 clients"),
    "a column of a data set": (["--user", "person", "--data", "digits"], "is a column of a file of yours"),
    "no such split": (["--split", "dirichlett"], "there is no way to divide examples 'dirichlett'"),
    "data twice": ([*OWN, "--data", "digits"], "give the data once"),
    "no client": ([*SHORT, "--clients", "0"], "the declared number of clients"),
    "a size": ([*SHORT, "--set", "size=1437"], "clients.count is the declared number of units"),
    "views": ([*SHORT, "--set", "views=2"], "leave views and augment out"),
    "half a client": ([*SHORT, "--draw", "WithoutReplacement", "--rate", "0.33"], "a whole number"),
    "no rounds": ([*SHORT, "--rounds", "0"], "must be a whole number from 1"),
    "no clients": (["digits", "--epsilon", "3"], "this recipe has no clients"),
    "no such recipe": (["federated-mnits-blur"], "federated-mnist-blur"),
    "a local setting": ([*SHORT, "--local-lr", "-1"], "lr and weight_decay are 0 or more"),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    people: Path, saltflat: Said, words: list[str], said: str
) -> None:
    code, _, error = saltflat("federate", *words)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert SECRET not in error
    assert not (people / "runs").exists()


def test_a_row_without_a_user_is_refused(people: Path, saltflat: Said) -> None:
    with (people / "people.csv").open("a") as file:
        file.write(",33,no\n")
    code, _, error = saltflat("federate", *OWN, "--user", "person")
    assert code == 2
    assert "must say whose the row is" in error


def test_arrays_with_users_federate(people: Path, saltflat: Said) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    good = {"x": x, "y": (x[:, 0] > 0).astype(np.int64), "who": np.arange(60) % 12}
    np.savez(people / "mine.npz", **good)
    words = [
        "mine.npz",
        "--classes",
        "2",
        "--clients",
        "12",
        "--rounds",
        "2",
        "--user",
        "who",
        "--threads",
        "1",
    ]
    assert saltflat("federate", *words)[0] == 0
    np.savez(people / "mine.npz", **{**good, "who": np.arange(59)})
    code, _, error = saltflat("federate", *words, "--out", "two")
    assert code == 2
    assert "for each row of x" in error


def test_each_command_says_when_the_other_is_meant(
    tmp_path: Path, saltflat: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = saltflat("train", "federated-digits")
    assert code == 2
    assert "run saltflat federate" in error
    for command, words in {"doctor": [], "audit": ["--kind", "one-run"]}.items():
        code, _, error = saltflat(command, "federated-digits", *words)
        assert code == 2
        assert "is a client" in error
    assert list(tmp_path.iterdir()) == []


def test_help_names_the_flags_and_init(saltflat: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, said, _ = saltflat("federate", "--help")
    assert code == 0
    for word in (
        "--clients",
        "--user",
        "--split",
        "--rounds",
        "--rate",
        "--local-epochs",
        "--draw",
        "federate init",
    ):
        assert word in said
    assert "federate run" not in said
    code, said, _ = saltflat("federate", "init", "--help")
    assert code == 0
    assert "Flower app" in said


# stopped, killed, resumed


ROUNDS = 30
LONG = ["--rounds", str(ROUNDS), *FEW]


def started(out: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "saltflat", "federate", "--out", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def after_rounds(out: Path, least: int) -> None:
    for _ in range(1200):
        if (out / "metrics.jsonl").exists() and len(
            (out / "metrics.jsonl").read_text().splitlines()
        ) >= least:
            return
        time.sleep(0.05)
    raise AssertionError("no round was seen")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_stopped_or_killed_goes_on(
    tmp_path: Path, saltflat: Said, stop: signal.Signals
) -> None:
    out = tmp_path / "one"
    process = started(out, *LONG)
    after_rounds(out, 2)
    process.send_signal(stop)
    _, error = process.communicate(timeout=60)
    assert process.returncode in (130, -9)
    charged = sum(read(out / "ledger.jsonl").steps().values())
    words = ["federate", "--resume", "--out", str(out), "--threads", "1"]
    if stop == signal.SIGINT:
        said = error[error.index("saltflat federate") :].strip()
        assert shlex.split(said)[1:] == words
    assert saltflat(*words)[0] == 0
    total = sum(read(out / "ledger.jsonl").steps().values())
    wasted = total - ROUNDS
    assert charged <= total
    assert 0 <= wasted <= (0 if stop == signal.SIGINT else 1)  # the round that was cut off is charged again
    assert json.loads((out / "statement.json").read_text())["epsilon"] <= 8.0
    assert metrics(out)[-1]["step"] == ROUNDS


def test_a_stop_before_the_first_charge_does_not_send_anyone_to_resume(
    tmp_path: Path, saltflat: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **kwargs: object) -> None:
        raise Interrupted("stopped by SIGINT after step 0 of 3; it is kept", signal.SIGINT)

    monkeypatch.setattr("saltflat.runs.execute.trained", stopped)
    code, _, error = saltflat("federate", "--out", str(tmp_path / "one"), *SHORT)
    assert code == 130
    assert "after step 0 of 3; nothing was charged, and nothing is kept: run the same command again" in error
    assert not (tmp_path / "one").exists()


@pytest.mark.slow
def test_ctrl_c_is_left_to_the_server_by_its_workers(tmp_path: Path, saltflat: Said) -> None:
    """A terminal sends it to all of them: the round at hand is still finished, and the command goes on with workers."""
    out = tmp_path / "one"
    command = [sys.executable, "-m", "saltflat", "federate", "--out", str(out), *LONG]
    command += ["--model", "digits_cnn", "--workers", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        after_rounds(out, 2)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    words = shlex.split(error[error.index("saltflat federate") :])[1:]
    assert words == ["federate", "--resume", "--out", str(out), "--threads", "1", "--workers", "2"]
    assert saltflat(*words)[0] == 0
    assert sum(read(out / "ledger.jsonl").steps().values()) == ROUNDS


# recipes


FEDERATED = [name for name in documents.names() if name.startswith("federated-")]


@pytest.mark.parametrize("name", FEDERATED)
def test_shipped_recipes_read_and_write_themselves(name: str) -> None:
    recipe = shipped(name)
    assert recipe.clients is not None
    text = recipe.as_toml()
    assert sf.recipes.recipe.from_document(documents.parse(text, "x")) == recipe
    assert "saltflat federate" in documents.about(name)


def test_the_published_methods_are_recipes_of_one_federation() -> None:
    found = {name: shipped(name) for name in FEDERATED if "mnist" in name}
    assert len(found) == 7
    one = next(iter(found.values()))
    for recipe in found.values():
        assert recipe.clients is not None
        assert recipe.clients.split == sf.federated.Dirichlet(0.6)
        assert (recipe.rate, recipe.delta, recipe.phase[0].noise_multiplier) == (one.rate, one.delta, 0.95)
        plan = sf.recipes.plan_of(recipe, recipe.clients.count)
        assert plan.epsilon(2e-3) == pytest.approx(7.30, rel=0.005)
    assert len({(repr(r.clients.local), repr(r.phase[0].method)) for r in found.values() if r.clients}) == 7


def test_a_federation_says_what_is_wrong_with_it() -> None:
    recipe = shipped("federated-digits")
    for change, said in (
        ({"clients.count": 0}, "declared number of clients"),
        ({"clients.seed": -1}, "from 0 on"),
        ({"clients.split": {"Dirichlet": {"alpha": 0}}}, "alpha"),
        ({"clients.local.Local.climb": {"Climb": {"radius": -1}}}, "radius"),
        ({"clients.user": "person"}, "is a column of a file of yours"),
        ({"augment": ["Flip"]}, "leave views and augment out"),
    ):
        with pytest.raises(SettingError, match=said):
            recipe.but(change)
    with pytest.raises(SettingError, match="give one of them"):
        sf.recipes.Federation(count=3)


def test_the_page_has_a_recipe_that_is_one_and_the_noise_that_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "federated.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    recipe = sf.recipes.recipe.from_document(documents.parse(text, "the page"))
    assert recipe.clients is not None
    for name, noise in re.findall(
        r"^\| `(Poisson|WithoutReplacement)` \|.*\| ([\d.]+) \|$", page, flags=re.M
    ):
        plan = sf.recipes.build.draft_of(recipe.but({"draw": name}), recipe.clients.count)
        found = sf.calibrate(plan, epsilon=8, delta=2e-4)
        assert f"{found.phases[0].noise_multiplier:.2f}" == noise


@pytest.mark.parametrize(("clients", "few"), [("99", True), ("100", False)])
def test_few_clients_are_warned_of_before_anything_is_spent(clients: str, few: bool, saltflat: Said) -> None:
    code, out, _ = saltflat("federate", "--clients", clients, "--delta", "1e-3", "--dry-run")
    assert code == 0
    assert (f"Warning: {clients} clients are few" in out) is few
