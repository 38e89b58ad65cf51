"""Processes that train together (`torchrun`, torch.distributed); one process by itself is a group of one.

Every process has the same plan, model and units. A step's units are drawn once and dealt out like cards; each process
adds up its own; the first one adds the sums of all, puts the noise on the total, and hands out what was released. So
there is one sample, one noise and one charge for each step, however many processes there are; a process with no units
adds zero and waits like the others. If one of them fails, `torchrun` ends the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import distributed

from saltflat.core.sampling import Indices
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
        if self.leads:
            try:
                box[0] = make()
            except Exception as error:
                box[1] = error
        distributed.broadcast_object_list(box, src=0)
        if isinstance(box[1], Exception):
            raise box[1]
        return box[0]  # type: ignore[return-value]

    def most(self, number: int) -> int:
        """The largest of the numbers that processes bring."""
        if self.size == 1:
            return number
        largest = torch.tensor([number])
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        return int(largest)

    def released(self, total: Tree, release: Callable[[Tree], Tree]) -> Tree:
        """What ``release`` makes of the sum over all processes; it is called once, in the first of them.

        *Guarantee*: noise is drawn once, for the whole sum. What leaves a process before that is a sum of its clipped
        units, which only the processes of this run see.
        """
        if self.size == 1:
            return release(total)
        for leaf in total.values():
            distributed.reduce(leaf, dst=0)
        answer = release(total) if self.leads else total
        answer = {name: answer[name].to(leaf.dtype).contiguous() for name, leaf in total.items()}
        for leaf in answer.values():
            distributed.broadcast(leaf, src=0)
        return answer


ALONE = Group()
