"""How a run comes into its folder, and how one that fails before its first step leaves no trace there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from saltflat.errors import DataError, SaltflatError, SettingError
from saltflat.privacy import read as read_ledger
from saltflat.privacy.record import durable
from saltflat.recipes import Recipe, read
from saltflat.runs.identity import begin_identity, identity_of
from saltflat.runs.layout import CHECKPOINTS, IDENTITY, MARKS, Folder, head_of


class Written(Protocol):
    """What decides a run and can be written down: a `Recipe`, or that of another kind of run."""

    def as_toml(self) -> str: ...


SECOND = (
    "A run in another folder spends on the same data once more, and its own ledger does not count this one's"
)


class Taken(SettingError):
    """The folder holds a run already."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(
            f"{folder.path} holds a run already; go on with --resume, or give another --out. {SECOND}"
        )


class Busy(SettingError):
    """Another process works in the folder."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(
            f"another process works in {folder.path}; wait for it, or give another --out. {SECOND}"
        )


def begin(folder: Folder, recipe: Written) -> None:
    """Make the folder and write the recipe down; a folder with a run in it is refused.

    *Guarantee*: of several that begin in one folder at once, one does.
    """
    _make(folder)
    _write(folder, recipe)


def _write(folder: Folder, recipe: Written) -> None:
    try:
        durable.create(folder.recipe, recipe.as_toml().encode(), mode=durable.RELEASED)
    except FileExistsError:
        raise Taken(folder) from None


def _make(folder: Folder) -> None:
    """The folder, with an identity: a folder that has a recipe has one."""
    if folder.path.exists() and not folder.path.is_dir():
        raise SettingError(f"{folder.path} is a file; give a folder as --out")
    for place in reversed(_not_there(folder.path)):
        place.mkdir(exist_ok=True)
        durable.sync_folder(place.parent)
    begin_identity(folder.path)


def resumed(folder: Folder) -> Recipe:
    """The recipe of the run that is in the folder."""
    if not folder.recipe.exists():
        raise DataError(f"{folder.path} holds no run to go on with; leave --resume out to begin one")
    return read(folder.recipe)


@contextmanager
def begun(folder: Folder, recipe: Written, ledger: Path) -> Iterator[None]:
    """Begin a run that is charged to ``ledger``; whatever ends it before its first charge, it was never there.

    What a start left that was killed before its first charge is taken away first.

    *Guarantee*: nothing is removed that was there before, nor a ledger that anything was charged to. Once a step of
    this run was charged, everything stays.
    """
    if folder.recipe.exists():
        _clear(folder, ledger)
    name = str(folder.path)
    folders = _not_there(folder.path)
    files = [file for file in (ledger, head_of(ledger)) if not file.exists()]
    own = (folder.recipe, folder.path / IDENTITY, folder.clients, folder.preprocessing)
    made = [file for file in own if not file.exists()]
    before = _charges(ledger, name)
    try:
        _make(folder)
    except BaseException:
        with suppress(OSError):
            _remove_empty(folders)
        raise
    with held(folder):  # from before the recipe is there until after it is gone
        try:
            _write(folder, recipe)
            yield
        except Taken:  # by another start, just now: the recipe that is there is not this one
            raise
        except BaseException:
            with suppress(SaltflatError, OSError):  # the error at hand is the news: what cannot be told stays
                if _charges(ledger, name) == before and _dropped(ledger, files):
                    for file in made:  # after the ledger: until now the recipe kept other starts away
                        file.unlink(missing_ok=True)
                    _remove_empty(folders)
            raise


@contextmanager
def held(folder: Folder) -> Iterator[None]:
    """Hold the folder for a run, so that nobody takes it for a start that failed; `Busy` if someone else does.

    The system lets go of it when the process ends, however that happens. A folder of an older version has no identity,
    and is not held.
    """
    place = folder.path / IDENTITY
    if not place.exists():
        yield
        return
    with place.open("rb+") as file:  # some file systems lock only what may be written
        try:
            durable.lock(file.fileno(), place)
            same = os.path.samestat(os.fstat(file.fileno()), os.stat(place))
        except OSError:  # someone else has it, or has taken it away meanwhile
            raise Busy(folder) from None
        if not same:  # a start that failed took it away meanwhile
            raise Busy(folder)
        yield


def _clear(folder: Folder, ledger: Path) -> None:
    """Take away what a start left that was killed before its first charge; `Taken` if it is any more than that.

    *Guarantee*: a run that goes on, that was charged, or that left anything but what a start writes, stays.
    """
    left = {file.name for file in folder.path.iterdir()}
    own = {folder.recipe.name, IDENTITY, folder.ledger.name, head_of(folder.ledger).name}
    if ({*MARKS, CHECKPOINTS} - own) & left or IDENTITY not in left:
        raise Taken(folder)
    with held(folder):
        identity = identity_of(folder.path)
        if any(_ever_charged(book, identity) for book in {ledger, folder.ledger}):
            raise Taken(folder)
        files = [file for file in (folder.ledger, head_of(folder.ledger)) if file.exists()]
        try:
            dropped = _dropped(folder.ledger, files)
        except OSError:  # someone has it open
            raise Taken(folder) from None
        if not dropped:
            raise Taken(folder)
        for file in (folder.recipe, folder.path / IDENTITY, folder.clients, folder.preprocessing):
            file.unlink(missing_ok=True)


def _not_there(path: Path) -> list[Path]:
    """The folders that would have to be made, the innermost first."""
    return [place for place in (path, *path.parents) if not place.exists()]


def _charges(ledger: Path, name: str) -> int:
    """How many lines of a ledger charge a run of this name."""
    if not ledger.exists():
        return 0
    entries = read_ledger(ledger).entries
    runs = {entry.number for entry in entries if entry.kind == "run" and entry.body["name"] == name}
    return sum(entry.kind == "charge" and entry.body["run"] in runs for entry in entries)


def _ever_charged(ledger: Path, identity: str | None) -> bool:
    """Whether a ledger has a step of the run with this identity on record."""
    entries = read_ledger(ledger).entries if ledger.exists() else []
    runs = {each.number for each in entries if each.kind == "run" and each.body.get("identity") == identity}
    return any(each.kind == "charge" and each.body["run"] in runs for each in entries)


def _dropped(ledger: Path, files: Sequence[Path]) -> bool:
    """Remove these files of a ledger, unless anything was charged to it; an OSError if someone else has it open."""
    if ledger not in files or not ledger.exists():
        return True
    with ledger.open("rb+") as file:
        durable.lock(file.fileno(), ledger)  # as its writers do: nobody charges it meanwhile
        if any(entry.kind == "charge" for entry in read_ledger(ledger).entries):
            return False
        for each in files:
            each.unlink(missing_ok=True)
    return True


def _remove_empty(folders: Sequence[Path]) -> None:
    for place in folders:
        with suppress(OSError):  # it was not made, or someone has put something there
            place.rmdir()
