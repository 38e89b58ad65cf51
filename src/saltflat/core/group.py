"""Processes that train together (`torchrun`, torch.distributed); one process by itself is a group of one.

Every process has the same plan, model and units. A step's units are drawn once and dealt out like cards; each process
adds up its own; the first one adds the sums of all, puts the noise on the total, and hands out what was released. So
there is one sample, one noise and one charge for each step, however many processes there are; a process with no units
adds zero and waits like the others. If one of them fails, the others get a `GroupError`, and `torchrun` ends them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed

from saltflat.core.sampling import Indices
from saltflat.errors import GroupError, SaltflatError
from saltflat.tree import Tree

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """How many processes there are, and which of them this is; the first one writes, charges and draws."""

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> Group:
        """The group that this process has joined, if it has."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return ALONE
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def mine(self, units: Indices) -> Indices:
        """This process's share of what was drawn: no two have one unit, and shares differ by one unit at most.

        >>> Group(1, 2).mine(torch.tensor([3, 5, 8, 9, 11]).numpy())
        array([5, 9])
        """
        return units if self.size == 1 else units[self.rank :: self.size]

    def largest(self, units: Indices) -> Indices:
        """The largest share, which is the first process's."""
        return Group(0, self.size).mine(units)

    def told(self, make: Callable[[], T]) -> T:
        """What the first process makes, in all of them; an error of its own is raised in all of them too."""
        if self.size == 1:
            return make()
        box: list[object] = [None, None]
        failed: Exception | None = None
        if self.leads:
            try:
                box[0] = make()
            except Exception as error:
                failed, box[1] = error, _portable(error)
        with talking():
            distributed.broadcast_object_list(box, src=0)
        if failed is not None:
            raise failed
        if isinstance(box[1], Exception):
            raise box[1]
        return box[0]  # type: ignore[return-value]

    @contextmanager
    def first_in(self, place: Callable[[], AbstractContextManager[T]]) -> Iterator[T | None]:
        """The first process is inside ``place()``, the others get None; what keeps it out is raised in all of them."""
        with ExitStack() as stack:
            inside: list[T] = []
            self.told(lambda: inside.append(stack.enter_context(place())))
            yield inside[0] if inside else None

    def most(self, number: int) -> int:
        """The largest of the numbers that processes bring."""
        if self.size == 1:
            return number
        largest = torch.tensor([number])
        with talking():
            distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        return int(largest)

    def released(self, total: Tree, release: Callable[[Tree], Tree]) -> Tree:
        """What ``release`` makes of the sum over all processes; it is called once, in the first of them.

        *Guarantee*: noise is drawn once, for the whole sum. What leaves a process before that is a sum of its clipped
        units, which only the processes of this run see.
        """
        if self.size == 1:
            return release(total)
        kinds, pieces = _kinds(total), _packed(total, total)
        with talking():
            for piece in pieces:
                distributed.reduce(piece, dst=0)
        if self.leads:
            pieces = _packed(release(_unpacked(pieces, kinds, total)), total)
        with talking():
            for piece in pieces:
                distributed.broadcast(piece, src=0)
        return _unpacked(pieces, kinds, total)


ALONE = Group()


def _kinds(like: Tree) -> list[list[str]]:
    """The leaves by type and device, each kind in one order that all processes have: an empty one may have another."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in sorted(like):
        found.setdefault((str(like[name].dtype), str(like[name].device)), []).append(name)
    return [found[kind] for kind in sorted(found)]


def _packed(tree: Tree, like: Tree) -> list[Tensor]:
    """All leaves of a kind in one piece of memory, types and devices as in ``like``: one message instead of many."""
    return [torch.cat([tree[name].to(like[name]).flatten() for name in names]) for names in _kinds(like)]


def _unpacked(pieces: list[Tensor], kinds: list[list[str]], like: Tree) -> Tree:
    """The leaves again, as parts of the pieces, in the order of ``like``."""
    found: Tree = {}
    for piece, names in zip(pieces, kinds, strict=True):
        parts = piece.split([like[name].numel() for name in names])
        found.update({n: part.view(like[n].shape) for n, part in zip(names, parts, strict=True)})
    return {name: found[name] for name in like}


@contextmanager
def talking() -> Iterator[None]:
    """Whatever fails between processes is one kind of error: the others are not there any more."""
    try:
        yield
    except RuntimeError as error:  # gloo's, nccl's and the store's are all of this kind
        raise GroupError("another process of this run ended, or cannot be reached") from error


def _portable(error: Exception) -> Exception:
    """The error if another process can read it, else one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = SaltflatError if isinstance(error, SaltflatError) else RuntimeError
        return kind(str(error) or type(error).__name__)
    return error
