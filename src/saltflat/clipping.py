"""Clipping rules: how each unit's gradient is bounded before the sum, and the sensitivity that this leaves.

A rule is a value. It gives the sum and its sensitivity together, so that the noise cannot disagree with the clip.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_positive
from saltflat.tree import Tree

__all__ = ["Automatic", "Flat", "PerLayer"]


SMALLEST, LARGEST = (
    1e-12,
    1e12,
)  # clip norms: beyond them float32 loses the squares of what is compared with them


class Chunk(Protocol):
    """Some units' gradients, however they are represented."""

    def norms(self) -> Tensor: ...

    def dot(self, direction: Tree) -> Tensor: ...

    def weighted_sum(self, weights: Tensor) -> Tree: ...

    def scaled(self, scale: Tree) -> Chunk: ...

    def only(self, names: Collection[str]) -> Chunk: ...


def clip_weights(norms: Tensor, bound: float) -> Tensor:
    """c_i = min(1, bound / ||g_i||), and 0 for a unit whose norm is not finite.

    >>> clip_weights(torch.tensor([0.5, 4.0, float("nan"), float("inf")]), bound=1.0)
    tensor([1.0000, 0.2500, 0.0000, 0.0000])
    """
    return torch.where(torch.isfinite(norms), (bound / norms).clamp(max=1), 0)


class Clip(Protocol):
    """A rule that bounds what each unit adds to the sum; it knows the sensitivity that it leaves.

    ``total`` is the bounded sum over a chunk and ``leaves`` an example of its leaves; ``times`` is the same rule at
    another clip norm, ``counted`` the same rule with a count of the units that it leaves unclipped beside the sum.
    """

    @property
    def sensitivity(self) -> float: ...

    def total(self, chunk: Chunk, like: Tree) -> Tree: ...

    def leaves(self, like: Tree) -> Tree: ...

    def times(self, factor: float) -> Clip: ...

    def counted(self, share: float) -> Clip: ...


class Plain:
    """What rules have in common that sum gradients and nothing else, and have no unit that is left unclipped."""

    def leaves(self, like: Tree) -> Tree:
        return like

    def counted(self, share: float) -> Clip:
        raise SettingError(
            f"{type(self).__name__} changes every unit, so there is none to count, and an adaptive clip norm needs "
            "that count: give the phase a number as clip_norm"
        )


@dataclass(frozen=True)
class Flat(Plain):
    """sum_i min(1, bound / ||g_i||) g_i, the norm over all parameters jointly. A number means this rule.

    *Guarantee*: sensitivity ``bound``. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.
    """

    bound: float

    def __post_init__(self) -> None:
        if not (
            isinstance(self.bound, float) and self.bound == math.inf
        ):  # no clipping, for runs without noise
            _check_bound("bound", self.bound)

    @property
    def sensitivity(self) -> float:
        return self.bound

    def total(self, chunk: Chunk, like: Tree) -> Tree:
        return chunk.weighted_sum(clip_weights(chunk.norms(), self.bound))

    def times(self, factor: float) -> Flat:
        return Flat(self.bound * factor)

    def counted(self, share: float) -> Counted:
        return Counted(self.bound, share)


COUNT = ""  # the leaf that holds a count beside the gradients; no parameter has an empty name


@dataclass(frozen=True)
class Counted:
    """`Flat`, and as one more leaf how many units it left unclipped: one release for both.

        (sum_i clip(g_i),  a sum_i (b_i - 1/2)),   b_i = [||g_i|| <= bound],   a = 2 bound sqrt(share / (1 - share))

    *Guarantee*: a unit moves the first by at most ``bound`` and the second by at most a / 2, so the sensitivity
    of both together is bound / sqrt(1 - share). Noise that fits it leaves (1 - share) of the release to the
    gradients and ``share`` to the count, whose own noise is sigma / (2 sqrt(share)).
    Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021.
    """

    bound: float
    share: float

    @property
    def sensitivity(self) -> float:
        return self.bound / math.sqrt(1 - self.share)

    @property
    def unit(self) -> float:
        """a, what the count is multiplied by."""
        return 2 * self.bound * math.sqrt(self.share / (1 - self.share))

    def total(self, chunk: Chunk, like: Tree) -> Tree:
        norms = chunk.norms()
        within = torch.where(norms <= self.bound, 0.5, -0.5).masked_fill(~torch.isfinite(norms), 0)
        count = within.sum(dtype=torch.float64).view(1) * self.unit
        return {**chunk.weighted_sum(clip_weights(norms, self.bound)), COUNT: count}

    def leaves(self, like: Tree) -> Tree:
        device = next(iter(like.values())).device
        return {**like, COUNT: torch.zeros(1, dtype=torch.float64, device=device)}

    def times(self, factor: float) -> Counted:
        return replace(self, bound=self.bound * factor)

    def counted(self, share: float) -> Counted:
        return replace(self, share=share)


@dataclass(frozen=True)
class Automatic(Plain):
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

    def times(self, factor: float) -> Automatic:
        return replace(self, bound=self.bound * factor)


@dataclass(frozen=True)
class PerLayer(Plain):
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
            raise SettingError("per-layer clipping needs bounds for at least one layer; got none")
        for name, bound in named.items():
            if not isinstance(name, str):
                raise SettingError(
                    f"bounds are {{prefix of parameter names: bound}}; got the prefix {name!r}"
                )
            _check_bound(f"the bound of {name!r}", bound)
        if isinstance(self.bounds, Mapping):
            # kept as they are now, so that clip and noise read the same numbers
            object.__setattr__(self, "bounds", {name: float(bound) for name, bound in named.items()})

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

    def times(self, factor: float) -> PerLayer:
        if isinstance(self.bounds, Mapping):
            return PerLayer({layer: bound * factor for layer, bound in self.bounds.items()})
        return PerLayer(self.bounds * factor)

    def counted(self, share: float) -> Clip:
        raise SettingError(
            "per-layer clipping may clip a unit in one layer and leave it in another, so there is no one count for an "
            "adaptive clip norm: give the phase a number as clip_norm"
        )

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
    if is_positive(clip) or (isinstance(clip, float) and clip == math.inf):
        return Flat(float(clip))
    if isinstance(clip, int | float | numbers.Real) and not isinstance(clip, bool):
        raise SettingError(
            f"clip_norm must be positive, or a clipping rule (PerLayer, Automatic); got {clip!r}"
        )
    if isinstance(clip, bool | type) or not hasattr(clip, "sensitivity"):
        raise SettingError(f"clip_norm is a number or a clipping rule (PerLayer, Automatic); got {clip!r}")
    if type(clip) not in (Flat, Counted, Automatic, PerLayer):  # a subclass may clip otherwise
        raise SettingError(
            f"clip_norm is a number, PerLayer or Automatic; got a {type(clip).__name__}: the noise believes what a "
            "rule says of its sensitivity, so that no other is taken"
        )
    return clip


def _check_bound(name: str, value: float) -> None:
    if not is_positive(value):
        raise SettingError(f"{name} must be positive and finite; got {value!r}")
