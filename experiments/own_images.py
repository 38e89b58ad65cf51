"""best-images against DP-SGD on a tanh network, by the command line, on folders of images that no recipe knows.

python experiments/own_images.py                     # all cases at epsilon 1 and 3; goes on where it stopped
python experiments/own_images.py --case digits-idx --epsilon 1

Every case is written as a user's folder (pictures by class, or idx files), and both commands get the folder, the
declared size and epsilon, and nothing else. The other side is the shipped DP-SGD recipe of the tanh network, for three
channels where images have them, at the papers' settings (clip norm 0.1, momentum 0.9, 40 epochs) with batches for so
few images.
Needs Pillow (the extra `images`); SALTFLAT_DATA names the folder of data sets.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import results
import torch
from recipes_search import enlarged, pasted, subset
from torch import Tensor

from saltflat.data import load

KEPT = Path(__file__).parent / "own_images.jsonl"
SIZE, TEST = 8000, 2000
Part = tuple[Tensor, Tensor]  # uint8 images (n, channels, height, width) and labels
Parts = tuple[Part, Part]  # for training and for testing


# What stands in for a user's images


def some_of(data: str) -> Parts:
    """8,000 images of a data set, always the same, and 2,000 for testing."""
    split = load(data)
    chosen = subset(SIZE, split.train.count)
    test = split.test.inputs[:TEST], split.test.targets[:TEST]
    return (split.train.inputs[chosen], split.train.targets[chosen]), test


def on_leaves() -> Parts:
    """Things of Fashion-MNIST in colour on dead leaves."""
    (train, labels), (test, others) = some_of("fashion-mnist")
    return (pasted(train, 10), labels), (pasted(test, 11), others)


def small_digits() -> Parts:
    """1,437 digits of 8 x 8 pixels, enlarged to 28."""
    split = load("digits")
    return (enlarged(split.train.inputs), split.train.targets), (
        enlarged(split.test.inputs),
        split.test.targets,
    )


def as_idx(parts: Parts, folder: Path) -> None:
    """The four files; coloured images have their channels last."""
    for name, (images, labels) in zip(("train", "t10k"), parts, strict=True):
        pixels = images[:, 0] if images.shape[1] == 1 else images.permute(0, 2, 3, 1)
        for kind, values in (("images", pixels), ("labels", labels)):
            head = struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape)
            content = head + values.to(torch.uint8).contiguous().numpy().tobytes()
            (folder / f"{name}-{kind}-idx{values.dim()}-ubyte").write_bytes(content)


def as_pictures(parts: Parts, folder: Path) -> None:
    """PNG files in a folder for each class."""
    from PIL import Image

    for name, (images, labels) in zip(("train", "test"), parts, strict=True):
        for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            place = folder / name / f"class{label}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
            Image.fromarray(pixels.contiguous().numpy()).save(place)


CASES: dict[str, tuple[Callable[[], Parts], Callable[[Parts, Path], None]]] = {
    "clothes-idx": (lambda: some_of("fashion-mnist"), as_idx),
    "digits-idx": (lambda: some_of("mnist"), as_idx),
    "photographs-folder": (lambda: some_of("cifar10"), as_pictures),
    "things-on-leaves-idx": (on_leaves, as_idx),
    "small-digits-folder": (small_digits, as_pictures),
}


# The two commands


def words_of(side: str, channels: int) -> list[str]:
    """What follows `saltflat train`: the recipe, or the tanh network for grey or coloured images."""
    if side == "best-images":
        return ["--recipe", "best-images"]
    model = "tanh_cnn_mnist" if channels == 1 else "{tanh_cnn_mnist = {in_channels = 3, side = 32}}"
    return ["--recipe", "fashion-mnist-dp-sgd-eps3", "--model", model, "--batch-size", "512"]


def command(side: str, channels: int, folder: Path, size: int, epsilon: float) -> list[str]:
    known = ["--data", str(folder), "--size", str(size), "--epsilon", f"{epsilon:g}"]
    return [sys.executable, "-m", "saltflat", "train", *words_of(side, channels), *known, "--threads", "1"]


def run(case: str, side: str, epsilon: float) -> results.Result:
    """One command on a fresh folder, and what it measured on the part for testing."""
    make, write = CASES[case]
    parts = make()
    size, channels = len(parts[0][0]), parts[0][0].shape[1]
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place, "images"), Path(place, "run")
        folder.mkdir()
        write(parts, folder)
        started = time.perf_counter()
        words = [*command(side, channels, folder, size, epsilon), "--out", str(out)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
        last = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    return {
        "settings": {"case": case, "side": side, "epsilon": epsilon},
        "size": size,
        "shape": list(parts[0][0].shape[1:]),
        "words": words_of(side, channels),
        "test_accuracy": json.loads(last)["accuracy"],
        "seconds": time.perf_counter() - started,
    }


def runs(cases: Sequence[str], epsilons: Sequence[float]) -> Iterator[tuple[str, str, float]]:
    for case in cases:
        for epsilon in epsilons:
            yield from ((case, side, epsilon) for side in ("best-images", "tanh network"))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES), help="(default: all)")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0], help="(default: 1 3)")
    given = parser.parse_args(words)
    results.check_writable(KEPT)
    for case, side, epsilon in runs(given.case, given.epsilon):
        wanted = {"case": case, "side": side, "epsilon": epsilon}
        if any(each["settings"] == wanted for each in results.read(KEPT)):
            continue
        found = run(case, side, epsilon)
        results.append(KEPT, found)
        print(
            f"{case}, epsilon {epsilon:g}, {side}: {found['test_accuracy']:.4f}, {found['seconds']:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
