"""What 4 % of public images are worth at epsilon 2: five scenarios side by side, three seeds.

python experiments/public_images.py                  # Fashion-MNIST: fits the generator once, then fifteen private runs
python experiments/public_images.py --data cifar10 --public 2000
python experiments/public_images.py --data mnist --seed 0 --scenarios warm --warm-epochs 20 60
python experiments/public_images.py --table runs/public_images.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from torch import nn

import saltflat as sf
from saltflat import synthesis, warmup
from saltflat.core.public import Public
from saltflat.data import Cutout, Examples, Flip, PadCrop, Shared, load, official_size, shared
from saltflat.errors import SaltflatError
from saltflat.models import tanh_cnn_mnist
from saltflat.runs.making import Lesson, fitted_in
from saltflat.warmup import Known
from saltflat.warmup.known import pixels
from saltflat.warmup.scores import right

SCENARIOS = ("cold", "warm", "warmsyn", "warmrandom", "extended")
ON_MADE = ("warmsyn", "extended")
WITHOUT_NOISE = "warmsyn, no noise"
OWN = {"extended": ", radius {reach:g}", "warmrandom": ", warm-up at {random_lr:g}"}  # told in the table
VIEWS = {  # by which an image stays what it is: clothes and animals also when mirrored
    "fashion-mnist": (PadCrop(2), Flip()),
    "mnist": (PadCrop(2),),
    "cifar10": (PadCrop(4), Flip()),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One private run, and what came before it."""

    data: str
    scenario: str
    seed: int  # of the first weights and of the warm-up; noise and samples are always secret
    epsilon: float = 2.0
    delta: float = 1e-5
    public: int = (
        2400  # 4 % of 60,000, class-balanced, by seed 0 whatever the run's is; of CIFAR-10 it is 2,000
    )
    seen: int = 64_000  # images that the generator is fitted by
    synthetic: int = 3000
    epochs: float = 1.0
    batch: int = 512
    lr: float = 1.0
    clip_norm: float = 0.1
    momentum: float = 0.9
    warm_epochs: int = 40
    syn_epochs: int = 20
    random_epochs: int = 10
    random_lr: float = 0.1
    radius: float = 0.1  # of SAM in the warm-up on made images
    copies: int = 2  # of weight multiplicity, in extended
    reach: float = 0.1  # of weight multiplicity


def generator(settings: Settings, side: int) -> synthesis.Fit:
    """Some minutes on one core, for images of ``side`` pixels."""
    return synthesis.Fit(
        network=synthesis.UNet(channels=16, patch=2, attention=(side // 4,), dropout=0.1),
        augment=synthesis.NonLeaking(mirrored=Flip() in VIEWS[settings.data]),
        seen=settings.seen,
        batch=64,
        half_life=5_000.0,
        ramp=3_000,
    )


TUNABLE = [each for each in fields(Settings) if each.name not in ("data", "scenario", "seed")]


@dataclass(frozen=True)
class Prepared:
    """What all runs of a data set have in common: who is public, and what was made from them."""

    shape: tuple[int, ...]
    parts: Shared
    test: Examples
    known: Known


def prepared(runs: Sequence[Settings], folder: Path, say: Callable[[str], None]) -> Prepared:
    """The public examples, and where a scenario needs them a generator's images, kept in ``folder``."""
    settings = runs[0]
    split = load(settings.data)
    parts = shared(split.train, settings.public / official_size(settings.data), seed=0)
    known = Known(split.shape, 10, split.train.scale, parts.public)
    if not any(run.scenario in (*ON_MADE, WITHOUT_NOISE) for run in runs):
        return Prepared(split.shape, parts, split.test, known)
    kept = folder / f"{settings.data}-{settings.public}-by-hash-{settings.seen}-{settings.synthetic}.npz"
    if not kept.exists():
        _make(settings, split.shape[-1], parts, folder, kept, say)
    arrays = np.load(kept)
    images, labels = (torch.from_numpy(arrays[name]) for name in ("images", "labels"))
    return Prepared(
        split.shape, parts, split.test, replace(known, synthetic=known.examples(images / 255, labels))
    )


def _make(
    settings: Settings, side: int, parts: Shared, folder: Path, kept: Path, say: Callable[[str], None]
) -> None:
    """Fit the generator, or go on with it, and draw from it."""
    named = f"about {settings.public} of {settings.data}, by a hash of each under seed 0"
    lesson = Lesson(pixels(parts.public), parts.public.targets, 10, named)

    def told(seen: Any) -> None:
        if seen.step % 100 == 0:
            say(f"generator, step {seen.step} of {seen.steps}, loss {seen.loss:.3f}")

    place = folder / f"{settings.data}-{settings.public}-by-hash-{settings.seen}"
    found = fitted_in(place, generator(settings, side), lesson, watch=told)
    labels = synthesis.even_labels(settings.synthetic, 10)
    made = found.draw(labels, steps=10, watch=lambda done, total: say(f"made {done} of {total}"))
    images = (made * 255).round().to(torch.uint8)
    np.savez_compressed(kept, images=images.numpy(), labels=labels.numpy())


def stages(settings: Settings) -> tuple[warmup.WarmUp, ...]:
    """The warm-up of a scenario."""
    views = VIEWS[settings.data]
    on_public = warmup.Supervised(on="public", epochs=settings.warm_epochs, batch_size=100, augment=views)
    on_made = warmup.Supervised(
        on="synthetic",
        epochs=settings.syn_epochs,
        batch_size=100,
        augment=(*views, Cutout(10)),
        radius=settings.radius,
    )
    on_nothing = warmup.Contrast(epochs=settings.random_epochs, images=3000, lr=settings.random_lr)
    return {
        "cold": (),
        "warm": (on_public,),
        "warmsyn": (on_made,),
        WITHOUT_NOISE: (on_made,),
        "extended": (on_made,),
        "warmrandom": (on_nothing,),
    }[settings.scenario]


def plan_of(settings: Settings, size: int, model: nn.Module, made: Examples | None) -> sf.Plan:
    """DP-SGD, or with ``made`` weight multiplicity on them, calibrated."""
    loss = sf.supervised(nn.CrossEntropyLoss(reduction="none"))
    method: Any = sf.methods.DPSGD()
    if made is not None:
        pool = Public(sf.per_example(model, loss), made, "images of a generator fitted to public ones")
        method = sf.methods.WeightMultiplicity(
            public=pool, radius=settings.reach, copies=settings.copies, seed=settings.seed
        )
    rate = settings.batch / size
    phase = sf.Phase(
        method=method,
        steps=round(settings.epochs / rate),
        noise_multiplier=1.0,
        clip_norm=settings.clip_norm,
        optimizer=sf.optimizers.SGD(lr=settings.lr, momentum=settings.momentum),
    )
    plan = sf.Plan(phases=(phase,), rate=rate, size=size, ema=sf.optimizers.EMA(0.99))
    return sf.calibrate(plan, epsilon=settings.epsilon, delta=settings.delta)


def run(settings: Settings, ready: Prepared, say: Callable[[str], None]) -> results.Result:
    """Warm up, train and measure once."""
    torch.manual_seed(settings.seed)
    model, started = tanh_cnn_mnist(*ready.shape[:2]), time.perf_counter()
    for stage in stages(settings):
        stage.warmed(model, ready.known, seed=settings.seed, watch=lambda done, total: None)
    at_zero, warmed = right(model, ready.test), time.perf_counter()
    say(f"after the warm-up {at_zero:.2%}")
    private = ready.parts.private
    extended = settings.scenario == "extended"
    noisy = settings.scenario != WITHOUT_NOISE
    plan = plan_of(settings, official_size(settings.data), model, ready.known.synthetic if extended else None)
    spent = plan.epsilon(settings.delta) if noisy else None
    if not noisy:  # what epsilon infinity would reach; not private
        plan = replace(plan, phases=tuple(replace(phase, noise_multiplier=0.0) for phase in plan.phases))
    views = {}
    if extended:
        drawn = sf.data.augment(*VIEWS[settings.data], views=settings.copies)
        views = {"views": settings.copies, "augment": drawn}
    contribution = sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none")), **views)
    last: dict[str, float] = {}

    def watch(progress: Any) -> None:
        if progress.step == progress.steps:
            with torch.no_grad():
                model.load_state_dict(progress.params)
            last["last"] = right(model, ready.test)
            model.load_state_dict(progress.ending)

    sf.train(plan, contribution, private, running=sf.Running(physical=256, watch=watch))
    return {
        "settings": asdict(settings),
        "size": official_size(settings.data),
        "noise_multiplier": plan.phases[0].noise_multiplier,
        "epsilon": spent,
        "accuracy_zero": at_zero,
        "accuracy_last": last["last"],
        "accuracy_ema": right(model, ready.test),
        "seconds_before": warmed - started,
        "seconds": time.perf_counter() - warmed,
    }


def table(found: Sequence[results.Result]) -> str:
    """One line for a scenario: means over seeds with their standard errors."""
    rows = [
        "| scenario | private epochs, learning rate | epsilon | seeds | after warm-up (epsilon 0) | last weights "
        "| running mean | minutes |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|")
    order = [*SCENARIOS, WITHOUT_NOISE]
    keys = sorted({_key(one) for one in found}, key=lambda key: (key[0], order.index(key[1]), *key[2:]))
    for key in keys:
        mine = [one for one in found if _key(one) == key]
        spent = mine[0]["epsilon"]
        minutes = statistics.mean(one["seconds"] / 60 for one in mine)
        cells = [
            _mean([one[name] for one in mine]) for name in ("accuracy_zero", "accuracy_last", "accuracy_ema")
        ]
        shown = "infinity (not private)" if spent is None else f"{spent:.2f}"
        private = f"{mine[0]['settings']['epochs']:g}, {mine[0]['settings']['lr']:g}"
        own = OWN.get(key[1], "").format(**mine[0]["settings"])
        first = f"| {key[0]}, {key[1]}{own} | {private} | {shown} | {len(mine)} "
        rows.append(first + f"| {' | '.join(cells)} | {minutes:.1f} |")
    return "\n".join(rows)


def _key(one: results.Result) -> tuple[Any, ...]:
    rest = {
        name: value for name, value in one["settings"].items() if name not in ("seed", "data", "scenario")
    }
    return one["settings"]["data"], one["settings"]["scenario"], *map(str, rest.values())


def _mean(shares: Sequence[float]) -> str:
    """The mean in percent, and its standard error where there are several."""
    mean = 100 * statistics.mean(shares)
    if len(shares) < 2:
        return f"{mean:.2f}"
    return f"{mean:.2f} ± {100 * statistics.stdev(shares) / math.sqrt(len(shares)):.2f}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="fashion-mnist", choices=tuple(VIEWS))
    parser.add_argument(
        "--scenarios", nargs="+", default=list(SCENARIOS), choices=(*SCENARIOS, WITHOUT_NOISE)
    )
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    for each in TUNABLE:
        flag = f"--{each.name.replace('_', '-')}"
        parser.add_argument(flag, nargs="+", type=type(each.default), default=[each.default])
    parser.add_argument("--folder", type=Path, default=Path("runs/public_images"), help="keeps the generator")
    parser.add_argument("--out", type=Path, default=Path("runs/public_images.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of this file, and do nothing else")
    asked = parser.parse_args(words)
    if asked.table:
        print(table(results.read(asked.table)))
        return
    results.check_writable(asked.out)
    names = ["seed", "scenario", *(each.name for each in TUNABLE)]
    grid = itertools.product(asked.seed, asked.scenarios, *(getattr(asked, name) for name in names[2:]))
    runs = [Settings(data=asked.data, **dict(zip(names, each, strict=True))) for each in grid]
    say = lambda text: print(time.strftime("%H:%M:%S"), text, flush=True)
    ready = prepared(runs, asked.folder, say)
    for settings in runs:
        if any(one["settings"] == asdict(settings) for one in results.read(asked.out)):
            continue
        say(f"{settings.scenario}, seed {settings.seed}")
        found = run(settings, ready, say)
        results.append(asked.out, found)
        say(
            f"{settings.scenario}, seed {settings.seed}: {found['accuracy_ema']:.2%} in {found['seconds']:.0f} s"
        )


if __name__ == "__main__":
    try:
        main()
    except SaltflatError as error:
        sys.exit(f"public_images: {error}")
