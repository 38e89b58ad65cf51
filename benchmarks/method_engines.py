"""Every method of this library as an engine, with what it may cost beside DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cases import Batch
from engines import CLIP_NORM, Build, Step
from saltflat_engine import Place, losses, private
from torch import nn

from saltflat import Public, per_example, supervised
from saltflat.clipping import Automatic, PerLayer
from saltflat.data import Flip, PadCrop, TensorUnits, augment
from saltflat.door import AnyMethod
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Quantile, WeightMultiplicity
from saltflat.optimizers import SGD, Adam, AdamBC

COPIES = 4  # of the weights in DPLIS, of the images in augmentation
UNITS_OF_A_PUBLIC_ONE = 4096 // 64  # in weight multiplicity
MANY = 16  # views, each with weights of its own in weight multiplicity
BASE = "dp-sgd"
AUGMENTED = "augmentation-16"
ONCE = "multiplicity-1"
SGD_METHOD = DPSGD()


@dataclass(frozen=True)
class Entry:
    """A method's name in the table, its engine, and the most that a step may take: of the time of the engine
    ``beside`` it in its process, and of the peak memory of the engine ``weighed_by``, each in a process of its own.
    """

    title: str
    build: Build
    most: float | None = None
    beside: str = BASE
    most_memory: float | None = None
    weighed_by: str = BASE


def augmented(
    model: nn.Module,
    batch: Batch,
    *,
    place: Place | None = None,
    views: int = COPIES,
    method: AnyMethod = SGD_METHOD,
    physical: int | None = None,
) -> Step:
    """DP-SGD on random views of every image, drawn anew at every step."""
    if batch[0].dim() != 4:
        raise ValueError("augmentation needs images")
    drawn = augment(PadCrop(), Flip(), views=views)
    return private(model, batch, place=place, method=method, augment=drawn, physical=physical)


def enough(batch: Batch) -> Batch:
    """The batch, or as many of it as make 64 units: one public example is to so many what 64 are to 4,096."""
    times = -(-UNITS_OF_A_PUBLIC_ONE // len(batch[0]))
    return batch[0].repeat(times, 1, 1, 1), batch[1].repeat(times)


def many_views(model: nn.Module, batch: Batch, *, place: Place | None = None) -> Step:
    """16 views of every image, all rows in memory at once."""
    return augmented(model, enough(batch), place=place, views=MANY)


def some_views(model: nn.Module, batch: Batch, *, place: Place | None = None) -> Step:
    """The same in parts that have as many rows as there are units."""
    units = enough(batch)
    return augmented(model, units, place=place, views=MANY, physical=max(1, len(units[0]) // MANY))


def multiplied(model: nn.Module, batch: Batch, *, place: Place | None = None, copies: int = MANY) -> Step:
    """The same views, each at weights moved by public examples: 64 of them for every 4,096 units, as in the paper."""
    units = enough(batch)
    known = Public(per_example(model, supervised(losses)), TensorUnits(batch))
    few = len(units[0]) // UNITS_OF_A_PUBLIC_ONE
    method = WeightMultiplicity(public=known, radius=0.1, copies=copies, batch=few)
    return augmented(model, units, place=place, views=copies, method=method, physical=len(units[0]))


_sgd = partial(private, method=DPSGD())
METHODS: dict[str, Entry] = {
    BASE: Entry("DP-SGD", _sgd),
    "dp-sat": Entry("DP-SAT", partial(private, method=SAT(0.03)), 1.02),
    "dp-sam": Entry("DP-SAM", partial(private, method=SAM(0.03))),
    "sai-first": Entry(
        "SAI, first phase", partial(private, method=SAT(0.05), optimizer=SGD(lr=2.0, momentum=0.9)), 1.02
    ),
    "sai-second": Entry(
        "SAI, second phase", partial(private, method=DPSGD(), optimizer=SGD(lr=0.1, momentum=0.9)), 1.02
    ),
    "dp-adam": Entry("DP-Adam", partial(_sgd, optimizer=Adam(lr=2e-4))),
    "dp-adambc": Entry("DP-AdamBC", partial(_sgd, optimizer=AdamBC(lr=2e-3)), 1.05),
    "dplis": Entry(
        f"DPLIS, K = {COPIES}", partial(private, method=DPLIS(lr=0.1, copies=COPIES)), 1.05 * COPIES
    ),
    "augmentation": Entry(f"augmentation, K = {COPIES}", augmented, 1.05 * COPIES),
    AUGMENTED: Entry(f"augmentation, K = {MANY}", many_views),
    "augmentation-16-parts": Entry(f"augmentation, K = {MANY}, in parts", some_views, beside=AUGMENTED),
    ONCE: Entry("weight multiplicity, K = 1", partial(multiplied, copies=1)),
    "multiplicity-16": Entry(
        f"weight multiplicity, K = {MANY}",
        multiplied,
        1.05,
        beside=AUGMENTED,
        most_memory=1.5,
        weighed_by=ONCE,
    ),
    "per-layer": Entry("per-layer clipping", partial(_sgd, clip_norm=PerLayer(CLIP_NORM))),
    "automatic": Entry("automatic clipping", partial(_sgd, clip_norm=Automatic(CLIP_NORM))),
    "quantile": Entry("adaptive clipping", partial(private, method=Quantile(DPSGD()))),
}
ENGINES: dict[str, Build] = {name: entry.build for name, entry in METHODS.items()}
