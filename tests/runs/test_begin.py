"""A run that fails before its first charge was never there; one that was charged stays, whatever fails."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saltflat.data import digits
from saltflat.errors import LedgerError, ModelError, SettingError
from saltflat.privacy import Budget, Ledger, read
from saltflat.privacy.record import durable
from saltflat.recipes import shipped
from saltflat.recipes.build import plan_of
from saltflat.runs import execute as room
from saltflat.runs.begin import Taken, begin, begun
from saltflat.runs.execute import execute
from saltflat.runs.identity import identity_of
from saltflat.runs.layout import IDENTITY, Folder, head_of

RECIPE = shipped("digits").but({"phase.0.epochs": 1.0})
PLAN = plan_of(RECIPE, 1437)
COST = (PLAN.rate, PLAN.phases[0].noise_multiplier)


def refused(*_: Any, **__: Any) -> None:
    raise ModelError("units mix")


def stopped(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def charged(*_: Any, safeguards: Any, **__: Any) -> None:
    safeguards.meter.step(*COST)
    raise ModelError("after the first charge")


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Execute a run whose training is ``how``, which fails."""

    def call(folder: Folder, how: Any, error: type[BaseException] = ModelError, **settings: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(room, "trained", how)
            with pytest.raises(error):
                execute(RECIPE, PLAN, digits(), folder, **settings)

    return call


def tree(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in place.rglob("*")}


@pytest.mark.parametrize(("how", "error"), [(refused, ModelError), (stopped, KeyboardInterrupt)])
def test_a_start_that_failed_was_never_there(
    attempt: Callable[..., None], how: Any, error: type[BaseException], tmp_path: Path
) -> None:
    attempt(Folder(tmp_path / "runs" / "one"), how, error)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "notes.txt").write_text("mine")
    before = tree(tmp_path)
    attempt(Folder(tmp_path / "runs" / "one"), how, error)
    assert tree(tmp_path) == before
    execute(RECIPE, PLAN, digits(), Folder(tmp_path / "runs" / "one"))  # the corrected command
    assert Folder(tmp_path / "runs" / "one").model.exists()


def test_a_charge_keeps_everything(attempt: Callable[..., None], tmp_path: Path) -> None:
    folder = Folder(tmp_path / "one")
    attempt(folder, charged)
    assert {file.name for file in folder.path.iterdir()} == {
        folder.recipe.name,
        IDENTITY,
        folder.ledger.name,
        head_of(folder.ledger).name,
    }
    assert sum(read(folder.ledger).steps().values()) == 1
    with pytest.raises(SettingError, match="holds a run already; go on with --resume"):
        execute(RECIPE, PLAN, digits(), folder)
    before = tree(tmp_path)
    assert before
    attempt(folder, refused, resume=True)  # going on and failing takes nothing away
    assert set(tree(tmp_path)) == set(before)
    execute(RECIPE, PLAN, digits(), folder, resume=True)
    assert sum(read(folder.ledger).steps().values()) == PLAN.steps + 1


def test_a_ledger_that_was_there_stays(attempt: Callable[..., None], tmp_path: Path) -> None:
    folder = Folder(tmp_path / "one")
    folder.path.mkdir()
    with Ledger.open(folder.ledger, dataset="digits") as book:
        book.run(str(folder.path)).charge(*COST, steps=1)
    attempt(folder, refused)
    assert not folder.recipe.exists()
    assert read(folder.ledger).steps() == {COST: 1}


@pytest.mark.parametrize("there", [True, False])
def test_a_shared_ledger_with_other_charges_stays_and_a_new_one_goes(
    attempt: Callable[..., None], tmp_path: Path, there: bool
) -> None:
    shared, folder = tmp_path / "all.ledger", Folder(tmp_path / "one")
    if there:
        with Ledger.open(shared, dataset="digits") as book:
            book.run(str(folder.path)).charge(*COST, steps=3)  # of a run that is gone
    attempt(folder, refused, ledger=shared)
    assert not folder.path.exists()
    assert shared.exists() == head_of(shared).exists() == there
    attempt(folder, charged, ledger=shared)
    assert folder.recipe.exists()
    assert read(shared).steps() == {COST: 4 if there else 1}


def test_a_ledger_that_cannot_be_opened_is_known_before_anything_is_written(
    attempt: Callable[..., None], tmp_path: Path
) -> None:
    shared, folder = tmp_path / "all.ledger", Folder(tmp_path / "one")
    shared.write_bytes(b"nonsense\n")
    before = tree(tmp_path)
    attempt(folder, refused, LedgerError, ledger=shared)
    with Ledger.open(tmp_path / "mnist.ledger", dataset="mnist"):
        pass
    attempt(folder, refused, LedgerError, ledger=tmp_path / "mnist.ledger")
    with Ledger.open(tmp_path / "busy.ledger", dataset="digits"):
        attempt(folder, refused, LedgerError, ledger=tmp_path / "busy.ledger")
    assert set(tree(tmp_path)) - set(before) == {
        tmp_path / name for name in ("mnist.ledger", "mnist.ledger.head", "busy.ledger", "busy.ledger.head")
    }


def test_what_someone_else_has_open_stays(attempt: Callable[..., None], tmp_path: Path) -> None:
    folder = Folder(tmp_path / "one")
    held = []

    def others(*_: Any, safeguards: Any, **__: Any) -> None:
        safeguards.meter._ledger.close()  # as if this process had ended
        held.append(folder.ledger.open("rb+"))
        fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise ModelError("units mix")

    attempt(folder, others)
    held[0].close()
    assert folder.recipe.exists()
    assert folder.ledger.exists()


def test_of_two_starts_the_second_is_refused_and_removes_nothing(
    attempt: Callable[..., None], tmp_path: Path
) -> None:
    folder = Folder(tmp_path / "one")
    with begun(folder, RECIPE, folder.ledger):
        before = tree(tmp_path)
        attempt(folder, refused, SettingError)
        attempt(folder, refused, SettingError, resume=True)
        assert tree(tmp_path) == before
        (folder.path / "metrics.jsonl").touch()


@pytest.mark.parametrize("opened", [True, False])
def test_a_start_that_was_killed_does_not_block_the_folder(opened: bool, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "one")
    begin(folder, RECIPE)  # and the process is gone
    if opened:
        with Ledger.open(folder.ledger, dataset="digits", budget=Budget(epsilon=3, delta=1e-5)) as book:
            book.run(str(folder.path), identity=identity_of(folder.path))
    (folder.path / "notes.txt").write_text("mine")
    execute(RECIPE, PLAN, digits(), folder)
    assert folder.model.exists()
    assert (folder.path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "trace", ["charge in its ledger", "charge in a shared one", "checkpoints", "landscape"]
)
def test_a_run_that_left_a_trace_is_no_failed_start(trace: str, tmp_path: Path) -> None:
    folder, shared = Folder(tmp_path / "one"), tmp_path / "all.ledger"
    begin(folder, RECIPE)
    if "charge" in trace:
        with Ledger.open(shared if "shared" in trace else folder.ledger, dataset="digits") as book:
            book.run("another name", identity=identity_of(folder.path)).charge(*COST, steps=1)
    else:
        (folder.path / trace).mkdir()
    before = tree(tmp_path)
    with pytest.raises(Taken):
        execute(RECIPE, PLAN, digits(), folder, ledger=shared if "shared" in trace else None)
    assert tree(tmp_path) == before


def test_a_full_disk_takes_nothing_away(
    attempt: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = Folder(tmp_path / "one")
    attempt(folder, charged)
    before = tree(tmp_path)
    monkeypatch.setattr(durable, "create", full)
    attempt(folder, refused, SettingError)
    attempt(Folder(tmp_path / "two"), refused, OSError)
    assert tree(tmp_path) == before


def test_a_file_is_no_folder(attempt: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("theirs")
    with pytest.raises(SettingError, match="is a file; give a folder as --out"):
        begin(Folder(tmp_path / "file"), RECIPE)
    attempt(Folder(tmp_path / "file"), refused, SettingError)
    attempt(Folder(tmp_path / "file" / "below"), refused, OSError)
    assert (tmp_path / "file").read_text() == "theirs"
