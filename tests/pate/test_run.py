"""A run of PATE in its folder, and the command: what is kept, what is not, going on, and what is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from saltflat.data import digits
from saltflat.errors import BudgetError, DataError, LedgerError, ModelError, SettingError
from saltflat.pate import SGD, SmoothedStudent, gnmax, kept, teachers
from saltflat.pate import run as run_module
from saltflat.pate.recipe import from_document, names, read
from saltflat.pate.run import Shown, execute, read_answers, read_votes
from saltflat.pate.votes import private_counts
from saltflat.privacy import read as read_ledger
from saltflat.privacy.record.statement import from_json
from saltflat.recipes.documents import Document, strange
from saltflat.recipes.networks import Network
from saltflat.report.folder import gather
from saltflat.report.page import page
from saltflat.runs import evaluation
from saltflat.runs.begin import Taken
from saltflat.runs.layout import Folder

QUICK = replace(
    read("digits"),
    teachers=6,
    queries=40,
    answers=30,
    threshold=4.0,
    sigma1=2.0,
    sigma2=1.5,
    epsilon=None,
    model=Network("mlp", {"features": 64, "outputs": 10}),
    teacher=SGD(epochs=1),
    student=SmoothedStudent(epochs=2, batch_size=16, copies=2, sigma=0.01),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "one"
    execute(replace(QUICK, order=3.0, sigma2=4.0), Folder(path))
    return path


def test_what_a_run_leaves(finished: Path) -> None:
    found = {file.name for file in finished.iterdir()}
    assert found == {
        *(
            "recipe.toml",
            "identity.txt",
            "ledger.jsonl",
            "ledger.jsonl.head",
            "answers.jsonl",
            "metrics.jsonl",
        ),
        *("pate.json", "at-this-data.json", "statement.json", "statement.txt", "model.safetensors"),
        "evaluation.json",
    }
    released = kept.read(finished / kept.FILE)
    answers = read_answers(finished / kept.ANSWERS)
    assert (released.asked, released.answered) == (answers.asked, answers.answered)
    assert released.evaluated == 320
    told = evaluation.read(
        finished / "evaluation.json"
    )  # public examples that were no queries, and no others
    assert (told.count, told.hits / told.count) == (320, released.accuracy)
    assert from_json((finished / "statement.json").read_text()).epsilon == released.epsilon
    assert read(finished / "recipe.toml") == replace(QUICK, order=3.0, sigma2=4.0)


def test_the_statement_says_what_must_be_said(finished: Path) -> None:
    text = (finished / "statement.txt").read_text()
    for said in (
        "for each example (adjacency: add or remove one unit)",
        "public queries were answered",
        "the student's weights",
        "what the votes cost at this data",
        "the queries, which are public inputs",
        "teachers and votes, which are private and were not released",
        "1e-05",
    ):
        assert said in text
    recipe = read(finished / "recipe.toml")
    stated = from_json((finished / "statement.json").read_text()).epsilon
    book = read_ledger(finished / "ledger.jsonl")
    assert stated == pytest.approx(book.epsilon(1e-5))
    assert stated > recipe.mechanism().epsilon(1e-5)  # the release of the cost is in it


def test_the_report_has_released_figures_only(finished: Path) -> None:
    text = page(gather([finished]))
    assert "Votes of teachers" in text
    assert "of 40 public queries were answered" in text
    assert "another version" not in text
    assert "PATE" in text
    (finished / "private").mkdir(exist_ok=True)
    try:
        np.save(finished / "private" / "teacher-000000.npy", np.full(40, 7919, np.int16))
        assert page(gather([finished])) == text
    finally:
        (finished / "private" / "teacher-000000.npy").unlink()
        (finished / "private").rmdir()


def test_a_damaged_file_is_said(finished: Path) -> None:
    place = finished / kept.FILE
    whole = place.read_text()
    try:
        for damage in ("{", "[]", '{"asked": 3}', "NaN", json.dumps(json.loads(whole) | {"answered": 41})):
            place.write_text(damage)
            (run,) = gather([finished])
            assert run.pate.value is None
            assert run.pate.trouble.startswith("pate.json is damaged")
    finally:
        place.write_text(whole)


def test_a_folder_holds_one_run(finished: Path) -> None:
    before = {file: file.read_bytes() for file in finished.iterdir()}
    with pytest.raises(Taken):
        execute(QUICK, Folder(finished))
    assert {file: file.read_bytes() for file in finished.iterdir()} == before


class Stopped(Exception):
    pass


class TestGoingOn:
    def stop(self, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
        """Die as a killed process does: at once, with nothing settled."""
        calls = {"teacher": (teachers.Desk, "keep"), "noise": (gnmax, "noised")}
        owner, name = calls[where]
        real, left = getattr(owner, name), [9 if where == "noise" else 3]

        def once(*args, **settings):
            left[0] -= 1
            if left[0] < 0:
                raise Stopped
            return real(*args, **settings)

        monkeypatch.setattr(owner, name, once)

    @pytest.mark.parametrize("where", ["teacher", "noise"])
    def test_a_run_that_was_killed_goes_on_and_pays_once(
        self, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = Folder(tmp_path / "one")
        with monkeypatch.context() as patched:
            self.stop(patched, where)
            with pytest.raises(Stopped):
                execute(QUICK, folder)
        private = folder.path / kept.PRIVATE
        assert private.stat().st_mode & 0o777 == 0o700
        assert not folder.model.exists()
        history = read_ledger(folder.ledger)
        (claim,) = [entry.number for entry in history.entries if entry.body.get("claim")]
        used = history.drawn(claim)
        outcome = execute(QUICK, folder, resume=True)
        steps = read_ledger(folder.ledger).steps()
        assert steps == {QUICK.mechanism().cost: 1}
        assert outcome.statement.epsilon == pytest.approx(QUICK.mechanism().epsilon(1e-5))
        assert not private.exists()
        if (
            where == "noise"
        ):  # one block of 40 had begun: its answers are lost, and no query of it is asked again
            assert used == {"queries": 40, "answers": 30}
            assert (outcome.released.asked, outcome.released.answered) == (40, 0)

    def test_teachers_that_were_ready_are_not_trained_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed after three of six, the run trains three, and its votes are those of an unbroken run."""
        shown, votes = [], []
        real = run_module.label
        monkeypatch.setattr(
            run_module,
            "label",
            lambda given, *rest, **more: votes.append(given) or real(given, *rest, **more),
        )
        folder = Folder(tmp_path / "one")
        with monkeypatch.context() as patched:
            self.stop(patched, "teacher")
            with pytest.raises(Stopped):
                execute(QUICK, folder)
        files = sorted((folder.path / kept.PRIVATE).glob("teacher-*"))
        assert len(files) == 3
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        told = Shown(teachers=lambda done, total: shown.append(done))
        execute(QUICK, folder, resume=True, shown=told)
        assert shown == [3, 4, 5, 6]
        execute(QUICK, Folder(tmp_path / "two"))
        both = [private_counts(each, np.arange(40)) for each in votes]
        assert (both[0] == both[1]).all()

    def test_a_run_with_nothing_left_to_ask_trains_no_teacher(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed while the student learns, or after the end: the answers are on disk, and teachers of no use."""
        folder = Folder(tmp_path / "one")
        first = execute(QUICK, folder)
        assert not (folder.path / kept.PRIVATE).exists()
        monkeypatch.setattr(teachers.Teaching, "teach", None)
        shown: list[int] = []
        told = Shown(teachers=lambda done, total: shown.append(done))
        again = execute(QUICK, folder, resume=True, shown=told)
        assert not shown
        assert again.released == first.released
        assert again.statement == first.statement

    def test_an_older_ledger_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = Folder(tmp_path / "one")
        with monkeypatch.context() as patched:
            self.stop(patched, "teacher")
            with pytest.raises(Stopped):
                execute(QUICK, folder)
        (folder.path / kept.ANSWERS).write_text('{"asked": 3, "queries": [0], "labels": [1]}\n')
        with pytest.raises(LedgerError, match="older copy"):
            execute(QUICK, folder, resume=True)
        (folder.path / kept.ANSWERS).write_text('{"asked": 0, "queries": [0], "labels": [1]}\n')
        with pytest.raises(DataError, match="damaged"):
            execute(QUICK, folder, resume=True)

    def test_a_shared_ledger_refuses_what_does_not_fit(self, tmp_path: Path) -> None:
        from saltflat.privacy import Budget, Ledger

        shared = tmp_path / "all.ledger"
        room = 1.2 * QUICK.mechanism().epsilon(1e-5)
        with Ledger.open(shared, dataset="digits", budget=Budget(epsilon=room, delta=1e-5)):
            pass
        execute(QUICK, Folder(tmp_path / "one"), ledger=shared)
        with pytest.raises(BudgetError):
            execute(QUICK, Folder(tmp_path / "two"), ledger=shared)
        assert not (tmp_path / "two").exists()

    @pytest.mark.parametrize(
        "changes", [{"answers": None}, {"order": 3.0, "sigma2": 3.0}], ids=["filter", "order"]
    )
    def test_the_budget_is_kept_by_every_way_to_count(self, changes: dict, tmp_path: Path) -> None:
        recipe = replace(QUICK, epsilon=30.0, **changes)
        outcome = execute(recipe, Folder(tmp_path / "one"))
        assert 0.99 * 30 <= outcome.on_record <= 30
        assert outcome.statement.epsilon == pytest.approx(outcome.on_record)
        assert (outcome.released.at_this_data is not None) == ("order" in changes)

    def test_a_network_that_does_not_fit_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError):
            execute(replace(QUICK, model=Network("tutorial_cnn")), Folder(tmp_path / "one"))
        with pytest.raises(SettingError, match="public test examples"):
            execute(replace(QUICK, queries=400), Folder(tmp_path / "one"))
        assert not (tmp_path / "one").exists()


class TestUsers:
    def test_of_an_npz_the_unit_is_the_user(self, tmp_path: Path) -> None:
        split = digits()
        arrays = {
            "x": split.train.inputs[:90].numpy(),
            "y": split.train.targets[:90].numpy(),
            "x_test": split.test.inputs[:60].numpy(),
            "y_test": split.test.targets[:60].numpy(),
        }
        np.savez(tmp_path / "mine.npz", **arrays, who=np.arange(90) % 7)
        own = {"data": str(tmp_path / "mine.npz"), "classes": 10, "size": 5000, "delta": 1e-6, "users": "who"}
        outcome = execute(replace(QUICK, **own), Folder(tmp_path / "one"))
        assert "for each user" in outcome.statement.as_text()
        assert read_ledger(tmp_path / "one" / "ledger.jsonl").unit == ("user", "add-or-remove")
        with pytest.raises(DataError, match="no array"):
            execute(replace(QUICK, **{**own, "users": "whose"}), Folder(tmp_path / "two"))
        assert not (tmp_path / "two").exists()

    def test_of_a_csv_too(self, tmp_path: Path) -> None:
        rows = [
            "a,b,label,who",
            *(f"{k % 5},{k % 3},{'yes' if k % 2 else 'no'},person{k % 6}" for k in range(60)),
        ]
        (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
        (tmp_path / "mine.toml").write_text(
            '[target]\nname = "label"\nvalues = ["no", "yes"]\n'
            "[columns]\na = {low = 0, high = 5}\nb = {low = 0, high = 3}\n"
        )
        own = {"data": "mine.csv", "table": "mine.toml", "test": "mine.csv", "users": "who", "size": 5000}
        recipe = replace(QUICK, **own, delta=1e-6, model=Network("mlp"))
        outcome = execute(recipe, Folder(tmp_path / "one"), data_dir=tmp_path)
        assert outcome.statement.unit == "user"
        with pytest.raises(DataError, match="no column 'whom'"):
            execute(replace(recipe, users="whom"), Folder(tmp_path / "two"), data_dir=tmp_path)


class TestVotesOfOthers:
    def test_a_file_is_read_without_pickle(self, tmp_path: Path) -> None:
        table = np.tile(np.arange(50) % 10, (30, 1))
        np.save(tmp_path / "votes.npy", table)
        votes = read_votes(tmp_path / "votes.npy", queries=40, classes=10)
        assert (votes.teachers, votes.queries) == (30, 40)
        recipe = replace(QUICK, votes=str(tmp_path / "votes.npy"), threshold=20.0, teachers=30)
        outcome = execute(recipe, Folder(tmp_path / "one"))
        assert outcome.released.answered == 30
        assert "which no file shows" in outcome.statement.as_text()
        with pytest.raises(SettingError, match="30 rows"):
            execute(replace(recipe, teachers=29), Folder(tmp_path / "two"))
        assert not (tmp_path / "two").exists()
        np.save(tmp_path / "bad.npy", np.array([[object()]]), allow_pickle=True)
        (tmp_path / "torn.npy").write_bytes((tmp_path / "votes.npy").read_bytes()[:300])
        np.save(tmp_path / "flat.npy", np.arange(5))
        for name in ("bad.npy", "torn.npy", "flat.npy"):
            with pytest.raises(DataError, match=name):
                read_votes(tmp_path / name, queries=3, classes=10)
        with pytest.raises(DataError, match="60 queries"):
            read_votes(tmp_path / "votes.npy", queries=60, classes=10)


class TestRecipes:
    @pytest.mark.parametrize("name", names())
    def test_shipped_ones_are_whole_and_come_back(self, name: str) -> None:
        recipe = read(name)
        document = recipe.as_document()
        assert from_document(Document(document)) == recipe
        assert strange(document) == ""
        found = recipe.mechanism().epsilon(recipe.delta)
        assert 0.99 * recipe.epsilon <= found <= recipe.epsilon

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"teachers": 1}, "teachers"),
            ({"queries": 0}, "queries"),
            ({"answers": 10**6}, "answers"),
            ({"epsilon": float("inf")}, "epsilon"),
            ({"delta": 1.0}, "delta"),
            ({"users": "who"}, "users"),
            ({"seed": -1}, "seed"),
            ({"sigma2": 0.0}, "sigma2"),
            ({"order": 1.0}, "order"),
            ({"student": {"sigma": -1.0}}, "sigma"),
            ({"student": {"jitter": 1.0}}, "jitter"),
            ({"spare": 8}, "spare"),
            ({"version": 1}, "no recipe of PATE"),
        ],
    )
    def test_wrong_ones(self, changes: dict, said: str) -> None:
        with pytest.raises(SettingError, match=said):
            from_document(Document({**read("digits").as_document(), **changes}))

    def test_a_recipe_of_pate_is_no_other(self) -> None:
        from saltflat.recipes.recipe import from_document as other

        with pytest.raises(SettingError, match="saltflat pate"):
            other(Document(read("digits").as_document()))

    def test_without_answers_it_is_a_filter(self) -> None:
        document = read("digits").as_document()
        del document["answers"]
        recipe = from_document(Document(document))
        assert recipe.mechanism().epsilon(1e-5) == pytest.approx(recipe.epsilon, rel=1e-6)
        with pytest.raises(SettingError, match="answers"):
            from_document(Document({**document, "order": 3.0}))


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "saltflat", "pate", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


class TestCommand:
    few = (
        "--teachers",
        "6",
        "--queries",
        "40",
        "--answers",
        "30",
        "--set",
        "teacher.epochs=1",
        "--set",
        "student.epochs=2",
    )

    def test_a_run_by_flags_and_going_on(self, tmp_path: Path) -> None:
        done = command(*self.few, "--out", "one", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        for said in (
            "unit: one example",
            "teachers: 6 of 6",
            "public queries were answered",
            "On record in the ledger",
        ):
            assert said in done.stdout
        from typer.testing import CliRunner

        from saltflat.cli import app

        again = CliRunner().invoke(
            app, ["pate", "--resume", "--out", str(tmp_path / "one"), "--teachers", "7"]
        )
        assert "has another teachers; leave it out" in str(again.exception)

    def test_a_dry_run_touches_nothing_and_mistakes_are_one_line(self, tmp_path: Path) -> None:
        from typer.testing import CliRunner

        from saltflat.cli import app

        runner = CliRunner()
        dry = runner.invoke(app, ["pate", "--dry-run", "--epsilon", "5", "--out", str(tmp_path / "one")])
        assert "epsilon 4.9" in dry.output or "epsilon 5" in dry.output
        assert not (tmp_path / "one").exists()
        for words in (
            ["--epsilon", "x"],
            ["--set", "a"],
            ["nowhere.toml"],
            ["--resume", "--out", str(tmp_path / "no")],
        ):
            found = runner.invoke(app, ["pate", *words])
            assert isinstance(found.exception, (SettingError, DataError)), words
            assert "\n" not in str(found.exception)


@pytest.mark.slow
def test_the_quick_start_learns(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    outcome = execute(read("digits"), Folder(tmp_path / "one"))
    assert outcome.released.accuracy > 0.5
