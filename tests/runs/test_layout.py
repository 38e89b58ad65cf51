"""The lines of a run's metrics: what is written is what is read, torn or not."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from saltflat.runs.layout import MARKS, Folder, Reading, add_reading, readings

ONE = Reading(
    step=4,
    epoch=1.0,
    phase=0,
    epsilon=0.3,
    accuracy=0.5,
    error=2.5,
    seconds=0.1,
    examples_per_second=4000.0,
    update_norm=1.5,
    clip_factor=0.6,
    inconsistency=0.2,
    perplexity=30.0,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = Folder(tmp_path).metrics
    for step in (4, 8):
        add_reading(file, replace(ONE, step=step))
    assert readings(file) == ((ONE, replace(ONE, step=8)), ())
    assert None not in asdict(ONE).values()  # so every field is in the comparison


def test_a_line_after_a_torn_one_is_whole(tmp_path: Path) -> None:
    file = Folder(tmp_path).metrics
    add_reading(file, ONE)
    with file.open("ab") as torn:
        torn.write(b'{"step": 8, "epo')
    add_reading(file, replace(ONE, step=8))
    assert readings(file) == ((ONE, replace(ONE, step=8)), (2,))


def test_lines_of_other_versions(tmp_path: Path) -> None:
    file = Folder(tmp_path).metrics
    file.write_text('{"step": 3, "accuracy": "good", "phase": 1, "mood": 2}\n{"step": 1' + 400 * "0" + "}\n")
    assert readings(file) == ((Reading(3, phase=1),), (2,))


def test_a_folder_is_known_by_any_of_its_marks(tmp_path: Path) -> None:
    assert Folder(tmp_path).empty
    for mark in MARKS:
        place = tmp_path / mark.split(".")[0]
        place.mkdir()
        (place / mark).touch()
        assert not Folder(place).empty
