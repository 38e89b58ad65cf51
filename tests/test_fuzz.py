"""D8: whatever is handed in, it is a valid run, or one typed line that names the field; no odd value is just taken."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

import fuzzed
import fuzzed_files as files
import pytest
from fuzzed import PLACES, RUNS, USUAL, Case, Place, case, phase, with_one

from saltflat import settings


def odd_settings(random: Random) -> str:
    """Odd values in a constructor, an accountant, or a whole run."""
    return ended(case(random))


def ended(one: Case) -> str:
    names = [one.place.words.get(name, name).replace("_", " ") for name in one.odd]
    return files.ended(
        lambda: one.place.make(**one.given), wrong=list(one.wrong), touched=names, shown=str(one), plain=True
    )


HOW: dict[str, Callable[[Random], str]] = {
    "settings": odd_settings,
    "recipes": files.odd_recipe,
    "texts of recipes": files.odd_text,
    "flags": files.odd_flags,
    "dry runs": files.odd_dry_run,
}
ON_DISK: dict[str, Callable[[Random, Path], str]] = {
    "ledgers": files.odd_ledger,
    "checkpoints": files.odd_checkpoint,
    "data": files.odd_data,
}
FEW = {"settings": 220, "recipes": 60, "texts of recipes": 40, "flags": 12, "dry runs": 4}
FEW |= {"ledgers": 30, "checkpoints": 30, "data": 60}
MANY = {"settings": 5000, "recipes": 2000, "texts of recipes": 1000, "flags": 250, "dry runs": 150}
MANY |= {"ledgers": 400, "checkpoints": 400, "data": 800}


def troubles(kind: str, seeds: range, folder: Path) -> list[str]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            random = Random(f"{kind} {seed}")
            what = HOW[kind](random) if kind in HOW else ON_DISK[kind](random, fresh(folder))
            found += [f"{kind} {seed}: {what}"] if what else []
    return found


def fresh(folder: Path) -> Path:
    for file in folder.iterdir():
        file.unlink()
    return folder


@pytest.mark.parametrize("kind", FEW)
def test_d8(kind: str, tmp_path: Path) -> None:
    assert troubles(kind, range(FEW[kind]), tmp_path) == []


def test_d8_the_usual_mistakes_in_every_setting() -> None:
    cases = [with_one(place, name, odd) for place in PLACES for name in place.kinds for odd in USUAL]
    quick = [one for one in cases if one.wrong or one.place not in RUNS]
    assert [what for one in quick if (what := ended(one))] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY)
def test_d8_10_000(kind: str, tmp_path: Path) -> None:
    assert sum(MANY.values()) == 10_000
    assert troubles(kind, range(1_000_000, 1_000_000 + MANY[kind]), tmp_path) == []


def test_what_is_good_is_taken() -> None:
    """A library that refused everything would pass too."""
    for place in PLACES:
        place.make(**{name: kind.good[0] for name, kind in place.kinds.items()})
    files.draft_of(files.from_document(files.whole_recipe()), 1437)


def test_files_that_are_whole_are_read(tmp_path: Path) -> None:
    for name, (data, reader) in files.READERS.items():
        (tmp_path / name).write_bytes(data)
        assert reader(tmp_path / name) is not None


class TestMutants:
    """What D8 must notice."""

    def caught(self, kind: str, folder: Path) -> bool:
        return troubles(kind, range(400), folder) != []

    def test_a_comparison_that_lets_nan_through(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from saltflat.core import plan

        monkeypatch.setattr(plan, "is_number", lambda value, low=0.0, high=0.0: not value < low)
        monkeypatch.setattr(
            fuzzed, "PLACES", (Place("Phase", phase, {"noise_multiplier": fuzzed.NOT_NEGATIVE}),)
        )
        assert not settings.is_number(float("nan"))
        assert self.caught("settings", tmp_path)

    def test_an_error_that_does_not_name_its_field(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from saltflat.errors import SettingError

        def silent(**given: object) -> None:
            raise SettingError("this is not right")

        monkeypatch.setattr(fuzzed, "PLACES", (Place("silent", silent, {"size": fuzzed.POSITIVE}),))
        assert self.caught("settings", tmp_path)

    def test_a_traceback(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        halved = lambda size: size / 2
        monkeypatch.setattr(fuzzed, "PLACES", (Place("halved", halved, {"size": fuzzed.POSITIVE}),))
        assert self.caught("settings", tmp_path)
