"""Several runs of one recipe, with other first weights each, in one folder: what is where, and what all cost together.

out/repeats.json     how many, and with which seeds
out/ledger.jsonl     one ledger for all of them, unless another one was named
out/seed-0 ...       a run's folder each
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from saltflat.errors import DataError, SettingError
from saltflat.privacy.record import durable
from saltflat.runs.layout import Folder

MOST = 1000


@dataclass(frozen=True)
class Repeats:
    """The seeds of the first weights, a run for each; noise and samples are secret and differ anyway."""

    seeds: tuple[int, ...]

    @classmethod
    def of(cls, first: int, count: int) -> Repeats:
        """``count`` seeds from ``first`` on.

        >>> Repeats.of(3, 2).folders(Path("out"))
        [PosixPath('out/seed-3'), PosixPath('out/seed-4')]
        """
        if not 2 <= count <= MOST:
            raise SettingError(f"--repeats is a whole number from 2 to {MOST}; got {count}")
        return cls(tuple(range(first, first + count)))

    def folders(self, out: Path) -> list[Path]:
        return [out / f"seed-{seed}" for seed in self.seeds]

    def as_json(self) -> str:
        return json.dumps({"version": 1, "seeds": list(self.seeds)}) + "\n"


def read(out: Path) -> Repeats | None:
    """The repeats that a folder was begun with; None if it was not, DataError if that cannot be read."""
    place = Folder(out).repeats
    if not place.exists():
        return None
    try:
        told = json.loads(place.read_text(encoding="utf-8"))
        seeds = told["seeds"]
        if told["version"] != 1 or not seeds or not all(type(seed) is int for seed in seeds):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{place} is damaged: bring it back, or go on with each run by itself") from None
    return Repeats(tuple(seeds))


def begin(out: Path, repeats: Repeats) -> None:
    """Make the folder and write down what is in it; one that holds anything is refused.

    What a start left that was killed before its first run is as good as nothing.
    """
    if out.is_dir() and read(out) == repeats and not any(each.exists() for each in repeats.folders(out)):
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"{out} is not empty; give another --out, or go on with --resume")
    out.mkdir(parents=True, exist_ok=True)
    durable.create(Folder(out).repeats, repeats.as_json().encode(), mode=durable.RELEASED)


def runs_in(out: Path) -> list[Path]:
    """The folders of the repeats in ``out`` that are there; none if it holds no repeats.

    Read without trust, as a report does: whatever is no list of repeats is none.
    """
    try:
        found = read(out)
    except DataError:
        found = None
    there = (
        found.folders(out) if found else sorted(out.glob("seed-*")) if Folder(out).repeats.exists() else []
    )
    return [folder for folder in there if folder.is_dir()]
