"""Weights that are sharded over the processes of a group (`torch.distributed.fsdp.fully_shard`).

Every process holds a part of each weight, of what methods and optimizers remember, and of what is released. A unit
still passes through whole layers in the one process that took it: a layer's weights are fetched when a function meets
them (`gradients.away`), so a unit's norm is known where the unit is, exactly, and no norm is ever sent.

Processes have different units, and one may have none, or a unit that fails and is tried again. So nobody can know who
fetches what next, and all of them ask each other: in every round each process says which leaf it wants, or that it is
done, and all take part in fetching what anybody wants. The rounds end when all are done.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed, nn

from saltflat.clipping import Chunk
from saltflat.core.group import Group, talking
from saltflat.core.mechanism import InParts, Noise
from saltflat.errors import ModelError, PrivacyError, SettingError
from saltflat.gradients.away import Away
from saltflat.tree import Tree, as_part, has_shards, is_sharded, own_parts

T = TypeVar("T")

NONE, FAILED = -1, -2  # what a process says that wants no more leaves, or that gives up
SLOTS = 8  # leaves that a process can wish for in one round
# A leaf of at most one part in so many of all, and of at most so many numbers, is kept once fetched: a bias, a norm.
SMALL, MOST_SMALL = 512, 1 << 16


class Rounds:
    """The rounds in which processes fetch leaves for each other; each of them has the same list of leaves."""

    def __init__(self, leaves: Sequence[Tensor], group: Group) -> None:
        self._leaves = [leaf.detach() for leaf in leaves]
        self._group = group
        self._small = min(MOST_SMALL, sum(leaf.numel() for leaf in leaves) // SMALL)
        self._kept: dict[int, Tensor] = {}
        self._over = False

    def fetch(self, numbers: Sequence[int]) -> list[Tensor]:
        """All of these leaves, and whatever the others want in the same rounds."""
        if self._over:
            raise ModelError(
                "a sharded weight was asked for after its question was answered: nobody would answer"
            )
        found = {number: self._kept[number] for number in numbers if number in self._kept}
        missing = [number for number in dict.fromkeys(numbers) if number not in found]
        with torch.no_grad(), torch._C.DisableTorchFunction():  # the model's own functions alone are followed
            for first in range(0, len(missing), SLOTS):
                found |= self._round(missing[first : first + SLOTS])
        small = {number: leaf for number, leaf in found.items() if leaf.numel() <= self._small}
        self._kept |= small
        return [found[number] for number in numbers]

    def finish(self) -> None:
        """Help the others until all are done."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            while not self._over:
                self._round([])

    def fail(self) -> None:
        """Tell the others, who would wait for ever, that this process gives up."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if not self._over:
                self._over = True
                self._wishes([FAILED])

    def forget(self) -> None:
        """Let go of what was kept: whoever is asked now, or later, is somebody else's."""
        self._kept.clear()

    def _round(self, mine: Sequence[int]) -> dict[int, Tensor]:
        wishes = self._wishes(mine)
        if FAILED in wishes:
            self._over = True
            raise ModelError("another process gave up in this step; what it said itself is the reason")
        self._over = not wishes
        found: dict[int, Tensor] = {}
        for number in sorted(wishes):  # in one order everywhere
            gathered = whole_of(self._leaves[number])
            if number in mine:
                found[number] = gathered
        return found

    def _wishes(self, mine: Sequence[int]) -> set[int]:
        """The leaves that anybody wants; all processes ask at the same time."""
        if self._group.size == 1:
            return set(mine)
        said = [torch.empty(SLOTS, dtype=torch.int64) for _ in range(self._group.size)]
        with talking():
            distributed.all_gather(said, torch.tensor([*mine, *[NONE] * (SLOTS - len(mine))]))
        return set(torch.cat(said).tolist()) - {NONE}


@talking()
def whole_of(leaf: Any) -> Tensor:
    """All of a leaf, in every process; all of them must ask for it."""
    return leaf.full_tensor()


@contextmanager
def fetching(leaves: Sequence[Tensor]) -> Iterator[Away]:
    """Inside, any of these leaves can be had whole, in whatever order; it ends when all processes are done."""
    rounds = Rounds(leaves, Group.here())
    try:
        yield Away(leaves, rounds.fetch)
    except BaseException:
        with suppress(Exception):  # the network itself may be what failed
            rounds.fail()
        raise
    else:
        rounds.finish()
    finally:
        rounds.forget()


@contextmanager
def by_hand(model: nn.Module) -> Iterator[None]:
    """Inside, the model's layers leave their weights to us: the hooks of `fully_shard` would put in others.

    They gather the weights that the model holds, and a step asks at points of its own.
    """
    before = [(module, module._forward_pre_hooks, module._forward_hooks) for module in model.modules()]
    try:
        settle(model)
        for module, first, last in before:
            module._forward_pre_hooks = _without_sharding(first)
            module._forward_hooks = _without_sharding(last)
        yield
    finally:
        for module, first, last in before:
            module._forward_pre_hooks, module._forward_hooks = first, last


def _without_sharding(hooks: Any) -> OrderedDict[int, Any]:
    owner = lambda hook: type(getattr(hook, "__self__", None)).__module__
    return OrderedDict(
        (number, hook)
        for number, hook in hooks.items()
        if not owner(hook).startswith("torch.distributed.fsdp")
    )


def settle(model: nn.Module) -> None:
    """Every layer holds its part again; after a forward of its own, the outermost one may have kept all of it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # whoever sharded a model has loaded it
    for module in model.modules() if fsdp is not None else ():
        if isinstance(module, fsdp.FSDPModule):  # type: ignore[union-attr]
            module.reshard()


def sharded_leaves(model: nn.Module) -> list[Tensor]:
    """The weights and buffers of a model that are sharded, in one order in all processes."""
    return [leaf for leaf in (*model.parameters(), *model.buffers()) if is_sharded(leaf)]


@talking()
def summed(leaf: Tensor, like: Any) -> Tensor:
    """sum over processes of ``leaf``, of which each then holds the part that it holds of ``like``."""
    from torch.distributed.tensor import DTensor, Partial

    mine = DTensor.from_local(leaf, like.device_mesh, [Partial()], run_check=False)
    return mine.redistribute(placements=like.placements)


class _Leaves(Protocol):
    """A chunk that gives the leaves of its weighted sum one by one."""

    def norms(self) -> Tensor: ...

    def leaves(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]: ...

    def only(self, names: Collection[str]) -> Chunk: ...


@dataclass(frozen=True)
class Dealt:
    """Units of one process, whose weighted sum is that over the units of all, leaf by leaf.

    All processes ask the same of theirs, in the same order; one without units has an empty chunk. A unit's norm is its
    own, over whole layers.
    """

    chunk: _Leaves = field(repr=False)
    like: Tree = field(repr=False)

    def norms(self) -> Tensor:
        return self.chunk.norms()

    def weighted_sum(self, weights: Tensor) -> Tree:
        return {name: summed(leaf, self.like[name]) for name, leaf in self.chunk.leaves(weights)}

    def only(self, names: Collection[str]) -> Dealt:
        return Dealt(self.chunk.only(names), {name: self.like[name] for name in names})  # type: ignore[arg-type]

    def dot(self, direction: Tree) -> Tensor:
        raise SettingError(NO_FRAMES)

    def scaled(self, scale: Tree) -> Chunk:
        raise SettingError(NO_FRAMES)


NO_FRAMES = (
    "this method changes coordinates before the clip (a frame: Shift, Precondition or Mask), and with sharded weights "
    "no process has the whole frame beside a unit's gradient; take another method, or a model that is not sharded"
)


def released_in_parts(total: Tree, release: Callable[[Tree], Tree], group: Group) -> Tree:
    """What ``release`` makes of a sum over all processes whose leaves are sharded: each releases the parts it holds.

    *Guarantee*: every coordinate is held by one process, which puts noise on it once, from a secret of its own, with
    the standard deviation for the sensitivity of the whole sum. Gaussian noise has independent coordinates, so this is
    one draw for the whole: nothing is added up, and no share is smaller. A count beside the gradients, which nobody
    shards, is summed and released by the first process.
    """
    parts = {name: leaf for name, leaf in total.items() if is_sharded(leaf)}
    rest = {name: leaf for name, leaf in total.items() if name not in parts}
    for leaf in rest.values():
        if group.size > 1:
            with talking():
                distributed.reduce(leaf, dst=0)
    mine = own_parts(parts)
    answer = release({**mine, **rest} if group.leads else mine)
    for name, leaf in rest.items():
        rest[name] = answer.pop(name).to(leaf.dtype).contiguous() if group.leads else leaf
        if group.size > 1:
            with talking():
                distributed.broadcast(rest[name], src=0)
    return {**{name: as_part(answer[name], leaf) for name, leaf in parts.items()}, **rest}


def check_same_release(multiplier: float, sensitivity: float, group: Group) -> None:
    """Refuse a release for which processes would take other noise, or another clip, than the first.

    The plans were compared (`core.alike`); a schedule or a method is code, and could still ask who it is run by.
    """
    mine = (multiplier, sensitivity)
    said = [mine] * group.size
    if group.size > 1:
        with talking():
            distributed.all_gather_object(said, mine)
    for rank, theirs in enumerate(said):
        if theirs != said[0]:
            raise PrivacyError(
                f"process {rank} would release with noise multiplier {theirs[0]:g} and sensitivity {theirs[1]:g}, and "
                f"the first one with {said[0][0]:g} and {said[0][1]:g}: a schedule, a clipping rule or a method does "
                "something else in each process; let them do the same"
            )


def agreed(value: T, params: Tree) -> T:
    """Where ``params`` are sharded, the first process's value in all of them: what follows asks all or none."""
    return Group.here().told(lambda: value) if has_shards(params) else value


def most_of(values: Sequence[float]) -> list[float]:
    """The largest that any process has, place by place."""
    largest = torch.tensor(values, dtype=torch.float64)
    with talking():
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return largest.tolist()


def own_source(noise: Noise, group: Group) -> Noise:
    """The source of this process, where each puts noise on the coordinates that it holds; refused if there is none."""
    if isinstance(noise, InParts):
        return noise.part(group.rank)
    raise PrivacyError(
        f"with sharded weights each process puts noise on the coordinates that it holds; {type(noise).__name__} has "
        "no parts: its noise depends on all coordinates together (DiscreteNoise rounds them on one grid), or would be "
        "the same in every process; take SecureNoise, which is there if noise is left out"
    )


def kept_whole(tree: Tree, group: Group) -> Tree:
    """Sharded leaves whole, on the CPU, in the first process; nothing in the others, who must ask too.

    One leaf at a time is whole anywhere else.
    """
    found: Tree = {}
    for name, leaf in tree.items():
        values = whole_of(leaf).cpu() if is_sharded(leaf) else leaf
        if group.leads:
            found[name] = values
    return found
