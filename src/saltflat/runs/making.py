"""A generator in a folder: fitted to public examples there, stopped and gone on with, and asked for images later."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from saltflat.core.stop import finish_first
from saltflat.errors import DataError, Interrupted, SettingError
from saltflat.privacy.record import checkpoint
from saltflat.recipes.documents import difference
from saltflat.recipes.toml import dotted
from saltflat.recipes.values import Spot, made, settings_document
from saltflat.recipes.wrong import Wrong
from saltflat.synthesis import Fit, Fitted, fit
from saltflat.synthesis.fitting import Seen, Trained

SECONDS = 20  # between two checkpoints
PARTS = ("weights", "mean", "first", "second")


@dataclass(frozen=True)
class Lesson:
    """Public images (n, c, h, w) from 0 to 1, their labels, and the number of classes."""

    images: Tensor
    labels: Tensor
    classes: int
    named: str  # what they are, in words: data set, how many, by which seed

    def outline(self, how: Fit) -> dict[str, Any]:
        """What makes a generator the same one: settings, and the examples by their checksum."""
        digest = hashlib.sha256(self.images.contiguous().numpy().tobytes())
        digest.update(self.labels.contiguous().numpy().tobytes())
        return {
            "fit": settings_document(how, {}),
            "shape": list(self.images.shape[1:]),
            "classes": self.classes,
            "examples": digest.hexdigest(),
            "named": self.named,
        }


def fitted_in(
    folder: Path, how: Fit, lesson: Lesson, *, watch: Callable[[Seen], None] = lambda seen: None
) -> Fitted:
    """The generator in ``folder``: fitted now, or gone on with, or as it is if it was finished.

    A folder with another generator is refused. A signal lets the step end, keeps it, and raises `Interrupted`.
    """
    outline = lesson.outline(how)
    start = _kept(folder, outline)
    if start is not None and start.step == how.steps:
        return Fitted(how, tuple(lesson.images.shape[1:]), lesson.classes, start.mean)
    last = time.monotonic()
    with finish_first() as caught:

        def seen(now: Seen) -> None:
            nonlocal last
            watch(now)
            if caught or time.monotonic() - last > SECONDS:
                _keep(folder, now.now(), outline)
                last = time.monotonic()
            if caught:
                raise Interrupted(f"stopped after step {now.step} of {now.steps} of the generator", caught[0])

        found = fit(how, lesson.images, lesson.labels, classes=lesson.classes, start=start, watch=seen)
    _keep(folder, Trained(how.steps, {}, found.weights, {}, {}), outline)
    return found


def generator_in(folder: Path) -> Fitted:
    """The finished generator of a folder."""
    found = checkpoint.load(folder) if folder.is_dir() else None
    if found is None:
        raise DataError(f"{folder} holds no generator; make one with saltflat synthesize fit --out {folder}")
    meta = found.meta
    try:
        how = made(Fit, meta["fit"], Spot())
        shape, classes, step = tuple(meta["shape"]), int(meta["classes"]), int(meta["step"])
    except (KeyError, TypeError, ValueError, Wrong):
        raise DataError(f"{folder} holds a generator of another version, or none") from None
    if step < how.steps:
        raise SettingError(
            f"the generator in {folder} is not finished, step {step} of {how.steps}: run saltflat synthesize fit again"
        )
    return Fitted(how, shape, classes, dict(found.trees["mean"]))


def _keep(folder: Path, at: Trained, outline: dict[str, Any]) -> None:
    trees = {name: getattr(at, name) for name in PARTS}
    checkpoint.save(folder, trees, {**outline, "step": at.step})


def _kept(folder: Path, outline: dict[str, Any]) -> Trained | None:
    found = checkpoint.load(folder) if folder.is_dir() else None
    if found is None:
        return None
    there = {name: found.meta.get(name) for name in outline}
    differing = difference(there, outline)
    if differing is not None:
        keys, _, _ = differing
        raise SettingError(
            f"{folder} holds a generator with another {dotted(keys)}; give another folder, or remove that one"
        )
    return Trained(int(found.meta["step"]), *(dict(found.trees.get(name, {})) for name in PARTS))
