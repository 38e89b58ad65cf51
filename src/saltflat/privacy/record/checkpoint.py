"""Checkpoints: trees in a safetensors file and a JSON manifest with its checksum, never a pickle.

Restoring an old one is always safe for privacy: what was spent is in the ledger, not here, and noise keys
are never stored, so a resumed run draws fresh noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors

from saltflat.errors import DataError, SettingError
from saltflat.privacy.record import durable
from saltflat.tree import Tree

FORMAT = 1
KEPT = 2

_LONGEST = 1 << 24  # bytes of a manifest
_NAME = re.compile(r"([0-9]{6,})\.json")


@dataclass(frozen=True)
class Checkpoint:
    """What was saved; ``note`` is empty, or says which damaged newer ones were passed over."""

    number: int
    trees: Mapping[str, Tree]
    meta: Mapping[str, Any]
    note: str = ""


def save(folder: str | os.PathLike[str], trees: Mapping[str, Tree], meta: Mapping[str, Any]) -> Path:
    """Write a checkpoint, whole or not at all, and drop all but the last two whole ones.

    ``meta`` is anything that JSON can hold; put the ledger's ``head`` in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(folder, {"params": {"w": torch.ones(2)}}, {"step": 7})
    ...     found = load(folder)
    >>> path.name, found.trees["params"]["w"], found.meta["step"]
    ('000001.json', tensor([1., 1.]), 7)
    """
    place = Path(folder)
    tensors, names = _flat(trees)
    try:
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(mode=0o700)
            durable.sync_folder(place.parent)
        number = max(_numbers(place), default=0) + 1
        data = safetensors.save(tensors)
        manifest = _manifest(number, names, dict(meta), data)
        durable.replace(_tensor_path(place, number), data)
        durable.replace(_manifest_path(place, number), manifest)  # from here on it counts
        _drop_older(place)
    except OSError as error:
        raise DataError(
            f"{place}: the checkpoint cannot be written ({error.strerror or error}); the last one is "
            "untouched; free the disk or the folder and run again"
        ) from error
    return _manifest_path(place, number)


def load(folder: str | os.PathLike[str], *, warn: bool = True) -> Checkpoint | None:
    """The newest whole checkpoint, or None if there is none at all; DataError if every one is damaged.

    Args:
        folder: Where checkpoints were saved.
        warn: Warn of damaged newer ones that were passed over; `Checkpoint.note` has the words either way.

    *Guarantee*: reads data only, runs no code, follows no link and no name found inside a file.
    """
    place = Path(folder)
    notes: list[str] = []
    for number in sorted(_numbers(place), reverse=True):
        try:
            trees, meta = _read(place, number)
        except DataError as error:
            notes.append(str(error))
            continue
        note = "; ".join([*notes, f"went back to checkpoint {number}"]) if notes else ""
        if note and warn:
            warnings.warn(note, stacklevel=2)
        return Checkpoint(number, trees, meta, note)
    if notes:
        raise DataError(f"no checkpoint in {place} is whole: {'; '.join(notes)}")
    return None


def numbered(folder: str | os.PathLike[str], number: int) -> Checkpoint:
    """One of the checkpoints in a folder; DataError if it is not there or damaged. Guarantee as for `load`."""
    return Checkpoint(number, *_read(Path(folder), number))


def numbers(folder: str | os.PathLike[str]) -> list[int]:
    """The numbers of the checkpoints in a folder, oldest first; whether they are whole shows when they are read."""
    return sorted(_numbers(Path(folder)))


def _flat(trees: Mapping[str, Tree]) -> tuple[dict[str, torch.Tensor], dict[str, list[str]]]:
    """{"tree/leaf": tensor}, and the names in their order, which safetensors does not keep."""
    flat = {}
    for tree, leaves in trees.items():
        if not (isinstance(tree, str) and re.fullmatch(r"[\w.-]{1,100}", tree)):
            raise SettingError(f"tree name {tree!r}: letters, digits, '_', '.' and '-' are allowed")
        for leaf, tensor in leaves.items():
            if not (isinstance(leaf, str) and isinstance(tensor, torch.Tensor)):
                raise SettingError(
                    f"{tree}[{leaf!r}] is a {type(tensor).__name__}: a tree is {{name: tensor}}"
                )
            # a copy of its own: leaves are often views of one buffer, which safetensors refuses
            flat[f"{tree}/{leaf}"] = tensor.detach().cpu().contiguous().clone()
    return flat, {tree: list(leaves) for tree, leaves in trees.items()}


def _manifest(number: int, names: dict[str, list[str]], meta: dict[str, Any], data: bytes) -> bytes:
    content = {"format": FORMAT, "number": number, "trees": names, "meta": meta}
    content |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    try:
        content = json.loads(json.dumps(content, allow_nan=False))  # as it will be read: keys are texts
        text = _canonical({**content, "check": _digest(content)})
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"meta cannot be stored as JSON ({error}): give numbers, texts, lists and dicts"
        ) from None
    if len(text) > _LONGEST:
        raise SettingError(
            f"meta has {len(text)} bytes: at most {_LONGEST} are allowed; put arrays into a tree"
        )
    return text


def _read(folder: Path, number: int) -> tuple[dict[str, Tree], dict[str, Any]]:
    """One checkpoint, everything checked; any defect is a DataError."""
    path = _manifest_path(folder, number)
    content = _read_manifest(path)
    data = _read_file(_tensor_path(folder, number), longest=content["bytes"])
    if len(data) != content["bytes"] or hashlib.sha256(data).hexdigest() != content["sha256"]:
        raise DataError(f"{_tensor_path(folder, number)} is damaged: its checksum does not match")
    try:
        tensors = safetensors.load(data)
        trees = {
            tree: {str(leaf): tensors.pop(f"{tree}/{leaf}") for leaf in leaves}
            for tree, leaves in content["trees"].items()
        }
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DataError(
            f"{_tensor_path(folder, number)} does not hold what {path.name} lists ({error})"
        ) from None
    if tensors or content["number"] != number or content["format"] != FORMAT:
        raise DataError(f"{path} is not the manifest of checkpoint {number} in format {FORMAT}")
    return trees, content["meta"]


def _is_whole(folder: Path, number: int) -> bool:
    """Whether the checksums are right; what lies inside was checked when it was written."""
    try:
        content = _read_manifest(_manifest_path(folder, number))
        data = _read_file(_tensor_path(folder, number), longest=content["bytes"])
    except DataError:
        return False
    return hashlib.sha256(data).hexdigest() == content["sha256"]


def _read_manifest(path: Path) -> dict[str, Any]:
    data = _read_file(path, longest=_LONGEST)
    try:
        content = json.loads(data)
        check = content.pop("check")
        good = data == _canonical({**content, "check": check}) and check == _digest(content)
        good = good and isinstance(content["bytes"], int) and isinstance(content["meta"], dict)
        good = good and {"format", "number", "trees", "sha256"} <= content.keys()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise DataError(f"{path} is damaged: its checksum does not match")
    return dict(content)


def _read_file(path: Path, *, longest: int) -> bytes:
    """The bytes of a plain file of at most ``longest`` bytes; a link, pipe or device is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > longest:
                raise DataError(f"{path} is not a plain file of at most {longest} bytes")
            return file.read()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None


def _drop_older(folder: Path) -> None:
    """Drop what is older than the last two whole ones; a damaged one never takes the place of one of them."""
    whole, numbers = 1, sorted(_numbers(folder), reverse=True)  # the first was written just now
    while whole < KEPT and (numbers := numbers[1:]):
        whole += _is_whole(folder, numbers[0])
    for number in numbers[1:]:
        _manifest_path(folder, number).unlink(missing_ok=True)  # first: without it the tensors do not count
        _tensor_path(folder, number).unlink(missing_ok=True)


def _numbers(folder: Path) -> list[int]:
    """The numbers of the checkpoints that have a manifest."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror})") from None
    found = [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]
    return [number for number in found if _manifest_path(folder, number).name in names]


def _manifest_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _tensor_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.safetensors"


def _digest(content: object) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: object) -> bytes:
    """One spelling per value, so that any changed byte is noticed."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
