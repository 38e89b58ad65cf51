"""Pictures in the formats that Pillow decodes: folders of files, and files packed into npz arrays.

Pillow is the optional extra ``saltflat[images]``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saltflat.data.arrays import read_arrays
from saltflat.data.examples import HALF, Examples, Scale, Split
from saltflat.data.files import Labelled, check_unpacked, one_record, resolve
from saltflat.errors import DataError
from saltflat.privacy.record import cache as caches

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"})

Size = tuple[int, int]  # height, width


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise DataError("decoding pictures needs Pillow: pip install 'saltflat[images]'") from None
    return Image


def decode(file: bytes | Path, *, size: Size | None = None, grey: bool = False) -> np.ndarray:
    """One picture as RGB bytes (h, w, 3), or ``grey`` (h, w, 1), resized (bilinear) to ``size`` if that is given.

    Its head says how many pixels it has; more than its bytes can hold (`check_unpacked`) are not decoded. Messages do
    not name the file, as its name may tell of a person.
    """
    image_module = _pillow()
    where = "a packed picture" if isinstance(file, bytes) else one_record(str(file))
    packed = len(file) if isinstance(file, bytes) else file.stat().st_size
    try:
        with image_module.open(io.BytesIO(file) if isinstance(file, bytes) else file) as picture:
            check_unpacked(where, 3 * picture.width * picture.height, packed)
            picture = picture.convert("L" if grey else "RGB")
            if size is not None and picture.size != size[::-1]:
                picture = picture.resize(size[::-1], image_module.Resampling.BILINEAR)
            return np.asarray(picture).reshape(picture.height, picture.width, -1)
    except DataError:
        raise
    except image_module.DecompressionBombError:
        raise DataError(f"{where} has more pixels than Pillow decodes; make it smaller") from None
    except (
        OSError,
        ValueError,
        SyntaxError,
    ):  # Pillow raises each of them for damaged files, and names the file
        raise DataError(f"{where} is no picture, or a truncated one") from None


def image_folder(
    path: str | Path,
    data_dir: str | Path | None = None,
    *,
    size: Size | None = None,
    scale: Scale = HALF,
    parts: tuple[str, str] = ("train", "test"),
    grey: bool = False,
) -> Split:
    """Pictures in ``path/train/<class>/`` and ``path/test/<class>/``; classes are numbered by sorted name.

    ``path`` is a full path, or one under ``data_dir`` or SALTFLAT_DATA. Pictures are kept in memory as uint8
    (n, 3, h, w), or (n, 1, h, w) with ``grey``; they must have one size, or are resized to ``size``. The two
    folders must name the same classes: the list of classes counts as public.
    """
    base = resolve(path, data_dir)
    train, test = (base / part for part in parts)
    names = class_folders(train)
    if class_folders(test) != names:
        raise DataError(f"{test} must hold the same class folders as {train}: {', '.join(names)}")
    examples = [Examples(*_folder(part, names, size, grey=grey), scale) for part in (train, test)]
    return Split(examples[0], examples[1], classes=len(names))


def class_folders(folder: Path) -> list[str]:
    """The names of the classes: of the folders that are in it."""
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist; expected one folder per class in it")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not names:
        raise DataError(f"{folder} is empty; expected one folder per class in it")
    return names


def picture_files(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """The pictures of each class, with its number."""
    return [
        (file, label)
        for label, name in enumerate(names)
        for file in sorted((folder / name).iterdir())
        if file.suffix.lower() in SUFFIXES
    ]


def _folder(folder: Path, names: Sequence[str], size: Size | None, *, grey: bool) -> Labelled:
    files = picture_files(folder, names)
    if not files:
        raise DataError(
            f"{folder} holds no picture; expected {', '.join(sorted(SUFFIXES))} in its class folders"
        )
    pictures = [decode(file, size=size, grey=grey) for file, _ in files]
    for (file, _), picture in zip(files, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            raise DataError(
                f"{folder}: pictures must have one size, and {one_record(str(file))} differs from the first; pass "
                "size=(height, width) to resize all"
            )
    return _stacked(pictures), torch.tensor([label for _, label in files])


def picture_form(file: Path) -> tuple[int, int, int]:
    """The channels, height and width of a picture: 1 channel if it has no colour, else 3."""
    try:
        with _pillow().open(file) as picture:
            return 1 if picture.mode in ("1", "L", "I", "I;16", "F") else 3, picture.height, picture.width
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{file} is no picture, or a truncated one: {error}") from error


def packed(path: Path) -> Labelled:
    """Pictures from an npz of ``data`` (files, one after the other), ``offsets`` (n + 1) and ``labels``.

    Decoding takes seconds. Where the variable SALTFLAT_CACHE names a folder, the decoded pixels are kept there, for
    their owner alone; by default no copy of the data is made.
    """
    arrays = read_arrays(path, ("data", "offsets", "labels"))
    data, offsets, labels = arrays["data"], arrays["offsets"], arrays["labels"]
    sound = len(offsets) == len(labels) + 1 and bool((np.diff(offsets) > 0).all())
    if data.dtype != np.uint8 or not len(labels) or not sound or offsets[0] != 0 or offsets[-1] != len(data):
        raise DataError(f"{path}: expected offsets from 0 to the length of data, one more than labels")
    pixels = _cached(path, lambda: _unpacked(data, offsets))
    if len(pixels) != len(labels):
        raise DataError(
            f"{path}: as many labels as pictures are needed, and the kept pixels have other numbers; empty "
            f"{caches.VARIABLE}"
        )
    return pixels, torch.from_numpy(labels.astype(np.int64))


def _unpacked(data: np.ndarray, offsets: np.ndarray) -> Tensor:
    return _stacked([decode(data[start:end].tobytes()) for start, end in pairwise(offsets)])


def _stacked(pictures: Sequence[np.ndarray]) -> Tensor:
    """uint8 (n, 3, h, w) from pictures of one size."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def _cached(path: Path, compute: Callable[[], Tensor]) -> Tensor:
    """What ``compute`` gives for a file, kept in SALTFLAT_CACHE (if set) under the file's name, size and time."""
    folder = os.environ.get(caches.VARIABLE)
    if not folder:
        return compute()
    facts = path.stat()
    kept = caches.place(folder, f"{path.stem}-{facts.st_size}-{facts.st_mtime_ns}.npy")
    if caches.is_kept(kept):
        return torch.from_numpy(np.load(kept, allow_pickle=False))
    pixels = compute()
    with caches.kept(kept) as file, file.open("wb") as into:
        np.save(into, pixels.numpy())
    return pixels
