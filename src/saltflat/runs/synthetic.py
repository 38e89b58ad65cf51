"""Samples of a generator in a run's folder, and what they were found to be: how they are written, read without torch.

    synthetic/samples.npz     images (n, height, width) or (n, height, width, channels), uint8; if wanted: labels (n,)
    synthetic/metrics.json    {"status": "released", "about": "...", "metrics": [{"name": ..., "value": ..., ...}]}

``status`` says who may see them: ``released`` (made by a private run, and within its epsilon), ``public`` (made of
public examples or programs), or anything else, which is private and kept so. A metric has ``name`` and ``value``; if
it is known ``error`` (standard error), ``better`` ("lower" or "higher") and ``words`` (one sentence).
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saltflat.privacy.record import durable
from saltflat.runs.layout import SYNTHETIC, as_npz, number

SAMPLES, METRICS = "samples.npz", "metrics.json"
OPEN = ("released", "public")
_MOST = 1 << 27  # bytes of a file
_SHOWN = 64  # samples that are read


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One figure about samples."""

    name: str
    value: float
    error: float | None = None
    better: str = ""  # "lower", "higher" or nothing
    words: str = ""


@dataclass(frozen=True, eq=False)
class Synthetic:
    """What a folder holds: at most so many ``images`` (n, height, width, channels) of ``count``; None without any."""

    status: str
    about: str
    metrics: tuple[Metric, ...]
    images: NDArray[np.uint8] | None = None
    labels: tuple[int, ...] = ()
    count: int = 0


def keep(
    run: Path,
    *,
    status: str,
    about: str,
    metrics: Sequence[Metric],
    images: NDArray[np.uint8] | None = None,
    labels: NDArray[Any] | None = None,
) -> None:
    """Write samples and metrics into a run's folder.

    *Guarantee*: nothing is checked here: that ``released`` samples are within the run's epsilon is the caller's word.
    """
    place = run / SYNTHETIC
    place.mkdir(parents=True, exist_ok=True)
    if images is not None:
        arrays = {"images": images} if labels is None else {"images": images, "labels": labels}
        durable.replace(place / SAMPLES, as_npz(arrays))
    facts = {"status": status, "about": about, "metrics": [asdict(metric) for metric in metrics]}
    durable.replace(place / METRICS, json.dumps(facts, indent=1, allow_nan=False) + "\n")


def read(place: Path) -> Synthetic:
    """What is there; ValueError, KeyError or TypeError if it is no such folder. Nothing pickled is ever loaded."""
    told = json.loads(_checked(place / METRICS).read_text(encoding="utf-8"))
    if not isinstance(told, dict):
        raise ValueError(f"{METRICS} holds a {type(told).__name__}, not an object")
    metrics = tuple(_metric(each) for each in told.get("metrics", []))
    found = Synthetic(_text(told.get("status", "")), _text(told.get("about", "")), metrics)
    if not (place / SAMPLES).exists():
        return found
    try:
        with np.load(_checked(place / SAMPLES), allow_pickle=False) as file:
            images = file["images"]
            labels = file["labels"] if "labels" in file.files else np.zeros(0, int)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(str(error) or f"{SAMPLES} is no npz file") from None
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.size == 0:
        raise ValueError("images must be uint8 of shape (n, height, width) or (n, height, width, channels)")
    shaped = images[..., None] if images.ndim == 3 else images
    if shaped.shape[3] not in (1, 3) or max(shaped.shape[1:3]) > 512:
        raise ValueError("images have 1 or 3 channels and sides of at most 512")
    shown = tuple(int(each) for each in np.asarray(labels).reshape(-1)[:_SHOWN])
    return Synthetic(found.status, found.about, metrics, shaped[:_SHOWN], shown, len(shaped))


def _checked(path: Path) -> Path:
    if path.stat().st_size > _MOST:
        raise ValueError(f"{path.name} is larger than a report can show")
    return path


def _metric(told: Any) -> Metric:
    value, error = number(told["value"]), number(told.get("error"))
    if value is None or not math.isfinite(value):
        raise ValueError("a metric without a finite value")
    better = _text(told.get("better", ""))
    words = _text(told.get("words", ""))
    return Metric(name=_text(told["name"]), value=value, error=error, better=better, words=words)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1000:
        raise ValueError(f"{str(value)[:40]!r} is not a short text")
    return value
