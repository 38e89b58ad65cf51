"""Features of whole data sets: computed once, with progress, and kept on disk where the user says so."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saltflat.data.examples import Examples, Split
from saltflat.errors import DataError
from saltflat.features.joined import Joined
from saltflat.features.stages import Stage, built, check_apart, described, foreign, mapped, shape_after
from saltflat.privacy.record import cache as caches

VERSION = 1  # of what stages compute: a change there makes old files useless
Watch = Callable[[int, int], None]  # images done, of how many


def featured(
    split: Split, stages: Sequence[Stage], *, cache: str | Path | None = None, watch: Watch | None = None
) -> Split:
    """The split with features in the place of images. The map is built without an example of it.

    uint8 images go in as [0, 1], others as they are. With ``cache``, or the variable SALTFLAT_CACHE, features are kept
    under a hash of the stages and the images, in a folder of that folder that the user alone may enter, and read from
    there the next time. The files hold what the private images hold: keep the folder as safe as the data.
    """
    if not stages:
        return split
    parts = {"train": split.train, "test": split.test}
    total, done = sum(part.count for part in parts.values()), 0
    for name, part in parts.items():
        own = None if watch is None else lambda count, before=done: watch(before + count, total)
        found = compute(part.inputs, stages, cache=cache, watch=own)
        parts[name] = Examples(found, part.targets, features=described(stages))
        done += part.count
    return replace(split, train=parts["train"], test=parts["test"])


def compute(
    images: Tensor,
    stages: Sequence[Stage],
    *,
    cache: str | Path | None = None,
    watch: Callable[[int], None] | None = None,
) -> Tensor:
    """The features of images (n, channels, height, width), float32; see `featured`."""
    shape = shape_after(stages, tuple(images.shape[1:]))
    way = _way(stages)
    kept = None if way is None else _place(cache, images, way)
    if kept is None:
        return mapped(_module(stages, images), images, torch.empty(len(images), *shape), watch)
    if not caches.is_kept(kept):
        _keep(kept, cache, images, stages, watch)
    return _read(kept, len(images), *shape)


def kept_or_made(
    inputs: Tensor,
    way: str | None,
    make: Callable[[Callable[[int], None] | None], Tensor],
    cache: str | Path | None = None,
    watch: Callable[[int], None] | None = None,
) -> Tensor:
    """What ``make`` gives for all inputs, in float32; kept, and read, under a hash of them and of the ``way``.

    A ``way`` of None is one that no hash knows: its features are never kept.
    """
    kept = None if way is None else _place(cache, inputs, way)
    if kept is None:
        return make(watch)
    if caches.is_kept(kept):
        return _read(kept, len(inputs))
    found = make(watch)
    with caches.kept(kept) as file, file.open("wb") as into:
        np.save(into, found.numpy())
    return found


def _place(cache: str | Path | None, inputs: Tensor, way: str) -> Path | None:
    """Where features of these inputs are kept; None where nobody asked for it."""
    folder = cache or os.environ.get(caches.VARIABLE)
    if not folder or not len(inputs):
        return None
    return caches.place(folder, f"features-{_hash(way, inputs)}.npy")


def _read(kept: Path, *shape: int) -> Tensor:
    """What is kept there, whose shape begins like this."""
    found = np.load(kept, mmap_mode="c", allow_pickle=False)
    if found.dtype != np.float32 or found.shape[: len(shape)] != shape:
        raise DataError(f"{kept} does not hold these features; delete it, and they are computed anew")
    return torch.from_numpy(found)


def _way(stages: Sequence[Stage]) -> str | None:
    """How features are made, in words that change when anything about it does; None where no words of ours would."""
    if foreign(tuple(stages)):
        return None
    return " ".join([described(stages), *_files(stages)])


def _hash(way: str, inputs: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((VERSION, way, tuple(inputs.shape), str(inputs.dtype))).encode())
    digest.update(inputs.contiguous().cpu().numpy().data)
    return digest.hexdigest()


def _files(stages: Sequence[Stage]) -> list[str]:
    """Hashes of the files of weights that stages read: under one name there may be others tomorrow."""
    named = [getattr(stage, "weights", "") or getattr(stage, "name", "") for stage in stages]
    places = [Path(each) for each in named if each]
    files = [
        file for each in places for file in ([each] if each.is_file() else sorted(each.glob("*.safetensors")))
    ]
    return [hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files]


def _keep(
    kept: Path,
    cache: str | Path | None,
    images: Tensor,
    stages: Sequence[Stage],
    watch: Callable[[int], None] | None,
) -> None:
    """Compute into a file beside, which takes the name when it is whole: a killed run leaves no half of it."""
    shape = (len(images), *shape_after(stages, tuple(images.shape[1:])))
    parts = _parts(cache, images, stages, watch)
    rows, module = (images, None) if parts else _begun(cache, images, stages)
    with caches.kept(kept) as file:
        into = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        if module is None:
            torch.cat(parts, 1, out=torch.from_numpy(into).flatten(1))
        else:
            mapped(module, rows, torch.from_numpy(into), watch)
        into.flush()


def _parts(
    cache: str | Path | None, images: Tensor, stages: Sequence[Stage], watch: Callable[[int], None] | None
) -> list[Tensor]:
    """What is joined, each list kept by itself, so that others may join it; nothing if that is not all that is done."""
    lists = stages[0].parts if len(stages) == 1 and isinstance(stages[0], Joined) else ()
    return [compute(images, part, cache=cache, watch=watch).flatten(1) for part in lists]


def _begun(
    cache: str | Path | None, images: Tensor, stages: Sequence[Stage]
) -> tuple[Tensor, torch.nn.Module]:
    """What to go on from, and by what: the most stages whose features are kept already, so that later ones may vary."""
    module = _module(stages, images)
    for done in range(len(stages) - 1, 0, -1):
        way = _way(stages[:done])
        file = None if way is None else _place(cache, images, way)
        if file is not None and file.is_file():
            return compute(images, stages[:done], cache=cache), module[done:]
    return images, module


def _module(stages: Sequence[Stage], images: Tensor) -> torch.nn.Sequential:
    """The map, made once for all examples; one with stages or processes of somebody else's is made anew, and tried."""
    shape = tuple(images.shape[1:])
    if foreign(tuple(stages)):
        module = built(stages, shape)
        check_apart(module, torch.rand(4, *shape))
        return module
    try:
        return _made(tuple(stages), shape)
    except TypeError:  # settings without a hash
        return built(stages, shape)


@lru_cache(maxsize=4)
def _made(stages: tuple[Stage, ...], shape: tuple[int, ...]) -> torch.nn.Sequential:
    return built(stages, shape)
