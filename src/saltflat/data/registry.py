"""Data sets by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from saltflat.data import cifar, idx, svhn, table, text
from saltflat.data.digits import digits
from saltflat.data.examples import CIFAR, MNIST, SVHN, Examples, Scale, Split
from saltflat.data.files import Layout, find, root
from saltflat.data.form import Form
from saltflat.errors import DataError, SettingError


@dataclass(frozen=True)
class Source:
    """Where a data set may lie, its number of classes, and the published constants that scale its pixels."""

    layouts: tuple[Layout, ...]
    classes: int
    scale: Scale | None


SOURCES: dict[str, Source] = {
    "mnist": Source(idx.mnist_layouts("mnist", "MNIST/raw", "MNIST"), 10, MNIST),
    # The DP-SAT code scales Fashion-MNIST with MNIST's constants; EMNIST's pictures are made as MNIST's are.
    "fashion-mnist": Source(
        idx.mnist_layouts("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"), 10, MNIST
    ),
    **{
        f"emnist-{kind}": Source(idx.emnist_layouts(kind), classes, MNIST)
        for kind, classes in idx.EMNIST_CLASSES.items()
    },
    "cifar10": Source(cifar.TEN, 10, CIFAR),
    "cifar100": Source(cifar.HUNDRED, 100, CIFAR),
    "svhn": Source(svhn.LAYOUTS, 10, SVHN),
    "adult": Source(table.ADULT_LAYOUTS, table.ADULT.classes, None),
    "reddit": Source(text.LAYOUTS, text.SIZE, None),
}
NAMES = ("digits", *SOURCES)
SIZES = {  # training examples, as the data sets' descriptions say
    "digits": 1_437,
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257,
    "adult": 32_561,
    "reddit": 43_410,
}
SHAPES: dict[str, tuple[int, ...]] = {  # of one example, by the same descriptions
    "digits": (1, 8, 8),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "svhn": (3, 32, 32),
    "adult": (table.ADULT.width,),
    "reddit": (text.LENGTH,),
}
IMAGE = (1, 28, 28)  # of all others


def unknown(name: str) -> SettingError:
    """There is no such data set, in words."""
    return SettingError(
        f"there is no data set {name!r}; known are {', '.join(NAMES)}, and files of yours that end in .npz or .csv"
    )


def official_form(name: str) -> Form:
    """The form of a data set's examples: public constants, nothing is read.

    >>> official_form("mnist").shape, official_form("adult").classes
    ((1, 28, 28), 2)
    """
    if name not in NAMES:
        raise unknown(name)
    classes = SOURCES[name].classes if name in SOURCES else 10
    return Form(SHAPES.get(name, IMAGE), classes, words=classes if is_text(name) else 0)


def is_text(name: str) -> bool:
    """Whether a data set's examples are words, each with the next one as its target."""
    return name == "reddit"


def official_size(name: str) -> int:
    """The published number of training examples: a public constant, nothing is read.

    >>> official_size("mnist")
    60000
    """
    if name not in NAMES:
        raise unknown(name)
    if name not in SIZES:
        raise SettingError(f"the number of training examples of {name} is not on file; declare it as size")
    return SIZES[name]


def load(name: str, data_dir: str | Path | None = None, *, scale: Scale | None = None) -> Split:
    """A data set by name, with its training and test units, number of classes and shape.

    ``data_dir``, or else the environment variable SALTFLAT_DATA, is the folder that holds the data sets, each
    in its official layout; nothing is downloaded, and digits need no files.

    Pixels are scaled with constants that were published with the data set (MNIST's for Fashion-MNIST and
    EMNIST); pass ``scale`` for others, such as `UNIT` for plain [0, 1]. *Guarantee*: no statistic of the data
    is computed.

    >>> split = load("digits")
    >>> split.train.count, split.shape, split.classes
    (1437, (1, 8, 8), 10)
    >>> load("minst")
    Traceback (most recent call last):
    saltflat.errors.SettingError: there is no data set 'minst'; known are digits, mnist, fashion-mnist, ...
    """
    if name not in NAMES:
        raise unknown(name)
    source = SOURCES.get(name)
    if scale is not None and (source is None or source.scale is None):
        raise SettingError(f"{name} has no pixels of 0 to 255 to scale; leave scale out")
    return digits() if source is None else _loaded(name, source, root(data_dir), scale or source.scale)


def _loaded(name: str, source: Source, base: Path, scale: Scale | None) -> Split:
    layout, folder = find(name, base, source.layouts)
    train, test = layout.read(folder)
    try:
        return Split(Examples(*train, scale), Examples(*test, scale), source.classes)
    except DataError as error:
        raise DataError(f"{name} in {folder}: {error}") from error
