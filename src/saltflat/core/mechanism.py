"""From private rows to a released tree: bound each unit, sum, add noise that fits the bound.

The sensitivity travels inside `Bounded`, so the clip and the noise cannot disagree.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saltflat.core.tree import Tree, zeros_like
from saltflat.errors import SettingError


class Chunk(Protocol):
    """Some units' gradients, however they are represented."""

    def norms(self) -> Tensor: ...

    def dot(self, direction: Tree) -> Tensor: ...

    def weighted_sum(self, weights: Tensor) -> Tree: ...

    def scaled(self, scale: Tree) -> Chunk: ...

    def only(self, names: Collection[str]) -> Chunk: ...


class Noise(Protocol):
    """A source of independent standard Gaussians, in the shape of a tree; never the same twice."""

    @property
    def private(self) -> bool: ...

    def normal(self, like: Tree) -> Tree: ...


@dataclass(frozen=True)
class Bounded:
    """A sum over units, and how far one unit can move it."""

    total: Tree
    sensitivity: float  # L2, when one unit is added or removed


def clip_weights(norms: Tensor, bound: float) -> Tensor:
    """c_i = min(1, bound / ||g_i||), and 0 for a unit whose norm is not finite.

    >>> clip_weights(torch.tensor([0.5, 4.0, float("nan"), float("inf")]), bound=1.0)
    tensor([1.0000, 0.2500, 0.0000, 0.0000])
    """
    return torch.where(torch.isfinite(norms), (bound / norms).clamp(max=1), 0)


class Clip(Protocol):
    """A rule that bounds what each unit adds to the sum; it knows the sensitivity that it leaves."""

    @property
    def sensitivity(self) -> float: ...

    def total(self, chunk: Chunk, like: Tree) -> Tree: ...


@dataclass(frozen=True)
class Flat:
    """sum_i min(1, bound / ||g_i||) g_i, the norm over all parameters jointly. A number means this rule.

    *Guarantee*: sensitivity ``bound``. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.
    """

    bound: float

    @property
    def sensitivity(self) -> float:
        return self.bound

    def total(self, chunk: Chunk, like: Tree) -> Tree:
        return chunk.weighted_sum(clip_weights(chunk.norms(), self.bound))


@dataclass(frozen=True)
class Automatic:
    """sum_i bound g_i / (||g_i|| + gamma): every gradient scaled to about the bound, with no norm to tune.

    *Guarantee*: sensitivity ``bound``, since ||g|| / (||g|| + gamma) < 1. A unit without a finite norm weighs 0.
    Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger", NeurIPS 2023.

    >>> Automatic().sensitivity
    1.0
    """

    bound: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _check_bound("bound", self.bound)
        _check_bound("gamma", self.gamma)

    @property
    def sensitivity(self) -> float:
        return self.bound

    def total(self, chunk: Chunk, like: Tree) -> Tree:
        norms = chunk.norms()
        return chunk.weighted_sum(torch.where(torch.isfinite(norms), self.bound / (norms + self.gamma), 0))


@dataclass(frozen=True)
class PerLayer:
    """sum_i min(1, C_l / ||g_il||) g_il for every layer l by itself.

    ``bounds`` is {prefix of parameter names: C_l}, or one number C: every module then gets C / sqrt(layers).

    *Guarantee*: sensitivity sqrt(sum_l C_l^2), which is C in the second form. A unit that has no finite norm in
    some layer weighs 0 in all of them.
    McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018.

    >>> PerLayer({"body": 3.0, "head": 4.0}).sensitivity
    5.0
    """

    bounds: float | Mapping[str, float]

    def __post_init__(self) -> None:
        named = self.bounds if isinstance(self.bounds, Mapping) else {"bounds": self.bounds}
        if not named:
            raise SettingError("per-layer clipping needs a bound for at least one layer; got none")
        for name, bound in named.items():
            _check_bound(f"the bound of {name!r}", bound)

    @property
    def sensitivity(self) -> float:
        return math.hypot(*self.bounds.values()) if isinstance(self.bounds, Mapping) else self.bounds

    def total(self, chunk: Chunk, like: Tree) -> Tree:
        layers = [(chunk.only(names), bound) for names, bound in self.layers(like)]
        norms = torch.stack([layer.norms() for layer, _ in layers])
        sound = torch.isfinite(norms).all(0)
        total: Tree = {}
        for (layer, bound), own in zip(layers, norms, strict=True):
            total |= layer.weighted_sum(torch.where(sound, clip_weights(own, bound), 0))
        return {name: total[name] for name in like}

    def layers(self, like: Tree) -> list[tuple[list[str], float]]:
        """The parameters' names, layer by layer, and each layer's bound."""
        groups: dict[str, list[str]] = {}
        for name in like:
            groups.setdefault(self._layer_of(name), []).append(name)
        if not isinstance(self.bounds, Mapping):
            return [(names, self.bounds / math.sqrt(len(groups))) for names in groups.values()]
        if idle := sorted(self.bounds.keys() - groups.keys()):
            raise SettingError(
                f"no trained parameter belongs to {idle}; take their bounds away: they cost noise"
            )
        return [(names, self.bounds[prefix]) for prefix, names in groups.items()]

    def _layer_of(self, name: str) -> str:
        if not isinstance(self.bounds, Mapping):
            return name.rpartition(".")[0]
        fitting = [p for p in self.bounds if p in ("", name) or name.startswith(p + ".")]
        if not fitting:
            raise SettingError(f"parameter {name!r} has no bound; add its layer, or '' for all the rest")
        return max(fitting, key=len)


def as_clip(clip: float | Clip) -> Clip:
    """A number is the bound of flat clipping."""
    if isinstance(clip, int | float | numbers.Real):
        return Flat(float(clip))
    if not hasattr(clip, "sensitivity"):
        raise SettingError(f"clip_norm is a number or a clipping rule (PerLayer, Automatic); got {clip!r}")
    return clip


def clipped_sum(chunks: Iterable[Chunk], clip: float | Clip, like: Tree) -> Bounded:
    """The sum over all units of all chunks, each bounded by ``clip``; a number is the bound of `Flat`.

    *Guarantee*: adding or removing one unit moves the total by at most ``clip``'s sensitivity in L2 norm,
    whatever the unit holds. No chunks at all give zero.
    """
    rule = as_clip(clip)
    total = _added_up(rule.total(chunk, like) for chunk in chunks)
    return Bounded(zeros_like(like) if total is None else total, rule.sensitivity)


COUNT = ""  # the leaf that holds a count beside the gradients; no parameter has an empty name


def counted_sum(chunks: Iterable[Chunk], bound: float, like: Tree, *, share: float) -> Bounded:
    """The flat sum and, as one more leaf, how many units it left unclipped: one release for both.

        (sum_i clip(g_i),  a sum_i (b_i - 1/2)),   b_i = [||g_i|| <= bound],   a = 2 bound sqrt(share / (1 - share))

    *Guarantee*: a unit moves the first by at most ``bound`` and the second by at most a / 2, so the sensitivity
    of both together is bound / sqrt(1 - share). Noise that fits it leaves (1 - share) of the release to the
    gradients and ``share`` to the count, whose own noise is sigma / (2 sqrt(share)).
    Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
    """

    def total(chunk: Chunk) -> Tree:
        norms = chunk.norms()
        within = torch.where(norms <= bound, 0.5, -0.5).masked_fill(~torch.isfinite(norms), 0)
        count = within.sum(dtype=torch.float64).view(1) * count_scale(bound, share)
        return {**chunk.weighted_sum(clip_weights(norms, bound)), COUNT: count}

    found = _added_up(map(total, chunks))
    some = next(iter(like.values()))
    nothing = {**zeros_like(like), COUNT: torch.zeros(1, dtype=torch.float64, device=some.device)}
    return Bounded(nothing if found is None else found, bound / math.sqrt(1 - share))


def count_scale(bound: float, share: float) -> float:
    """a = 2 bound sqrt(share / (1 - share)): what the count is multiplied by in `counted_sum`."""
    return 2 * bound * math.sqrt(share / (1 - share))


def clamped_sum(values: Iterable[Tensor], bound: float) -> Bounded:
    """sum_i clamp(v_i, -bound, bound), one number per unit; a unit whose number is not finite adds 0.

    *Guarantee*: sensitivity ``bound``.

    >>> clamped_sum([torch.tensor([3.0, -0.5]), torch.tensor([float("nan")])], bound=1.0).total[COUNT]
    tensor([0.5000], dtype=torch.float64)
    """
    total = torch.zeros(1, dtype=torch.float64)
    for each in values:
        sound = torch.where(torch.isfinite(each), each.double(), 0)
        total = total + sound.clamp(-bound, bound).sum().cpu()
    return Bounded({COUNT: total}, bound)


def _added_up(parts: Iterable[Tree]) -> Tree | None:
    """The sum of trees that nobody else holds, or None if there are none."""
    total: Tree | None = None
    for part in parts:
        if total is None:
            total = part
        else:
            for name, leaf in part.items():
                total[name] += leaf
    return total


def _check_bound(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise SettingError(f"{name} must be positive and finite; got {value}")


def noised(bounded: Bounded, noise_multiplier: float, noise: Noise) -> Tree:
    """total + noise_multiplier * sensitivity * N(0, I).

    *Guarantee*: the Gaussian mechanism. An empty batch gets the same noise as any other.
    """
    if noise_multiplier == 0:  # not private, and the plan says so: its epsilon is refused
        return bounded.total
    std = noise_multiplier * bounded.sensitivity
    fresh = noise.normal(bounded.total)
    return {
        name: torch.add(bounded.total[name], leaf, alpha=std, out=leaf)  # one pass, into our own memory
        for name, leaf in fresh.items()
    }
