"""Teachers: each trained on its own part, and asked what it would answer. Everything here is private.

A teacher is a function of its own rows, its number and public settings. So one unit changes one teacher's choices and
nobody else's, whatever order, process or failure they came in.
"""

from __future__ import annotations

import hashlib
import hmac
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from saltflat.data import Examples, Form
from saltflat.errors import DataError, ModelError, SettingError
from saltflat.pate.fitting import SGD, draws_from, fitted, made, predictions
from saltflat.pate.layout import Layout
from saltflat.pate.votes import TeacherVotes
from saltflat.privacy.record import durable
from saltflat.settings import is_whole

_SIZES = torch.tensor([1e3, -1e2, 1e-2, 1e-3])
Chosen = NDArray[np.int16]  # a teacher's class for each query; -1 where it has none
README = "README.txt"
_TAG = 32  # bytes of the hash before what is kept
PRIVATE = (
    "PRIVATE: what each teacher answers to the public queries. It is as private as the training data, no epsilon "
    "covers it, and no report reads it. It is kept so that an interrupted run can go on, and removed when the run "
    "ends.\n"
)


@dataclass(frozen=True)
class Teaching:
    """What every teacher has in common, all of it public: the network, how it is trained, queries and classes.

    ``make`` gives a new network; in several processes it must be a function that pickle knows by name.
    """

    make: Callable[[], nn.Module]
    how: SGD
    queries: Examples
    classes: int
    seed: int = 0

    def settings(self) -> bytes:
        """What decides, beside a teacher's own part, what it chooses: a digest of settings, queries, first weights."""
        found = hashlib.blake2b(repr((self.how, self.classes, self.seed)).encode())
        weights = made(self.make, self.seed * 1_000_003).state_dict()
        for name, leaf in {"queries": self.queries.inputs, **weights}.items():
            array = leaf.detach().cpu().contiguous()
            found.update(repr((name, array.dtype, tuple(array.shape))).encode())
            found.update(array.flatten().view(torch.uint8).numpy().tobytes())
        return found.digest()

    def teach(self, number: int, part: Examples) -> Chosen:
        """What teacher ``number`` chooses after training on its part. Whatever goes wrong in it, it then abstains.

        *Guarantee*: no error leaves: a message, or the end of a run, would tell what is in the part.
        """
        nobody = np.full(self.queries.count, -1, np.int16)
        try:
            own = self.seed * 1_000_003 + number
            model = fitted(made(self.make, own), part, self.how, seed=own)
            found = predictions(model, self.queries, seed=own)
        except Exception:
            return nobody
        inside = (found >= 0) & (found < self.classes)
        return np.where(inside, found, nobody) if found.shape == nobody.shape else nobody

    def check(self) -> None:
        """Refuse a network that cannot be trained on examples of this form, or that knows of other teachers.

        Tried on made-up ones: a teacher is the same after another one was trained on far larger and smaller numbers.
        """
        form = Form(self.queries.shape, classes=self.classes)
        inputs, targets = form.made_up(4)
        try:
            outputs = self._tried(inputs, targets, number=0)
            with suppress(Exception):  # what it makes of such numbers is nobody's matter
                self._tried(
                    inputs * _SIZES.to(inputs).view(-1, *[1] * (inputs.ndim - 1)), targets.flip(0), number=1
                )
            again = self._tried(inputs, targets, number=0)
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"the network cannot be trained on examples of shape {form.shape}: {first}"
            ) from None
        if tuple(outputs.shape) != (4, self.classes):
            raise ModelError(
                f"the network gives outputs of shape {tuple(outputs.shape[1:])}, and there are {self.classes} classes"
            )
        most = float(outputs.nan_to_num().abs().max())
        if not torch.allclose(outputs, again, rtol=1e-3, atol=1e-3 * most, equal_nan=True):
            raise ModelError(
                "a teacher changes with what others were trained on: make gives one network, or one layer, to several "
                "of them, or networks remember what they saw; let make build a new network each time, that keeps "
                "nothing"
            )

    def _tried(self, inputs: torch.Tensor, targets: torch.Tensor, *, number: int) -> torch.Tensor:
        """What a teacher of these rows gives for them."""
        how = replace(self.how, epochs=1)
        model = fitted(made(self.make, number), Examples(inputs, targets), how, seed=number)
        with torch.no_grad(), draws_from(number, model):
            return model(inputs)


@dataclass(frozen=True)
class Desk:
    """A private folder that keeps what teachers chose, so that a run that was stopped goes on; None keeps nothing.

    ``identity`` is the run's. *Guarantee*: what is kept is believed only of the same run, for a teacher of the same
    number, settings and rows; whatever else lies in the folder is as if it were not there.
    """

    path: Path | None = None
    identity: str = ""

    def open(self) -> None:
        """Make the folder, for its owner only, with a word on what it is."""
        if self.path is not None:
            durable.private_folder(self.path)
            durable.replace(self.path / README, PRIVATE)

    def kept(self, number: int, queries: int, of: bytes, part: Callable[[], Examples]) -> Chosen | None:
        """What a teacher chose; None if it was not kept whole, or of another run, and must be trained again.

        ``of`` is `Teaching.settings`; ``part`` gives the teacher's rows, and is called only if there is a file.
        """
        file = self._file(number)
        try:
            if file is None or file.is_symlink():
                return None
            data = file.read_bytes()
            tag, content = data[:_TAG], data[_TAG:]
            if not hmac.compare_digest(tag, self._tag(number, of, part(), content)):
                return None
            found = np.load(BytesIO(content), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return found if found.dtype == np.int16 and found.shape == (queries,) else None

    def keep(self, number: int, chosen: Chosen, of: bytes, part: Examples) -> None:
        """Keep what a teacher chose, for the owner alone, when it is ready."""
        file = self._file(number)
        if file is not None:
            buffer = BytesIO()
            np.save(buffer, chosen, allow_pickle=False)
            durable.replace(file, self._tag(number, of, part, buffer.getvalue()) + buffer.getvalue())

    def _tag(self, number: int, of: bytes, part: Examples, content: bytes) -> bytes:
        """A hash of what was kept and of all that decided it, under the run's identity."""
        found = hashlib.blake2b(key=self.identity.encode()[:64], digest_size=_TAG)
        found.update(b"teacher %d of %d rows " % (number, part.count) + of)
        for tensor in (part.inputs, part.targets):
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        found.update(content)
        return found.digest()

    def clear(self) -> None:
        """Take away what this class wrote, and the folder if nothing else is in it."""
        if self.path is not None and self.path.is_dir():
            for file in (self.path / README, *self.path.glob("teacher-*.npy")):
                file.unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def _file(self, number: int) -> Path | None:
        return None if self.path is None else self.path / f"teacher-{number:06d}.npy"


def votes_of(
    teaching: Teaching,
    private: Examples,
    layout: Layout,
    *,
    workers: int = 0,
    desk: Desk | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> TeacherVotes:
    """Train a teacher on each part of ``private`` and count what they choose for each query.

    ``workers`` processes train side by side; 0: this one, one after the other. With a ``desk``, teachers that it has
    are not trained again. ``watch`` is told how many are ready, of how many.
    """
    if not is_whole(workers, 0, 1024):
        raise SettingError(f"workers is a whole number from 0 to 1024; got {workers!r}")
    if len(layout.teacher) != private.count:
        raise DataError("the layout is of other data: it must have one teacher for each row")
    teaching.check()
    desk = desk or Desk()
    desk.open()
    queries, of = teaching.queries.count, teaching.settings()
    parts = dict(enumerate(layout.parts()))
    rows_of = lambda number: _part(private, parts[number])
    chosen: dict[int, Chosen] = {}
    for number in parts:
        known = desk.kept(number, queries, of, partial(rows_of, number))
        if known is not None:
            chosen[number] = known
    missing = {number: rows for number, rows in parts.items() if number not in chosen}
    watch(len(chosen), layout.teachers)
    for number, found in _taught(teaching, private, missing, workers):
        desk.keep(number, found, of, rows_of(number))
        chosen[number] = found
        watch(len(chosen), layout.teachers)
    table = np.stack([chosen[number] for number in range(layout.teachers)])
    return TeacherVotes.of(table, classes=teaching.classes)


def _taught(
    teaching: Teaching, private: Examples, parts: Mapping[int, NDArray[np.int64]], workers: int
) -> Iterator[tuple[int, Chosen]]:
    """Each teacher's choices as they come."""
    if not workers:
        for number, rows in parts.items():
            yield number, teaching.teach(number, _part(private, rows))
        return
    with _pool(teaching, workers) as pool:
        waiting = list(parts.items())
        running: dict[Future[Chosen], int] = {}
        while waiting or running:
            while waiting and len(running) < 2 * workers:  # no more rows on the way than are needed
                number, rows = waiting.pop(0)
                running[pool.submit(_teach, number, _Rows.of(_part(private, rows)))] = number
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


@contextmanager
def _pool(teaching: Teaching, workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that know what teachers have in common; whatever ends the work here ends them."""
    common = _Common.of(teaching)
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(common,)
    )
    try:
        yield pool
    except BrokenProcessPool:
        raise DataError(
            "a process that trains teachers ended by itself, for want of memory perhaps; nothing was released: run "
            "again with fewer workers"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _part(private: Examples, rows: NDArray[np.int64]) -> Examples:
    where = torch.from_numpy(rows)
    return replace(private, inputs=private.inputs[where], targets=private.targets[where])


@dataclass(frozen=True)
class _Rows:
    """Examples on their way to another process, as plain arrays."""

    inputs: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)
    scale: object

    @classmethod
    def of(cls, examples: Examples) -> _Rows:
        return cls(examples.inputs.cpu().numpy(), examples.targets.cpu().numpy(), examples.scale)

    def examples(self) -> Examples:
        inputs, targets = torch.from_numpy(self.inputs.copy()), torch.from_numpy(self.targets.copy())
        return Examples(inputs, targets, self.scale)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Common:
    """What teachers have in common, on its way to another process."""

    make: Callable[[], nn.Module]
    how: SGD
    queries: _Rows
    classes: int
    seed: int

    @classmethod
    def of(cls, teaching: Teaching) -> _Common:
        return cls(teaching.make, teaching.how, _Rows.of(teaching.queries), teaching.classes, teaching.seed)

    def teaching(self) -> Teaching:
        return Teaching(self.make, self.how, self.queries.examples(), self.classes, self.seed)


_HERE: list[Teaching] = []  # of a process that trains


def _begin(common: _Common) -> None:
    """A process that trains leaves Ctrl-C to the one that sent for it, and takes one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _HERE[:] = [common.teaching()]


def _teach(number: int, rows: _Rows) -> Chosen:
    return _HERE[0].teach(number, rows.examples())
