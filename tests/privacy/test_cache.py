"""Cached files of private data: for their owner alone, and believed only under the owner's key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from saltflat.errors import DataError
from saltflat.privacy.record import cache, durable


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(params=[0o022, 0o000])
def umask(request: pytest.FixtureRequest):
    """A umask under which ordinary files are readable, or even writable, by all."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def write(path: Path, content: bytes = b"private") -> None:
    with cache.kept(path) as file:
        file.write_bytes(content)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("umask")
def test_nobody_else_can_read_it_at_any_time(tmp_path: Path) -> None:
    path = cache.place(tmp_path / "cache", "a.npy")
    with cache.kept(path) as file:
        assert mode(file) == 0o600, "while it is written"
        file.write_bytes(b"private")
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert cache.is_kept(path)
    assert path.read_bytes().startswith(b"private")
    key = tmp_path / "state" / "saltflat" / "cache.key"
    assert (mode(key), mode(key.parent)) == (0o600, 0o700)


@pytest.mark.parametrize(
    "what", ["a planted file", "a link", "another name", "another key", "a wider mode", "half"]
)
def test_what_this_user_did_not_write_is_not_believed(tmp_path: Path, what: str) -> None:
    path = cache.place(tmp_path / "cache", "a.npy")
    other = path.with_name("b.npy")
    write(path), write(other, b"other")
    if what == "a planted file":
        path.write_bytes(b"planted" + bytes(32))
    elif what == "a link":
        path.unlink(), path.symlink_to(other)
    elif what == "another name":
        path.write_bytes(other.read_bytes())
    elif what == "another key":
        (tmp_path / "state" / "saltflat" / "cache.key").write_bytes(bytes(32))
    elif what == "a wider mode":
        path.chmod(0o644)
    else:
        path.write_bytes(path.read_bytes()[:20])
    assert not cache.is_kept(path)
    whole = other.read_bytes()
    write(path)
    assert cache.is_kept(path)
    assert mode(path) == 0o600
    assert other.read_bytes() == whole, "no link was followed"


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = cache.place(tmp_path / "cache", "a.npy")
    with pytest.raises(KeyboardInterrupt), cache.kept(path):
        raise KeyboardInterrupt
    assert list(path.parent.iterdir()) == []


def test_a_key_that_others_may_read_is_replaced(tmp_path: Path) -> None:
    path = cache.place(tmp_path / "cache", "a.npy")
    write(path)
    key = tmp_path / "state" / "saltflat" / "cache.key"
    before = key.read_bytes()
    key.chmod(0o644)
    assert not cache.is_kept(path)
    assert key.read_bytes() != before
    assert mode(key) == 0o600


def test_a_folder_that_is_not_this_users_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "else").mkdir()
    own = tmp_path / "cache" / f"saltflat-{os.geteuid()}"
    own.symlink_to(tmp_path / "else")
    with pytest.raises(DataError, match="another user's folder"):
        cache.place(tmp_path / "cache", "a.npy")
    own.unlink()
    own.mkdir(mode=0o755)
    cache.place(tmp_path / "cache", "a.npy")
    assert mode(own) == 0o700


@pytest.mark.usefixtures("umask")
def test_whole_files_are_private_unless_said_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("planted")
    path.chmod(0o666)
    durable.replace(path, "new")
    durable.create(tmp_path / "b.txt", b"new")
    (tmp_path / ".c.txt.new").write_text("planted, and open elsewhere")
    with (tmp_path / ".c.txt.new").open() as planted:
        durable.replace(tmp_path / "c.txt", "new")
        assert planted.read() == "planted, and open elsewhere"
    assert {mode(tmp_path / f"{name}.txt") for name in "abc"} == {0o600}
    durable.replace(path, "new", mode=durable.RELEASED)
    assert mode(path) & 0o444 == 0o444
