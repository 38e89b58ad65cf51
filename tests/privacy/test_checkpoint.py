"""Checkpoints are whole or not there (D3), damage is noticed (D5), hostile files do nothing (D7)."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from power_cut import Disk, Recorder

from saltflat.errors import DataError, SettingError
from saltflat.privacy.record import checkpoint as module
from saltflat.privacy.record import durable
from saltflat.privacy.record.checkpoint import Checkpoint, load, save
from saltflat.tree import Tree


def trees(seed: int = 0) -> dict[str, Tree]:
    torch.manual_seed(seed)
    flat = torch.randn(10)
    return {
        "params": {"layer.weight": flat[:6].view(2, 3), "layer.bias": flat[6:], "a/b": torch.ones(())},
        "state": {
            "half": torch.randn(3).bfloat16(),
            "count": torch.tensor([seed]),
            "none": torch.zeros(0, 2),
        },
        "empty": {},
    }


def same(found: Checkpoint | None, seed: int) -> bool:
    want = trees(seed)
    return found is not None and all(
        list(found.trees[tree]) == list(leaves)
        and all(torch.equal(found.trees[tree][name], leaf) for name, leaf in leaves.items())
        and all(found.trees[tree][name].dtype == leaf.dtype for name, leaf in leaves.items())
        for tree, leaves in want.items()
    )


def whole(folder: Path) -> Checkpoint:
    found = load(folder)
    assert found is not None
    return found


# use


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    meta = {"step": 7, "loss": 0.1, "names": ["ä", None, True], 10: "x", 9: "y"}
    path = save(tmp_path / "new" / "folder", trees(3), meta)
    found = whole(path.parent)
    assert same(found, 3)
    assert found.meta == {"step": 7, "loss": 0.1, "names": ["ä", None, True], "10": "x", "9": "y"}
    assert (found.number, found.note) == (1, "")
    found.trees["params"]["layer.bias"].add_(1)  # the memory is the caller's


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    for seed in range(5):
        save(tmp_path, trees(seed), {"step": seed})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000004.json",
        "000004.safetensors",
        "000005.json",
        "000005.safetensors",
    ]
    assert same(load(tmp_path), 4)


def test_no_checkpoint_is_not_an_error(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(tmp_path / "missing") is None


def test_a_damaged_newest_one_is_passed_over_aloud(tmp_path: Path) -> None:
    for seed in range(2):
        path = save(tmp_path, trees(seed), {})
    path.with_suffix(".safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="went back to checkpoint 1"):
        found = load(tmp_path)
    assert same(found, 0)
    assert found is not None
    assert "000002.safetensors is damaged" in found.note


@pytest.mark.parametrize("harm", [".safetensors", ".json"])
def test_two_whole_ones_are_kept_whatever_was_damaged(tmp_path: Path, harm: str) -> None:
    """The save after a damaged one does not drop the last whole one before it."""
    for seed in range(3):
        path = save(tmp_path, trees(seed), {})
    path.with_suffix(harm).write_bytes(b"damaged")
    newest = save(tmp_path, trees(3), {})
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == ["000002", "000003", "000004"]
    newest.with_suffix(harm).write_bytes(b"damaged too")
    with pytest.warns(UserWarning, match="went back to checkpoint 2"):
        assert same(load(tmp_path), 1)
    for seed in (4, 5):
        save(tmp_path, trees(seed), {})
    assert sorted(p.stem for p in tmp_path.glob("*")) == ["000005", "000005", "000006", "000006"]


def test_if_all_are_damaged_that_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path, trees(), {})
    path.write_text("{}")
    with pytest.raises(DataError, match=r"no checkpoint in .* is whole"):
        load(tmp_path)


@pytest.mark.parametrize("meta", [{"x": math.nan}, {"x": torch.zeros(1)}, {"x": object()}, {"x": b"bytes"}])
def test_meta_is_json(tmp_path: Path, meta: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="meta"):
        save(tmp_path, trees(), meta)
    assert load(tmp_path) is None


def test_the_state_of_a_generator_does_not_fit_in(tmp_path: Path) -> None:
    """Only trees of tensors and JSON are taken, so nothing that could replay noise gets in by accident."""
    with pytest.raises(SettingError, match="meta"):
        save(tmp_path, trees(), {"generator": torch.Generator()})
    with pytest.raises(SettingError, match="a tree is"):
        save(tmp_path, {"state": {"generator": torch.Generator()}}, {})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 101, 3])
def test_tree_names_are_plain(tmp_path: Path, name: Any) -> None:
    with pytest.raises(SettingError, match="tree name"):
        save(tmp_path, {name: {}}, {})


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_last_one_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    save(tmp_path, trees(1), {})

    def fail(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", SimpleNamespace(**{**vars(os), failing: fail}))
        with pytest.raises(DataError, match="No space left on device"):
            save(tmp_path, trees(2), {})
    assert same(load(tmp_path), 1)
    save(tmp_path, trees(3), {})
    assert same(load(tmp_path), 3)


# D3: power loss


def record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    recorder = Recorder()
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(durable, "os", recorder)
        for step in range(4):
            save(folder, {"params": {"w": torch.full((4,), float(step))}}, {"step": step})
            recorder.begin_step()
    return recorder.events


def survives(place: Path, saved: int) -> bool:
    """Whether the newest checkpoint that ``save`` returned, or a newer one, is there and whole."""
    try:
        found = load(place)
    except DataError:
        return False
    return (found.meta["step"] + 1 if found else 0) >= saved


def power_cuts(events: list[tuple[Any, ...]], folder: Path) -> list[bool]:
    survived = []
    for end in range(len(events) + 1):
        disk = Disk(events[:end])
        for number, outcome in enumerate(disk.outcomes()):
            place = folder / f"{end}-{number}"
            place.mkdir()
            for name, data in outcome.items():
                (place / name).write_bytes(data)
            survived.append(survives(place, disk.begun))
    return survived


def test_d3_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survived = power_cuts(record(tmp_path / "run", monkeypatch), tmp_path)
    assert len(survived) > 60
    assert all(survived)


def test_d3_catches_no_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "sync", lambda descriptor: None)
    events = record(tmp_path / "run", monkeypatch)
    assert not all(power_cuts(events[:8], tmp_path))


# D5: damage


def damage(data: bytes, rng: random.Random) -> bytes:
    """A bit flipped, a byte changed, or the end cut off."""
    kind, at = rng.randrange(3), rng.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data[:at]


def undetected(folder: Path, trials: int) -> int:
    """How often damage to the newest checkpoint changes what is loaded without being noticed."""
    for seed in (0, 1):
        save(folder, trees(seed), {"step": seed, "learning_rate": 0.25})
    files = [folder / "000002.json", folder / "000002.safetensors"]
    rng, missed = random.Random(3), 0
    for _ in range(trials):
        file = rng.choice(files)
        good = file.read_bytes()
        bad = damage(good, rng)
        file.write_bytes(bad)
        found = whole(folder)
        newest = same(found, 1) and found.meta == {"step": 1, "learning_rate": 0.25}
        older = same(found, 0) and found.meta == {"step": 0, "learning_rate": 0.25} and found.note != ""
        missed += not (older if bad != good else newest)
        file.write_bytes(good)
    return missed


@pytest.mark.filterwarnings("ignore:.*went back")
def test_d5_damage(tmp_path: Path) -> None:
    assert undetected(tmp_path, 200) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*went back")
def test_d5_damage_5000(tmp_path: Path) -> None:
    assert undetected(tmp_path, 5000) == 0


@pytest.mark.filterwarnings("ignore:.*went back")
def test_d5_catches_no_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def __init__(self, data: bytes) -> None: ...

        def hexdigest(self) -> str:
            return ""

    monkeypatch.setattr(module, "hashlib", SimpleNamespace(sha256=Nothing))
    assert undetected(tmp_path, 200) > 0


# D7: hostile files


class Bomb:
    """A pickle of it, once loaded, leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def forge(folder: Path, data: bytes, **changes: Any) -> None:
    """Checkpoint 1 with these tensors and a manifest whose checksums are right."""
    content = {"format": 1, "number": 1, "trees": {"params": ["w"]}, "meta": {}}
    content |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    (folder / "000001.safetensors").write_bytes(data)
    (folder / "000001.json").write_bytes(module._canonical({**content, "check": module._digest(content)}))


def header(text: bytes, size: int | None = None) -> bytes:
    return (len(text) if size is None else size).to_bytes(8, "little") + text


GOOD = module.safetensors.save({"params/w": torch.ones(2)})


def test_d7_the_forger_can_write_a_valid_one(tmp_path: Path) -> None:
    forge(tmp_path, GOOD)
    assert torch.equal(whole(tmp_path).trees["params"]["w"], torch.ones(2))


def test_d7_pickles_are_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    bomb = pickle.dumps(Bomb(mark))
    forge(tmp_path, bomb)
    with pytest.raises(DataError):
        load(tmp_path)
    torch.save(Bomb(mark), tmp_path / "torch")
    forge(tmp_path, (tmp_path / "torch").read_bytes())
    with pytest.raises(DataError):
        load(tmp_path)
    (tmp_path / "000001.json").write_bytes(bomb)
    with pytest.raises(DataError):
        load(tmp_path)
    assert not mark.exists()
    pickle.loads(bomb)
    assert mark.exists()  # the bomb was live


@pytest.mark.parametrize(
    "data",
    [
        b"",
        header(b"{}", 2**63 - 1),
        header(b"{}", 99_000_000),
        header(b" " * 1000 + b"{"),
        header(b"[" * 50_000),
        header(b'{"params/w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'),
        header(b'{"params/w":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}') + bytes(8),
        header(b'{"params/w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}') + bytes(8),
        header(b'{"params/w":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}') + bytes(8),
        header(b'{"params/w":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,8]}}')
        + bytes(8),
        module.safetensors.save({"params/w": torch.ones(2), "extra": torch.ones(1)}),
        module.safetensors.save({"../../w": torch.ones(2)}),
    ],
    ids=range(12),
)
def test_d7_hostile_tensors_give_one_typed_line(tmp_path: Path, data: bytes) -> None:
    forge(tmp_path, data)
    with pytest.raises(DataError):
        load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": "../../../etc/passwd"},
        {"number": 2},
        {"format": 2},
        {"trees": {"../../x": ["w"]}},
        {"trees": {"params": 5}},
        {"trees": {"params": [["w"]]}},
        {"trees": 7},
        {"trees": {}},
        {"meta": [1]},
        {"bytes": "12"},
        {"bytes": -1},
        {"bytes": 10**30},
        {"sha256": None},
    ],
    ids=str,
)
def test_d7_hostile_manifests_give_one_typed_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    forge(tmp_path, GOOD, **changes)
    with pytest.raises(DataError):
        load(tmp_path)


def test_d7_huge_or_deep_manifests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(tmp_path, GOOD)
    (tmp_path / "000001.json").write_bytes(b"[" * 200_000)
    with pytest.raises(DataError):
        load(tmp_path)
    monkeypatch.setattr(module, "_LONGEST", 100)
    forge(tmp_path, GOOD)
    with pytest.raises(DataError, match="at most 100 bytes"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["000001.json", "000001.safetensors"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_d7_links_pipes_and_folders_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    inside.mkdir()
    forge(inside, GOOD)
    (inside / name).rename(outside)
    if kind == "link":
        (inside / name).symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(inside / name)
    else:
        (inside / name).mkdir()
    with pytest.raises(DataError):
        load(inside)


def test_d7_odd_names_are_ignored(tmp_path: Path) -> None:
    save(tmp_path, trees(1), {})
    for name in ("0000001.json", "x000009.json", "000009.json.exe", "٠٠٠٠٠٩.json", "000009.safetensors"):
        (tmp_path / name).write_text(json.dumps({}))
    found = whole(tmp_path)
    assert same(found, 1)
    assert found.note == ""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "file")


def test_a_checkpoint_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save(tmp_path / "kept", trees(), {})
    finally:
        os.umask(before)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "kept").iterdir()} == {0o600}
