"""Clients side by side, in processes of their own: for models that `torch.func.vmap` does not run in a stack.

A worker has a copy of the model and the loss, takes one client after the other, and trains each by the very function
that would have trained it here. So it is a matter of time alone who trains where.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import pickle
import signal
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor, nn

from saltflat import tree
from saltflat.core.sampling import mapped
from saltflat.core.spot import modes_of
from saltflat.core.stop import without_interrupts
from saltflat.errors import ModelError, SettingError
from saltflat.federated.clients import Client
from saltflat.federated.local import Training
from saltflat.settings import is_whole
from saltflat.tree import Tree

READY, CHANGED = "ready", "changed"
_NOT_READY = (
    "workers: a process could not begin ({}); with workers, model and loss are of classes and functions that a module "
    'defines by name, and a script keeps its own lines under if __name__ == "__main__":'
)
_ENDED = (
    "a process that trains clients ended by itself, for want of memory perhaps; what it was at is left out of this "
    "round, and another takes its place"
)

log = logging.getLogger("saltflat")


@dataclass(eq=False)
class Workers:
    """``count`` processes, each of which trains one client at a time on one core; with 0 there are none.

    They begin when they are first needed, and end with this value or with this process, however that ends. They begin
    anew when the model's modes, or its tensors that are not trained, are others than those that were sent.

    *Guarantee*: a client's update is that of training it here, bit for bit on one thread, whichever worker has it and
    whoever was there before. One whose process ends by itself adds nothing; another process takes its place.
    """

    count: int = 0
    _hands: list[_Hand] = field(default_factory=list, init=False, repr=False)
    _sent: _Sent | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_whole(self.count, 0, 1024):
            raise SettingError(f"workers is a whole number from 0 to 1024; got {self.count!r}")
        weakref.finalize(self, _dismiss, self._hands)

    def __reduce__(self) -> Any:
        return Workers, (self.count,)

    @property
    def pids(self) -> list[int]:
        """The processes that there are now."""
        return [hand.process.pid for hand in self._hands if hand.process.pid is not None]

    def differences(self, training: Training, point: Tree, clients: Sequence[Client]) -> list[Tree | None]:
        """w - LOCAL(w) of every client, in their order; None for one that fails."""
        with self._or_end():
            self.begin(training)
            return self._trained(training, point, clients)

    def begin(self, training: Training) -> None:
        """Have all workers ready for this model and this loss; those that ended meanwhile are replaced."""
        with self._or_end():
            if self._sent is None or not self._sent.still(training):
                self.end()
                self._sent = _Sent.of(training)
            for hand in [hand for hand in self._hands if not hand.process.is_alive()]:
                self._let_go(hand)
            self._fill()

    def end(self) -> None:
        """Send the workers home; the next question begins with new ones."""
        _dismiss(self._hands)
        self._sent = None

    @contextmanager
    def _or_end(self) -> Iterator[None]:
        """Whatever is thrown ends the workers: who is still at work would answer to the next question."""
        try:
            yield
        except BaseException:
            self.end()
            raise

    def _fill(self) -> None:
        """Begin as many as are missing, all at once, and wait until they are ready."""
        assert self._sent is not None
        new = [_Hand.begun(self._sent.parcel) for _ in range(self.count - len(self._hands))]
        self._hands += new
        for hand in new:
            hand.check_ready()

    def _let_go(self, hand: _Hand) -> None:
        self._hands.remove(hand)
        _dismiss([hand])

    def _trained(self, training: Training, point: Tree, clients: Sequence[Client]) -> list[Tree | None]:
        found: list[Tree | None] = [None] * len(clients)
        start, how = _pickled(point), {"local": training.local, "step": training.step}
        left, busy = deque(range(len(clients))), dict[_Hand, int]()
        while left or busy:
            for hand in [hand for hand in self._hands if hand not in busy][: len(left)]:
                place = left.popleft()
                if _handed(hand, start, how, clients[place]):
                    busy[hand] = place
            ready = set(wait([hand.channel for hand in busy]))
            for hand in [hand for hand in busy if hand.channel in ready]:
                place = busy.pop(hand)
                try:
                    found[place] = hand.answer()
                except (EOFError, OSError):
                    log.warning(_ENDED)
                    self._let_go(hand)
                    self._fill()
        return found


def _handed(hand: _Hand, start: bytes, how: dict[str, Any], client: Client) -> bool:
    """Whether the hand is at work on this client now; one whose rows cannot be sent is void, as one that fails is."""
    try:
        task = _pickled((how, replace(client, rows=mapped(_by_itself, client.rows))))
    except Exception:
        return False
    hand.ask(start, task)
    return True


def _by_itself(leaf: Tensor) -> Tensor:
    """A tensor without the rest of what it is a part of, which would be sent along."""
    alone = leaf.detach()
    return alone.clone() if alone.untyped_storage().nbytes() > alone.nbytes else alone


def _pickled(what: object) -> bytes:
    return pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True)
class _Sent:
    """What workers began with."""

    training: Training
    parcel: bytes = field(repr=False)
    modes: tuple[bool, ...]
    state: Tree = field(repr=False)

    @classmethod
    def of(cls, training: Training) -> _Sent:
        try:
            parcel = _pickled(training)
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SettingError(_NOT_READY.format(first)) from None
        return cls(training, parcel, modes_of(training.model), tree.copied(_untrained(training.model)))

    def still(self, training: Training) -> bool:
        """Whether it is the model and the loss of this training, as they are now."""
        if training.model is not self.training.model or training.loss is not self.training.loss:
            return False
        return modes_of(training.model) == self.modes and _same(self.state, _untrained(training.model))


@dataclass(eq=False)
class _Hand:
    """One worker, seen from here: it has at most one question at a time."""

    process: BaseProcess
    channel: Connection
    start: bytes = b""  # where its clients begin: sent once a round

    @classmethod
    def begun(cls, parcel: bytes) -> _Hand:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, parcel), daemon=True)
        try:
            with without_interrupts():
                process.start()
        except Exception as error:
            here.close()
            raise SettingError(_NOT_READY.format(type(error).__name__)) from None
        finally:
            there.close()
        return cls(process, here)

    def check_ready(self) -> None:
        try:
            said = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            said = "it ended at once"
        if said != READY:
            raise SettingError(_NOT_READY.format(said))

    def ask(self, start: bytes, task: bytes) -> None:
        """Begin with a client; of a worker that is gone the answer will say so."""
        with suppress(OSError):
            self.channel.send_bytes(b"" if start is self.start else start)
            self.start = start
            self.channel.send_bytes(task)

    def answer(self) -> Tree | None:
        found = pickle.loads(self.channel.recv_bytes())
        if found == CHANGED:
            raise ModelError(
                "a tensor of the model changes when a client trains, and would carry one client's data to the next; "
                "remove the running statistics, or keep that layer in eval mode"
            )
        return found


def _dismiss(hands: list[_Hand]) -> None:
    """A worker ends when nobody asks any more, at once: it has nothing to keep."""
    for hand in hands:
        hand.channel.close()
        hand.process.terminate()
    for hand in hands:
        hand.process.join()
    hands.clear()


def _work(channel: Connection, parcel: bytes) -> None:
    """A worker: it leaves Ctrl-C to the process that sent for it, takes one core, and ends when that one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _keep_memory()
    try:
        training: Training = pickle.loads(parcel)
        state = tree.copied(_untrained(training.model))
    except Exception as error:
        channel.send_bytes(_pickled(type(error).__name__))
        return
    channel.send_bytes(_pickled(READY))
    point: Tree = {}
    with suppress(EOFError, OSError):
        while True:
            start = channel.recv_bytes()
            point = pickle.loads(start) if start else point
            channel.send_bytes(_answered(training, state, point, channel.recv_bytes()))


def _answered(training: Training, state: Tree, point: Tree, task: bytes) -> bytes:
    try:
        how, client = pickle.loads(task)
        found = _pickled(replace(training, **how).tried(point, client))
    except Exception:
        found = _pickled(None)
    return found if _same(state, _untrained(training.model)) else _pickled(CHANGED)


def _untrained(model: nn.Module) -> Tree:
    """Buffers and frozen parameters. What else forward leaves in a model the gate looks after, where it matters."""
    named = (*model.named_buffers(), *model.named_parameters())
    return {name: leaf.detach() for name, leaf in named if not leaf.requires_grad}


def _same(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], leaf) for name, leaf in other.items())


def _keep_memory() -> None:
    """Let glibc keep what is freed: a local step makes the same large tensors again and again.

    Given back to the system and fetched again each time they take about a third of a step, which this process, made
    for nothing else, need not spend. Where there is no glibc nothing happens.
    """
    most = 32 << 20  # what glibc takes at most as its threshold for memory of a mapping's own
    trim, pad, mapping = -1, -2, -3  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in ((mapping, most), (trim, 1 << 30), (pad, most)):
            mallopt(name, value)
