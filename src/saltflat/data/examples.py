"""What every reader returns: examples kept small, made ready for a model one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat.core.sampling import Indices, physical
from saltflat.errors import DataError, SettingError


@dataclass(frozen=True)
class Scale:
    """Pixels 0 to 255 become ``(pixel / 255 - mean) / std``, channel by channel; one value serves all channels.

    *Guarantee*: mean and std are declared, never computed here. A mean taken from private images would be an
    unaccounted query; for images of your own use `HALF` or `UNIT`.

    >>> HALF(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2)).flatten().tolist()
    [-1.0, 1.0]
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise SettingError(
                f"a scale needs as many means as stds, and stds above 0; got {self.mean} and {self.std}"
            )

    def __call__(self, pixels: Tensor) -> Tensor:
        """Float images (n, c, h, w) from uint8 ones."""
        mean, std = (torch.tensor(v, device=pixels.device).view(-1, 1, 1) for v in (self.mean, self.std))
        return (pixels / 255).sub_(mean).div_(std)


# Published constants, as printed in the papers' code and used for years. Others computed them once on the
# training images; they are taken here as public numbers, and nothing is computed from the files that are read.
UNIT = Scale((0.0,), (1.0,))
HALF = Scale((0.5,), (0.5,))
MNIST = Scale((0.1307,), (0.3081,))
CIFAR = Scale((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
SVHN = Scale((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
IMAGENET = Scale((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Examples:
    """Labelled examples as units: row i of ``inputs`` with ``targets[i]`` is unit i.

    uint8 images (n, c, h, w) stay uint8, a quarter of the memory, and are scaled batch by batch; inputs of
    any other kind are floats, or int64 numbers of words, that are ready as they are, and have no scale.

    >>> some = Examples(torch.full((5, 1, 2, 2), 255, dtype=torch.uint8), torch.arange(5), UNIT)
    >>> inputs, targets = some.take(np.array([3, 4]))
    >>> inputs.shape, float(inputs.max()), targets
    (torch.Size([2, 1, 2, 2]), 1.0, tensor([3, 4]))
    """

    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    scale: Scale | None = None
    features: str = ""  # how the inputs were made from what was read, in words, for the statement
    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise DataError("each example needs one label; got more of the one than of the other")
        if (self.inputs.dtype == torch.uint8) != (self.scale is not None):
            raise SettingError(
                f"uint8 images need a scale and other inputs none; got {self.inputs.dtype} and {self.scale}"
            )
        if self.scale is not None and len(self.scale.mean) not in (1, self.inputs.shape[1]):
            raise SettingError(
                f"images of {self.inputs.shape[1]} channels cannot have {len(self.scale.mean)} means"
            )

    def __repr__(self) -> str:
        """What an example looks like; neither values nor how many there are."""
        return f"Examples(shape={self.shape}, dtype={self.inputs.dtype}, scale={self.scale})"

    @property
    def count(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.inputs.shape[1:])

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """These examples, ready for a model."""
        where = torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(self.inputs.device)
        return self._ready(self.inputs[where]), self.targets[where]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All examples in order, at most ``size`` at a time: for evaluation."""
        for indices in physical(np.arange(self.count), size):
            yield self.take(indices)

    def whole(self) -> tuple[Tensor, Tensor]:
        """All examples at once, as floats."""
        return self._ready(self.inputs), self.targets

    def to(self, device: torch.device | str) -> Examples:
        """The same examples, kept on a device; batches come out on it."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def _ready(self, inputs: Tensor) -> Tensor:
        return inputs if self.scale is None else self.scale(inputs)


@dataclass(frozen=True)
class Split:
    """Examples for training (private) and for testing (public), labelled 0 to ``classes`` - 1.

    ``classes`` is declared by the data set's description, not counted in the labels. Where targets are numbers there
    are 0 classes, and ``span`` is their declared range, which is scaled to [-1, 1]. There may be no test examples.
    ``users`` says whose each training example is, where a column of the data does. ``public`` are examples that were
    taken out of the training examples, as they are not private. Training examples may stay on disk: `Stored` has all
    that is asked of them, but for all inputs or targets at once. ``preprocessing`` says how rows became inputs, as
    `Preprocessing.as_document` writes it; a run keeps it, so that its model can be used on other rows.
    """

    train: Examples
    test: Examples
    classes: int
    span: tuple[float, float] | None = None
    users: tuple[str, ...] | None = field(default=None, repr=False)
    public: Examples | None = None
    keys: NDArray[np.uint64] | None = field(default=None, repr=False)  # of the public ones: `sharing.keys_of`
    preprocessing: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.users is not None and len(self.users) != self.train.count:
            raise DataError("each training example needs one user; got more of the one than of the other")
        if self.train.shape != self.test.shape:
            raise DataError(
                f"one shape is needed for training and testing; got {self.train.shape} and {self.test.shape}"
            )
        for part, examples in (("training", self.train), ("test", self.test)) if self.classes else ():
            if not isinstance(examples, Examples):
                continue  # labels on disk are looked at one by one, when they are read
            wrong = (examples.targets < 0) | (examples.targets >= self.classes)
            if bool(wrong.any()):
                raise DataError(f"{part} labels must lie in 0 to {self.classes - 1}; some do not")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train.shape

    @property
    def words(self) -> int:
        """The size of the vocabulary, where examples are words and each has the next as its target; else 0."""
        return self.classes if self.test.inputs.dtype == torch.int64 else 0
