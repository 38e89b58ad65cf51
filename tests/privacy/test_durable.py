"""A whole file is the old one or the new one, and nothing is left beside it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from power_cut import Disk, Recorder

from saltflat.privacy.record import durable

TROUBLE = [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]


@pytest.mark.parametrize(("data", "written"), [("ä\n", b"\xc3\xa4\n"), (b"\x00\r\n", b"\x00\r\n"), ("", b"")])
def test_text_and_bytes_arrive_as_they_are(tmp_path: Path, data: bytes | str, written: bytes) -> None:
    path = tmp_path / "a.txt"
    for _ in range(2):
        durable.replace(path, data)
        assert path.read_bytes() == written
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: type(trouble).__name__)
@pytest.mark.parametrize("failing", ["open", "write", "fsync", "replace", "close"])
@pytest.mark.parametrize("before", [None, "old"])
def test_whatever_fails_the_old_file_stays_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, trouble: BaseException, before: str | None
) -> None:
    path = tmp_path / "a.txt"
    if before is not None:
        path.write_text(before)

    def fail(*args: Any) -> None:
        if failing == "close":
            os.close(*args)
        raise trouble

    monkeypatch.setattr(durable, "os", SimpleNamespace(**{**vars(os), failing: fail}))
    with pytest.raises(type(trouble)):
        durable.replace(path, "new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == (
        {"a.txt": before} if before else {}
    )


def test_a_folder_in_the_way_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(IsADirectoryError):
        durable.replace(tmp_path / "a.txt", "new")
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_a_kill_left_is_overwritten_and_a_link_is_not_followed(tmp_path: Path) -> None:
    path, outside = tmp_path / "a.txt", tmp_path / "outside"
    (tmp_path / ".a.txt.new").write_text("half of a much longer text")
    durable.replace(path, "one")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"a.txt": "one"}
    outside.write_text("not ours")
    (tmp_path / ".a.txt.new").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        durable.replace(path, "two")
    assert (path.read_text(), outside.read_text()) == ("one", "not ours")
    assert (tmp_path / ".a.txt.new").is_symlink()  # it was not ours to remove either


def test_a_new_file_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.create(tmp_path / "a.txt", b"first")
    with pytest.raises(FileExistsError):
        durable.create(tmp_path / "a.txt", b"second")

    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "os", SimpleNamespace(**{**vars(os), "write": fail}))
    with pytest.raises(OSError, match="No space left"):
        durable.create(tmp_path / "b.txt", b"first")
    assert os.listdir(tmp_path) == ["a.txt"]


def survivors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """(files that were written, what is there) after a power cut at every point, in every way it may end."""
    recorder = Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", recorder)
        for text in ("1", "2", "3"):
            durable.replace(folder / "a.txt", text)
            recorder.begin_step()
    disks = [Disk(recorder.events[:end]) for end in range(len(recorder.events) + 1)]
    return [(disk.begun, left.get("a.txt", b"0").decode()) for disk in disks for left in disk.outcomes()]


def test_d3_after_a_power_cut_it_is_the_last_one_written_or_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = survivors(tmp_path, monkeypatch)
    assert len(found) > 30
    assert all(text in (str(written), str(written + 1)) for written, text in found)


def test_d3_catches_no_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "sync", lambda descriptor: None)
    found = survivors(tmp_path, monkeypatch)
    assert not all(text in (str(written), str(written + 1)) for written, text in found)
