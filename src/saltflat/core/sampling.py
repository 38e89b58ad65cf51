"""Draws of units, and physical batches of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from saltflat.core.rng import fenced_draws, find_generators, fresh_key
from saltflat.errors import DataError, PrivacyError, SettingError
from saltflat.privacy.noise import SecureSampling, disowned
from saltflat.settings import is_positive, is_whole

Indices = NDArray[np.int64]
Batch = Any  # a tensor, or tuples, lists and dictionaries of tensors; rows on the first axis

_MADE_OF = "a batch is made of tensors, tuples, lists and dictionaries; got "


class Units(Protocol):
    """Private data, seen as units that can be taken by number; ``count`` is read once, before training.

    A class may declare ``is_row_wise = True`` if ``take`` gives row i of fixed arrays for unit i: then units are read
    together. Otherwise they are read one at a time (`read_each`).
    """

    @property
    def count(self) -> int: ...

    def take(self, indices: Indices) -> Batch: ...


@dataclass(frozen=True)
class TensorUnits:
    """Examples in tensors: row i of every tensor belongs to unit i. One tensor, tuples and dictionaries of them.

    >>> TensorUnits((torch.arange(4.0), torch.tensor([0, 1, 0, 1]))).take(np.array([2, 3]))
    (tensor([2., 3.]), tensor([0, 1]))
    >>> TensorUnits({"x": torch.arange(4.0)}).take(np.array([2, 3]))
    {'x': tensor([2., 3.])}
    """

    tensors: Batch = field(repr=False)
    is_row_wise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        lengths = {t.shape[0] if t.dim() else 0 for t in leaves(self.tensors)}
        if len(lengths) != 1:
            raise DataError(
                f"tensors of one length are needed, one row per unit; got {len(lengths)} different lengths"
            )

    def __repr__(self) -> str:
        return f"TensorUnits(rows of {form_of(self.tensors)})"

    @property
    def count(self) -> int:
        return rows_in(self.tensors)

    def take(self, indices: Indices) -> Batch:
        return pick(self.tensors, torch.from_numpy(indices))


@dataclass(frozen=True)
class DatasetUnits:
    """Examples in a map-style dataset: item i is unit i. Its length is read once, here.

    >>> data = torch.utils.data.TensorDataset(torch.arange(4.0), torch.tensor([0, 1, 0, 1]))
    >>> DatasetUnits.of(data).take(np.array([2, 3]))
    [tensor([2., 3.]), tensor([0, 1])]
    """

    dataset: Dataset = field(repr=False)
    count: int = field(repr=False)
    collate: Callable[[list], Batch] = field(default=default_collate, repr=False)
    workers: int = 0

    def __post_init__(self) -> None:
        if not is_whole(self.count, 0):
            raise DataError(f"count is the dataset's length, a whole number; got {self.count!r}")
        if not callable(self.collate):
            raise DataError(f"collate is a function of a list of items; got a {type(self.collate).__name__}")

    @classmethod
    def of(
        cls, dataset: Dataset, collate: Callable[[list], Batch] = default_collate, *, workers: int = 0
    ) -> DatasetUnits:
        try:
            count = len(dataset)  # type: ignore[arg-type]
        except TypeError as error:
            raise DataError(f"a dataset with a length is needed; got a {type(dataset).__name__}") from error
        return cls(dataset, count, collate, workers)

    @property
    def reads_ahead(self) -> bool:
        """Whether batches may be read ahead: where processes read, this one's sources of chance are left alone."""
        return self.workers > 0

    def take(self, indices: Indices) -> Batch:
        """Read units together: for checks and public data. Sampled private units go through `read_each`."""
        return self.collate([self.dataset[int(i)] for i in indices])

    def read_each(self, indices: Indices) -> list[Batch | None]:
        """Read every unit alone: its item, its transform and a collate of this one item.

        Args:
            indices: The units to read.

        Returns:
            One batch per unit, in order; None for a unit that cannot be read.

        Guarantee:
            Each unit is read under random draws of its own, in worker processes too; see `saltflat.core.rng`.
        """
        if self.workers:
            return self._readers.read(indices)
        found = self._fenced(indices)
        if not self._seen:
            # A generator may be made when the first unit is read, as some collators with a seed do. That read was not
            # fenced: read again with all generators that are there now.
            before = {id(each) for each in self._generators}
            del self.__dict__["_generators"]
            self._seen.append(True)
            if not before.issuperset(map(id, self._generators)):
                found = self._fenced(indices)
        return found

    def _fenced(self, indices: Indices) -> list[Batch | None]:
        with fenced_draws(self._generators) as start_from:
            return [self._alone(int(index), start_from) for index in indices]

    def _alone(self, index: int, start_from: Callable[[int], None]) -> Batch | None:
        start_from(fresh_key())
        try:
            return self.collate([self.dataset[index]])
        except Exception:
            return None

    @cached_property
    def _generators(self) -> list[Any]:
        """Random generators that the dataset, its transforms and the collate hold."""
        return find_generators(self.dataset, self.collate)

    @cached_property
    def _seen(self) -> list[bool]:
        """Not empty once units were read and generators were looked for afterwards."""
        return []

    def close(self) -> None:
        """Let the processes that read go; the next `take` would start others."""
        self.__dict__.pop("_readers", None)

    @cached_property
    def _readers(self) -> Readers:
        return Readers(replace(self, workers=0), self.workers)


class Readers:
    """Worker processes that read units, started once; batches come back in the order of the request.

    Which units are read is decided here, step by step, and never by a loader of its own.

    Args:
        units: Reads one unit in a worker process.
        workers: The number of processes.
    """

    def __init__(self, units: DatasetUnits, workers: int) -> None:
        self._asked: list[list[int]] = []
        self._workers = workers
        source = torch.Generator()  # of its own, so that torch's goes on as if nothing had been drawn
        source.seed()
        self._loader: DataLoader = DataLoader(
            _UnitsAlone(units),
            batch_sampler=_Asked(self._asked),
            num_workers=workers,
            collate_fn=list,
            persistent_workers=True,
            generator=source,
        )

    def read(self, indices: Indices) -> list[Batch | None]:
        """One batch for each unit; None for a unit that cannot be read."""
        self._asked[:] = [part.tolist() for part in np.array_split(indices, self._workers) if len(part)]
        return [unit for part in self._loader for unit in part]


@dataclass(frozen=True)
class _UnitsAlone(Dataset):
    """Item i is unit i, read alone. A worker process must not fail because of one unit."""

    units: DatasetUnits

    def __getitem__(self, index: int) -> Batch | None:
        return self.units.read_each(np.array([index]))[0]


@dataclass(frozen=True)
class _Asked:
    """The parts that are to be read now; a list that its owner fills."""

    parts: list[list[int]]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(self.parts))

    def __len__(self) -> int:
        return len(self.parts)


@dataclass(frozen=True)
class OnDevice:
    """The same units, in batches on the model's device, wherever the data itself is kept.

    >>> OnDevice(TensorUnits(torch.zeros(4)), torch.device("meta")).take(np.array([2, 3])).device
    device(type='meta')
    """

    units: Units
    device: torch.device

    @property
    def count(self) -> int:
        return self.units.count

    @property
    def reads_ahead(self) -> bool:
        return getattr(self.units, "reads_ahead", False)

    @property
    def is_row_wise(self) -> bool:
        return getattr(self.units, "is_row_wise", False)

    def take(self, indices: Indices) -> Batch:
        return moved(self.units.take(indices), self.device)

    def read_each(self, indices: Indices) -> list[Batch | None]:
        """Read every unit alone; see `saltflat.core.micro_batches.read_each`."""
        return [_moved_or_none(unit, self.device) for unit in read_each(self.units, indices)]

    def close(self) -> None:
        """Let go of whatever reads the units."""
        if isinstance(self.units, DatasetUnits):
            self.units.close()


def read_each(units: Units, indices: Indices) -> list[Any]:
    """Read every unit alone, each under random draws of its own.

    Args:
        units: The private data. Classes with a ``read_each`` of their own read units with it.
        indices: The sampled units.

    Returns:
        What ``take`` gives for each unit, in order; None for a unit that cannot be read.

    Guarantee:
        What is read of a unit depends on that unit and a fresh secret key. The streams of torch, numpy and `random`,
        and generators that the data holds, continue afterwards as if nothing had been drawn.
    """
    own = getattr(units, "read_each", None)
    if own is not None:
        return own(indices)
    found = []
    with fenced_draws(find_generators(units)) as start_from:
        for index in indices:
            start_from(fresh_key())
            try:
                found.append(units.take(np.array([index])))
            except Exception:
                found.append(None)
    return found


def _moved_or_none(unit: Batch | None, device: torch.device) -> Batch | None:
    """The unit on a device. One that is no batch of tensors stays where it is: it is judged later, by itself."""
    try:
        return None if unit is None else moved(unit, device)
    except DataError:
        return unit


class Sampler(Protocol):
    """A source of uniform numbers on [0, 1), by which units are drawn: `SecureSampling`, or a generator of numpy."""

    def random(self, count: int, /) -> NDArray[np.float64]: ...


_FEW = 1 / 64  # the rate below which points are scattered, and no coin is thrown for each unit
_WORD = 2**53  # a source gives multiples of 1 / _WORD


def poisson(count: int, rate: float, source: Sampler) -> Indices:
    """The units of one step: each joins independently with probability ``rate``; there may be none.

    At small rates time and memory follow the number that is drawn, and not ``count``: see `_scattered`. *Guarantee*:
    units join independently of each other, exactly; each with ``rate`` to 2^-53, and no more often than that where
    points are scattered.

    >>> poisson(5, 1.0, np.random.default_rng())
    array([0, 1, 2, 3, 4])
    >>> len(poisson(10**12, 1e-11, np.random.default_rng())) < 100
    True
    """
    if not (is_positive(rate) and rate <= 1):
        raise SettingError(f"the sampling rate must lie in (0, 1]; got {rate!r}")
    if rate < _FEW:
        return _scattered(count, rate, source)
    return np.flatnonzero(_uniforms(count, source) < rate)


def _scattered(count: int, rate: float, source: Sampler) -> Indices:
    """The units that are hit, when as many points as a Poisson law says are thrown at units, each at any of them.

    Then the points of each unit are Poisson too, with mean m, and independent of all others'; so a unit is hit with
    probability 1 - exp(-m), whoever else is, and m = -log(1 - rate). The number of points is a sum of Poisson(1)
    numbers, of which each point stays with a probability below 1, so that m comes out right. All of it is done in
    whole numbers: the only rounding is that of m.
    """
    ones, kept = _points(count, rate)
    thrown = int(_poisson_ones(ones, source).sum())
    stay = int(np.count_nonzero(_words(thrown, source) < kept))
    return np.unique(_below(max(1, count), stay, source))


def _points(count: int, rate: float) -> tuple[int, int]:
    """How many Poisson(1) numbers are added up, and of how many words of 2^53 a point's own makes it stay.

    *Guarantee*: the mean number of points, the product over 2^53, is never above -log(1 - rate) count.
    """
    mean = -math.log1p(-rate) * count * (1 - 2**-50)  # less than all that rounding can add
    ones = math.ceil(mean)
    return ones, math.floor(mean / ones * _WORD) if ones else 0


def _poisson_ones(count: int, source: Sampler) -> Indices:
    """Independent whole numbers with P(k) = 1 / (e k!), exactly.

    A number of heads before the first tails, P(k) = 2^-(k + 1), is taken with probability 2^(k - 1) / k!: coins of
    probability 2/3, 2/4, ..., 2/k for k from 3, one of 1/2 for 0. Of tries, e / 4 are taken.
    """
    found = [np.zeros(0, np.int64)]
    while (missing := count - sum(map(len, found))) > 0:
        words = _words(missing + missing // 2 + 8, source)
        tried = np.frexp(words & -words)[1].astype(np.int64) - 1  # zeros at the end of a word
        taken = words > 0  # none of 53 heads or more: as good as never taken, 2^52 / 53!
        taken[tried == 0] = _below(2, int((tried == 0).sum()), source) == 0
        for k in range(3, int(tried.max()) + 1):
            taken[tried >= k] &= _below(k, int((tried >= k).sum()), source) < 2
        found.append(tried[taken][:missing])
    return np.concatenate(found)


def _below(bound: int, count: int, source: Sampler) -> Indices:
    """Uniform whole numbers from 0 to ``bound`` - 1, without bias: words above the last multiple are drawn again."""
    limit = _WORD // bound * bound
    words = _words(count, source)
    while len(bad := np.flatnonzero(words >= limit)):
        words[bad] = _words(len(bad), source)
    return words % bound


def _words(count: int, source: Sampler) -> Indices:
    """Whole numbers of 53 bits: all that a source gives."""
    return (_uniforms(count, source) * _WORD).astype(np.int64)


def _uniforms(count: int, source: Sampler) -> NDArray[np.float64]:
    """Numbers on [0, 1); those of a source of one's own are looked at, as `check_drawn` does.

    A sum of n of them is n / 2 with deviation sqrt(n / 12), and beyond 7.2 of these less than once in 1e12 draws
    (for a few numbers never: the law of a sum of uniforms has no tails).
    """
    drawn = source.random(count)
    if type(source) is not SecureSampling and not disowned(source) and count:
        away = abs(float(np.sum(drawn)) - count / 2) / math.sqrt(count / 12)
        if not (away <= 7.2 and np.min(drawn) >= 0 and np.max(drawn) < 1 and len(drawn) == count):
            raise PrivacyError(
                f"the source of draws, a {type(source).__name__}, gave {count} numbers of mean {np.mean(drawn):.3g}, "
                "and uniform ones on [0, 1) have 0.5: units would join a step at another rate than is accounted for; "
                "leave sampling out, and a sound source is taken, or say private = False in its class"
            )
    return drawn


def without_replacement(count: int, batch: int, source: Sampler) -> Indices:
    """``batch`` of ``count`` numbers, in order, every such set being as likely: those with the least draws.

    >>> without_replacement(5, 5, np.random.default_rng())
    array([0, 1, 2, 3, 4])
    """
    if not (is_whole(count) and is_whole(batch, 1, count)):
        raise SettingError(
            f"from 1 to {count} of {count} units can be drawn without replacement; got {batch!r}"
        )
    return np.sort(np.argsort(_uniforms(count, source), kind="stable")[:batch])


def labels(count: int, groups: int | None, source: Sampler) -> Indices:
    """A number for each unit of a step, by chance alone: one of ``groups``, or one that no other unit has.

    A unit's place among the data or in the batch would not do: whoever leaves moves all that come after.
    """
    return (_uniforms(count, source) * (groups or 2**53)).astype(np.int64)


def physical(indices: Indices, most: int) -> Iterator[Indices]:
    """Split a logical batch into parts of at most ``most`` units, as even as they can be.

    >>> [len(part) for part in physical(np.arange(10), 4)]
    [4, 3, 3]
    """
    if most < 1:
        raise SettingError(f"a physical batch holds at least one unit; got {most}")
    parts = -(-len(indices) // most)
    yield from np.array_split(indices, parts) if parts else ()


def rows_in(batch: Batch) -> int:
    """The number of rows: the length of the first tensor."""
    for leaf in leaves(batch):
        return len(leaf)
    raise DataError(f"a batch must hold at least one tensor; got {type(batch).__name__}")


def leaves(batch: Batch) -> Iterator[Tensor]:
    """Every tensor in a batch; whatever else it holds is refused."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from leaves(tuple(batch.values()))
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        for item in batch:
            yield from leaves(item)
    else:
        raise DataError(_MADE_OF + type(batch).__name__)


Form = Any  # a batch with (type, shape of a row) in the place of every tensor


def form_of(batch: Batch) -> Form:
    """What a batch's rows look like, whatever they hold and however many they are.

    >>> form_of((torch.zeros(5, 3), torch.zeros(5, dtype=torch.long)))
    ((torch.float32, (3,)), (torch.int64, ()))
    """
    return mapped(lambda leaf: (leaf.dtype, tuple(leaf.shape[1:])), batch)


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch with each of its tensors on a device; one that is there already is not copied."""
    return mapped(lambda leaf: leaf.to(device), batch)


def pick(batch: Batch, rows: Tensor) -> Batch:
    """The batch made of these rows of each of its tensors."""
    return mapped(lambda leaf: leaf[rows.to(leaf.device)], batch)


def every(step: int, batch: Batch, start: int) -> Batch:
    """Each ``step``-th row of a batch from ``start`` on; a copy, as by `pick`.

    >>> every(2, (torch.arange(6),), 1)
    (tensor([1, 3, 5]),)
    """
    return mapped(lambda leaf: leaf[start::step].clone(memory_format=torch.contiguous_format), batch)


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of several batches of one form, one after the other.

    >>> joined([(torch.zeros(1), torch.ones(1)), (torch.ones(1), torch.zeros(1))])
    (tensor([0., 1.]), tensor([1., 0.]))
    """
    rest = [iter(list(leaves(batch))) for batch in batches]
    return mapped(lambda _: torch.cat([next(each) for each in rest]), batches[0])


def mapped(function: Callable[[Tensor], Any], batch: Batch) -> Batch:
    """The batch with ``function`` of every tensor in its place."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(function, item) for key, item in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(mapped(function, item) for item in batch)
    raise DataError(_MADE_OF + type(batch).__name__)
