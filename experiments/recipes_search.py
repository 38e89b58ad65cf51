"""The search behind the recipes called best-...: settings for Fashion-MNIST on MNIST and back, for CIFAR-10 on neither.

python experiments/recipes_search.py --grey      # MNIST and Fashion-MNIST, whole and subsets; goes on where it stopped
python experiments/recipes_search.py --colour    # things in colour on dead leaves, in the place of photographs
python experiments/recipes_search.py --writing   # enlarged digits of 8 x 8 pixels, in the place of MNIST
python experiments/recipes_search.py --tables    # made-up tables

A linear model that begins at zero does not see a rotation of its features, and noise has no direction. So features are
rotated once to the axes of the made-up images' covariance, where every power and floor of `Whitened` is a factor for
each axis; a try takes seconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import results
import torch
from torch import Tensor, nn
from torch.func import functional_call

import saltflat as sf
from saltflat.core.train import Running
from saltflat.data import Examples, load
from saltflat.features import Grouped, Mirrored, Patches, Scattering, Stage, built, compute
from saltflat.features.stages import mapped
from saltflat.features.whitened import differences
from saltflat.synthesis import DeadLeaves, Images, Process, Strokes

KEPT = Path(__file__).parent / "recipes_search.jsonl"
DELTA, NORM = 1e-5, 63.0
Rows = tuple[Tensor, Tensor]  # features and labels


@dataclass(frozen=True, kw_only=True)
class Try:
    """One run: which features of which examples, and how a linear model is trained on them."""

    data: str
    features: str  # a key of MAPS
    whole: bool = True  # whether all features are whitened together, or the channels
    power: float = 0.5
    floor: float = 1.0
    size: int = 60_000
    as_size: int | None = (
        None  # noise as if there were so many examples: a smaller set in the place of a larger
    )
    epsilon: float = 1.0
    steps: int = 180
    batch_size: int = 4096
    lr: float = 4.0
    clip_norm: float = 0.1
    ema: float = 0.97  # 0 for the last weights
    weight_decay: float = 0.0
    process: str = "dead leaves"  # a key of PROCESSES: what axes are taken from
    within: bool = False  # whether from how images of one character differ, or from how all differ


BEFORE = {"process": "dead leaves", "within": False}  # what lines that do not say it were made with
PROCESSES: dict[str, Process] = {"dead leaves": DeadLeaves(), "strokes": Strokes()}

MAPS: dict[str, list[Stage]] = {
    "scattering, grouped": [Scattering(), Grouped(27)],
    "scattering": [Scattering()],
    "scattering, mirrored": [Mirrored([Scattering()])],
    "patches, mirrored": [Mirrored([Patches(filters=256)])],
}

JOINED = {"scattering and patches, mirrored": ("scattering, mirrored", "patches, mirrored")}


# Training


def trained(one: Try, train: Rows, test: Rows) -> results.Result:
    """Accuracy of the running mean, and of the last weights."""
    inputs, labels = train
    declared = one.as_size or len(inputs)
    model = sf.models.linear(inputs[0].numel(), int(labels.max()) + 1)
    optimizer = sf.optimizers.SGD(lr=one.lr, momentum=0.9, weight_decay=one.weight_decay)
    phase = sf.Phase(
        method=sf.methods.DPSGD(),
        steps=one.steps,
        noise_multiplier=1.0,
        clip_norm=one.clip_norm,
        optimizer=optimizer,
    )
    plan = sf.Plan(phases=(phase,), rate=one.batch_size / declared, size=declared)
    noise = sf.calibrate(plan, epsilon=one.epsilon, delta=DELTA).phases[0].noise_multiplier
    noise *= len(inputs) / declared  # per example of the mean, as much as there would be
    phase = sf.Phase(**{**vars(phase), "noise_multiplier": noise})
    plan = sf.Plan(
        phases=(phase,),
        rate=min(1.0, one.batch_size / len(inputs)),
        size=len(inputs),
        ema=sf.optimizers.EMA(decay=one.ema),
    )
    last: dict[str, Tensor] = {}
    keep = lambda progress: last.update(progress.params) if progress.step == one.steps else None
    loss = sf.supervised(nn.CrossEntropyLoss(reduction="none"))
    started = time.perf_counter()
    ending = sf.train(
        plan,
        sf.per_example(model, loss),
        Examples(inputs, labels),
        running=Running(physical=1024, watch=keep),
    )
    right = lambda params: float(
        (functional_call(model, params, (test[0],)).argmax(1) == test[1]).float().mean()
    )
    return {
        "settings": asdict(one),
        "test_accuracy": right(ending),
        "last_accuracy": right(last),
        "seconds": time.perf_counter() - started,
    }


# Features in the axes of made-up images


@dataclass(frozen=True)
class Axes:
    """The mean and the axes of made-up images' features, and the variance along each axis."""

    mean: Tensor
    vectors: Tensor
    values: Tensor

    def rotated(self, features: Tensor, one: Try) -> Tensor:
        """Features by axis, each with its factor, all of one length."""
        scale = (self.values + one.floor * self.values.mean()) ** -one.power
        turn = self.vectors * scale
        rows = []
        for some in features.split(1000):
            centred = some - self.mean
            by_axis = centred.flatten(1) @ turn if one.whole else torch.einsum("ji,njhw->nihw", turn, centred)
            rows.append(NORM * nn.functional.normalize(by_axis.flatten(1), dim=1))
        return torch.cat(rows)


@lru_cache(maxsize=4)
def axes(features: str, shape: tuple[int, ...], whole: bool, process: str, within: bool) -> Axes:
    """Those of 6,000 made-up images; for the channels of 3,000, or of 1,000 in colour."""
    count = 6000 if whole else 3000 if shape[0] == 1 else 1000
    made = Images(process=PROCESSES[process], channels=shape[0], side=shape[1]).first(count)
    found = mapped(built(MAPS[features], shape), made)
    mean = found.mean(0)
    apart = differences(found, PROCESSES[process]) if within else found - mean
    rows = apart.flatten(1) if whole else apart.movedim(1, -1).flatten(0, -2)
    values, vectors = torch.linalg.eigh((rows.T @ rows / len(rows)).double())
    return Axes(mean, vectors.float(), values.clamp(min=0).float())


def subset(count: int, of: int) -> Tensor:
    """Which examples stand for a smaller data set: always the same."""
    return torch.randperm(of, generator=torch.Generator().manual_seed(7))[:count]


def tried(one: Try, parts: Sequence[Rows]) -> results.Result:
    """A try on images and labels for training and testing."""
    kept = os.environ.get("SALTFLAT_CACHE")
    rows = []
    for (images, labels), count in zip(parts, (one.size, len(parts[1][0])), strict=True):
        chosen = subset(count, len(images)) if count < len(images) else torch.arange(len(images))
        names = JOINED.get(one.features, (one.features,))
        found = [
            axes(name, tuple(images.shape[1:]), one.whole, one.process, one.within).rotated(
                compute(images, MAPS[name], cache=kept)[chosen], one
            )
            for name in names
        ]
        rows.append((torch.cat(found, 1) / len(names) ** 0.5, labels[chosen]))
    return trained(one, rows[0], rows[1])


Pairs = tuple[tuple[float, float], ...]  # power and floor
HARDER: Pairs = ((0.0, 0.1), (0.25, 0.1), (0.25, 0.01), (0.5, 1.0), (0.5, 0.1))
WHOLE: dict[str, tuple[Pairs, Pairs]] = {  # at epsilon 1, and at 3 with twice the steps
    "mnist": (((0.0, 0.1), (0.25, 0.1), (0.5, 1.0), (0.5, 0.3)), ((0.5, 1.0), (0.5, 0.3))),
    "fashion-mnist": (
        (*HARDER, (0.125, 0.1), (0.375, 0.1)),
        ((0.0, 0.1), (0.25, 0.1), (0.25, 0.01), (0.375, 0.1), (0.5, 1.0)),
    ),
}


def grey() -> Iterator[Try]:
    """How hard to whiten, by the number of examples and epsilon; how far to step; how to clip."""
    for data, (one, three) in WHOLE.items():
        base: dict[str, Any] = {"data": data, "features": "scattering, grouped"}
        yield from (Try(**base, power=power, floor=floor) for power, floor in one)
        yield from (Try(**base, power=power, floor=floor, epsilon=3.0, steps=360) for power, floor in three)
        few: dict[str, Any] = {**base, "steps": 90, "batch_size": 2048, "ema": 0.95, "size": 8000}
        for epsilon, last in ((1.0, (0.5, 10.0)), (3.0, (0.5, 1.0))):
            for power, floor in ((0.0, 0.1), (0.125, 0.1), (0.25, 0.1), (0.5, 3.0), last):
                yield Try(**few, power=power, floor=floor, epsilon=epsilon)
        fewer = {**few, "size": 2000, "batch_size": 1000, "steps": 60}
        yield from (Try(**fewer, floor=floor) for floor in (10.0, 100.0))
        quarter: dict[str, Any] = {**base, "power": 0.25, "floor": 0.1}
        yield from (Try(**quarter, steps=steps, lr=8.0) for steps in (90, 180))
        yield Try(**quarter, clip_norm=20.0, lr=0.02)
        yield Try(**base, ema=0.0, weight_decay=3e-4)
    yield Try(data="mnist", features="scattering, grouped", steps=360, lr=2.0, ema=0.985)
    channels: dict[str, Any] = {"data": "fashion-mnist", "features": "scattering, grouped", "whole": False}
    for more in ({}, {"size": 8000, "lr": 2.0}):
        yield from (Try(**channels, power=power, floor=floor, **more) for power, floor in HARDER)


# In the place of photographs: Fashion-MNIST's things, tinted, moved, mirrored by chance, on coloured dead leaves


def pasted(things: Tensor, seed: int) -> Tensor:
    """uint8 (n, 3, 32, 32): each thing in a colour and a texture of its own, somewhere on leaves."""
    count, source = len(things), torch.Generator().manual_seed(seed)
    ground, texture = (
        Images(process=DeadLeaves(), channels=3, side=32, seed=place + seed).first(count).float() / 255
        for place in (100, 200)
    )
    grey = things.float() / 255
    mirrored = torch.rand(count, generator=source) < 0.5
    grey = torch.where(mirrored.view(-1, 1, 1, 1), grey.flip(3), grey)
    moved = torch.zeros(count, 1, 32, 32)
    for image, thing, (down, across) in zip(
        moved, grey, torch.randint(0, 5, (count, 2), generator=source), strict=True
    ):
        image[:, down : down + 28, across : across + 28] = thing
    cover, tint = (4 * moved).clamp(max=1), torch.rand(count, 3, 1, 1, generator=source)
    coloured = 0.75 * (0.3 + 0.7 * tint) * moved + 0.25 * texture
    whole = cover * coloured + (1 - cover) * ground
    whole = whole + 0.02 * torch.randn(whole.shape, generator=source)
    return (255 * whole.clamp(0, 1)).to(torch.uint8)


@lru_cache(maxsize=1)
def images_of(data: str) -> list[Rows]:
    """Images and labels, for training and testing."""
    if data == "digits, enlarged":
        return few_digits()
    if data != "things on leaves":
        split = load(data)
        return [(part.inputs, part.targets) for part in (split.train, split.test)]
    split = load("fashion-mnist")
    counts = (12_000, 3_000)
    return [
        (pasted(part.inputs[:count], seed), part.targets[:count])
        for seed, (part, count) in enumerate(zip((split.train, split.test), counts, strict=True))
    ]


def colour() -> Iterator[Try]:
    """Which features, how hard to whiten, and what a mirror image adds, with the noise of 50,000 examples."""
    base: dict[str, Any] = {"data": "things on leaves", "whole": False, "size": 12_000, "as_size": 50_000}
    base = {**base, "batch_size": 2048, "floor": 0.1}
    for features in ("patches, mirrored", "scattering, mirrored", "scattering and patches, mirrored"):
        yield Try(**base, features=features)


# In the place of MNIST: the digits of 8 x 8 pixels that come with scikit-learn, enlarged


def enlarged(digits: Tensor) -> Tensor:
    """uint8 (n, 1, 28, 28) from images of 8 x 8: 20 pixels wide, with an empty border."""
    grey = nn.functional.interpolate(digits.float() / digits.max(), size=(20, 20), mode="bicubic")
    return (255 * nn.functional.pad(grey, [4] * 4).clamp(0, 1)).to(torch.uint8)


def few_digits() -> list[Rows]:
    """300 digits for training, and all the others: a linear model makes a few mistakes in a hundred there."""
    split = load("digits")
    images = enlarged(torch.cat([split.train.inputs, split.test.inputs]))
    labels = torch.cat([split.train.targets, split.test.targets])
    order = subset(len(images), len(images))
    return [(images[part], labels[part]) for part in (order[:300], order[300:])]


def writing() -> Iterator[Try]:
    """By which made-up images digits are whitened, and how hard: on enlarged digits, and once on MNIST itself."""
    few: dict[str, Any] = {"data": "digits, enlarged", "size": 300, "as_size": 60_000}
    many: dict[str, Any] = {"data": "mnist", "epsilon": 3.0, "steps": 540, "lr": 2.0}
    for process, within in (("strokes", True), ("dead leaves", False)):
        own: dict[str, Any] = {"features": "scattering, grouped", "process": process, "within": within}
        yield from (Try(**few, **own, floor=floor) for floor in (1.0, 0.1))
        if within:
            yield Try(**many, **own)


# Tables


def table(seed: int, count: int) -> Rows:
    """Rows with eight columns of categories and six of skewed numbers, and labels by a logistic model of them."""
    source = torch.Generator().manual_seed(seed)
    columns, score = [], torch.zeros(count)
    for kinds in (2, 3, 4, 5, 6, 8, 10, 15):
        often = torch.rand(kinds, generator=source) ** 3 + 0.01
        drawn = torch.multinomial(often, count, replacement=True, generator=source)
        columns.append(torch.eye(kinds)[drawn])
        score += (0.8 * torch.randn(kinds, generator=source))[drawn]
    for _ in range(6):
        numbers = 2 * (torch.randn(count, generator=source).exp() / 20).clamp(max=1) - 1
        columns.append(numbers.unsqueeze(1))
        score += 6 * torch.randn((), generator=source) * (numbers + 0.9)
    score = score - score.quantile(0.75)
    likely = (2.5 * score / score.std()).sigmoid()
    return torch.cat(columns, 1), (torch.rand(count, generator=source) < likely).long()


def tables() -> Iterator[Try]:
    """Clip norms and learning rates of a linear model."""
    for data in ("made-up table 0", "made-up table 1"):
        for clip_norm, lr in (
            (0.1, 4.0),
            (1.0, 0.4),
            (1.0, 1.0),
            (1.0, 2.0),
            (3.0, 0.3),
            (3.0, 1.0),
            (3.0, 2.0),
            (3.0, 4.0),
            (6.0, 1.0),
        ):
            yield Try(data=data, features="none", size=30_000, steps=100, clip_norm=clip_norm, lr=lr)


SEARCHES = (grey, colour, writing, tables)


def run(one: Try) -> results.Result:
    if one.features != "none":
        return tried(one, images_of(one.data))
    inputs, labels = table(int(one.data.split()[-1]), one.size + 15_000)
    return trained(one, (inputs[: one.size], labels[: one.size]), (inputs[one.size :], labels[one.size :]))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for search in SEARCHES:
        parser.add_argument(f"--{search.__name__}", action="store_true", help=search.__doc__)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    results.check_writable(KEPT)
    for search in SEARCHES:
        for one in search() if getattr(given, search.__name__) else ():
            if any({**BEFORE, **each["settings"]} == asdict(one) for each in results.read(KEPT)):
                continue
            found = run(one)
            results.append(KEPT, found)
            print(f"{one}: {found['test_accuracy']:.4f}, {found['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
