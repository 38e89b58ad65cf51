"""Sections on examples that are not private: what was made, how good it is, and what came before the private phase."""

from __future__ import annotations

import base64
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saltflat.privacy.limits import rounded_up
from saltflat.report import words
from saltflat.report.chart import rounded
from saltflat.report.folder import Kept
from saltflat.report.found import Found, found
from saltflat.report.html import Html, items, join, table, tag
from saltflat.report.parts import MANY, Section, alert, troubles
from saltflat.runs.layout import SAMPLES, Folder
from saltflat.runs.synthetic import OPEN, Metric, Synthetic

Pixels = NDArray[np.uint8]
ARROWS = {"lower": "↓ lower is better", "higher": "↑ higher is better"}
KNOWN = {  # metrics of made images beside public ones: (name, which way is better, what it is)
    "frechet": ("Frechet distance", "lower", "Between features of made and public images."),
    "inception_score": (
        "inception score",
        "higher",
        "How sure and how varied the classes of made images are.",
    ),
    "precision": ("precision", "higher", "Share of made images that lie among public ones."),
    "recall": ("recall", "higher", "Share of public images that made ones come near."),
    "copied": ("copies", "lower", "Share of made images that are nearly public ones."),
    "cas": ("CAS", "higher", "Test accuracy of a network that saw made images only."),
}
_SHOWN, _SIDE, _BYTES = 40, 512, 1 << 26


def synthetic(runs: Sequence[Kept]) -> Section | None:
    """Samples of generators and their metrics, if runs have any (`saltflat.runs.synthetic`)."""
    there = [run for run in runs if not run.synthetic.missing]
    if not there:
        return None
    parts: list[Html | None] = [troubles(there, lambda run: run.synthetic)]
    parts.append(_metrics_table(there, [_metrics(run) for run in there], "Metrics of samples"))
    for run in there:
        if run.synthetic.value is not None:
            parts += _samples(run, run.synthetic.value)
    return Section("synthetic", "Synthetic samples", join(parts))


def _metrics(run: Kept) -> tuple[Metric, ...]:
    return run.synthetic.value.metrics if run.synthetic.value is not None else ()


def _metrics_table(runs: Sequence[Kept], told: Sequence[Sequence[Metric]], caption: str) -> Html | None:
    """A row for each metric that a run has, with the way that is better and what it is."""
    kinds = {metric.name: metric for each in told for metric in each}
    if not kinds:
        return None
    rows = []
    for name, metric in kinds.items():
        values = [next((each for each in mine if each.name == name), None) for mine in told]
        rows.append([_metric_name(metric), *map(_figure, values)])
    return table(("metric", *(run.name for run in runs)), rows, caption=caption)


def _metric_name(metric: Metric) -> Html:
    arrow = ARROWS.get(metric.better)
    return join((metric.name, tag("small", " ".join(filter(None, (arrow, metric.words))), class_="why")))


def _figure(metric: Metric | None) -> str:
    if metric is None:
        return words.NOTHING
    error = f" ± {rounded(metric.error, 2)}" if metric.error is not None else ""
    return rounded(metric.value, 4) + error


def _samples(run: Kept, made: Synthetic) -> list[Html | None]:
    count = f"{made.count:,} samples; {made.status or 'nothing says who may see them'}. {made.about}"
    parts: list[Html | None] = [tag("h3", run.name), tag("p", count)]
    if made.status not in OPEN:
        parts.append(alert("Keep private:", "these samples are not said to be released or public."))
    if made.images is not None:
        parts.append(_picture(made.images, f"{len(made.images)} of {made.count} samples of {run.name}"))
    return parts


def _picture(images: Pixels, said: str) -> Html:
    source = "data:image/png;base64," + base64.b64encode(png(sheet_of(images))).decode()
    return tag("p", tag("img", src=source, alt=said, class_="samples"))


def sheet_of(images: Pixels) -> Pixels:
    """Images (n, height, width, channels) side by side on one sheet, in rows of eight, a line of white between them."""
    count, tall, wide, channels = images.shape
    across = min(8, count)
    down = -(-count // across)
    sheet = np.full((down * (tall + 1) - 1, across * (wide + 1) - 1, channels), 255, np.uint8)
    for place, image in enumerate(images):
        top, left = place // across * (tall + 1), place % across * (wide + 1)
        sheet[top : top + tall, left : left + wide] = image
    return sheet


def png(pixels: Pixels) -> bytes:
    """An image (height, width, 1 or 3) as a PNG file.

    >>> png(np.zeros((1, 1, 1), np.uint8))[:4]
    b'\\x89PNG'
    """
    tall, wide, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels, dtype=np.uint8))
    head = struct.pack(">IIBBBBB", wide, tall, 8, 0 if channels == 1 else 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def before(runs: Sequence[Kept]) -> Section | None:
    """What came before the private phase: public examples, what was made of them, every stage's accuracy."""
    there = [run for run in runs if run.before is not None and (run.before.stages or run.before.provenance)]
    if not there:
        return None
    parts: list[Html | None] = [
        tag("p", "Made from public examples, public settings and public seeds alone, so it costs no privacy.")
    ]
    for run in there[:MANY]:
        parts += _stages(run)
    told = [_of_made(run) for run in there]
    parts.append(_metrics_table(there, told, "Made images beside the public ones"))
    for run in there[:MANY]:
        parts += _kinds_of_images(run)
    return Section("before", "Before the private phase", join(parts))


def _stages(run: Kept) -> list[Html | None]:
    """Where the run's accuracy comes from, stage by stage."""
    told = run.before
    assert told is not None
    rows = [
        [
            each.name or each.kind,
            each.kind,
            "∞: not private"
            if each.epsilon is None
            else rounded_up(each.epsilon, 4)
            if each.epsilon
            else "0",
            words.NOTHING if each.accuracy is None else f"{100 * each.accuracy:.2f} %",
        ]
        for each in told.stages
    ]
    head = ("stage", "kind", "epsilon so far", "test accuracy")
    parts: list[Html | None] = [tag("h3", f"{run.name}: {told.scenario}"), items(told.provenance)]
    parts.append(table(head, rows, caption=f"Stages of {run.name}", sort=False) if rows else None)
    if unprotected(run):
        parts.append(
            alert("Without noise:", "a stage was trained on private examples without noise, for comparison.")
        )
    return parts


def unprotected(run: Kept) -> bool:
    """Whether a stage is on record that no epsilon covers."""
    return run.before is not None and any(each.kind == "without noise" for each in run.before.stages)


def _of_made(run: Kept) -> list[Metric]:
    told = run.before.metrics if run.before is not None else {}
    return [
        Metric(name=name, value=value, better=better, words=said)
        for key, value in told.items()
        for name, better, said in [KNOWN.get(key, (key, "", ""))]
    ]


def _kinds_of_images(run: Kept) -> list[Html | None]:
    """Some images of each kind, if they can be read."""
    kept = found(Folder(run.path).public / SAMPLES, read_samples)
    if kept.trouble:
        return [tag("p", f"{run.name}: {kept.trouble}.", class_="missing")]
    parts: list[Html | None] = []
    for kind, images in (kept.value or {}).items():
        parts += [tag("h3", f"{run.name}: {kind} images"), _picture(images, f"{kind} images of {run.name}")]
    return parts


def read_samples(path: Path) -> Found[dict[str, Pixels]]:
    """Images (n, channels, height, width) by their kind, as (n, height, width, channels); nothing pickled is loaded."""
    if path.stat().st_size > _BYTES:
        return Found(None, f"{path.name} is larger than a report can show")
    try:
        with np.load(path, allow_pickle=False) as file:
            given = {name: file[name] for name in ("public", "synthetic", "random") if name in file.files}
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(str(error) or "it is no npz file") from None
    for name, images in given.items():
        good = images.dtype == np.uint8 and images.ndim == 4 and images.size and images.shape[1] in (1, 3)
        if not good or max(images.shape[2:]) > _SIDE:
            raise ValueError(f"{name} is not uint8 of shape (n, 1 or 3, height, width)")
    return Found({name: images[:_SHOWN].transpose(0, 2, 3, 1) for name, images in given.items()})
