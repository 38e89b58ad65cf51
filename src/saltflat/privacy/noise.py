"""Where the Gaussian noise comes from.

A noise source has two things: ``private``, and ``normal(like)``, which gives independent standard Gaussians
in the shapes, dtypes and devices of the tree ``like``. One that also has ``release`` adds its noise itself.
``docs/noise.md`` says which attacks are covered.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from dataclasses import dataclass, field
from inspect import getattr_static
from itertools import count

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from saltflat.errors import ModelError, SettingError
from saltflat.privacy.box_muller import double, usual_transform
from saltflat.privacy.limits import SEEDED
from saltflat.tree import Tree

Integers = NDArray[np.int64]

_PAIRS = 1 << 17  # pairs of Gaussians per chunk: long enough for two threads, short enough for the cache
_MAX_SCALE = 1 << 20  # keeps every product of the exact sampler below 2^63
_MAX_RESOLUTION = 1 << 18  # a release's scale is up to twice that, and rounding adds noise_multiplier sqrt(D)


@dataclass(frozen=True)
class SecureNoise:
    """Gaussians that nobody can repeat: AES-256 in counter mode, under a new key at every call.

    (sqrt(-2 ln u) cos t, sqrt(-2 ln u) sin t), u uniform on (0, 1) with 55 bits, t uniform on (-pi, pi)

    *Guarantee*: each call takes a 256-bit key from the operating system and forgets it; within a call every
    block has its own counter. The source holds no state, so there is none to save, copy, fork or restore.

    >>> noise = SecureNoise().normal({"w": torch.zeros(2, 3)})
    >>> noise["w"].shape, noise["w"].dtype, SecureNoise().private
    (torch.Size([2, 3]), torch.float32, True)

    Box and Muller, "A note on the generation of random normal deviates", 1958.
    """

    private: bool = field(default=True, init=False)
    stamp: str = field(default="", init=False)

    def normal(self, like: Tree) -> Tree:
        """Independent standard Gaussians in the shape of ``like``."""
        return _normal(_fresh_key(), like)

    def part(self, number: int) -> SecureNoise:
        """The source of one process of several that each put noise on coordinates of their own: there is no other.

        *Guarantee*: every call has a key of its own, in every process, so no two processes draw alike.
        """
        return self


class SeededNoise:
    """The same Gaussians at every run with this seed, for debugging; whatever uses it is NOT PRIVATE.

    >>> like = {"w": torch.zeros(4)}
    >>> torch.equal(SeededNoise(7).normal(like)["w"], SeededNoise(7).normal(like)["w"])
    True
    >>> SeededNoise(7).private, SeededNoise(7).stamp
    (False, 'NOT PRIVATE: seeded')
    """

    private = False
    stamp = SEEDED

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise SettingError(f"seed={seed!r}: a whole number is needed")
        self.seed = seed
        self._calls = count()

    def normal(self, like: Tree) -> Tree:
        """The next standard Gaussians of this seed, in the shape of ``like``."""
        return self._drawn(like, "")

    def part(self, number: int) -> SeededPart:
        """The source of process ``number`` of several that each put noise on coordinates of their own."""
        return SeededPart(self, number)

    def _drawn(self, like: Tree, whose: str) -> Tree:
        name = f"saltflat seeded noise {self.seed} {next(self._calls)}{whose}"
        return _normal(hashlib.sha256(name.encode()).digest(), like)


@dataclass(frozen=True)
class SeededPart:
    """Draws of a `SeededNoise` that differ from process to process.

    >>> like = {"w": torch.zeros(4)}
    >>> torch.equal(SeededNoise(7).part(0).normal(like)["w"], SeededNoise(7).part(1).normal(like)["w"])
    False
    """

    source: SeededNoise
    number: int
    private: bool = field(default=False, init=False)
    stamp: str = field(default=SEEDED, init=False)

    def normal(self, like: Tree) -> Tree:
        """The next standard Gaussians of this process, in the shape of ``like``."""
        return self.source._drawn(like, f" part {self.number}")


@dataclass(frozen=True)
class DiscreteNoise:
    """Gaussians on a grid of at least ``resolution`` steps to a standard deviation, sampled exactly.

    *Guarantee*: a run that is given this source releases by :meth:`release`, the mechanism that is exact from
    end to end, safe against floating-point attacks. :meth:`normal` alone is not: whoever scales and adds rounds
    again.

    >>> total = {"w": torch.tensor([0.5, -0.25], dtype=torch.float64)}
    >>> x = DiscreteNoise(1024).release(total, sensitivity=1.0, noise_multiplier=1.0)["w"]
    >>> bool((x * 1024 == (x * 1024).round()).all())
    True

    Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", 2020.
    """

    resolution: int = 1 << 16
    private: bool = field(default=True, init=False)
    stamp: str = field(default="", init=False)

    def __post_init__(self) -> None:
        _check_scale(self.resolution, "resolution", most=_MAX_RESOLUTION)

    def release(self, total: Tree, *, sensitivity: float, noise_multiplier: float) -> Tree:
        """``total`` on a grid, with the noise of :func:`discrete_noised`.

        spacing = the largest power of two that is at most noise_multiplier sensitivity / resolution

        *Guarantee*: that of :func:`discrete_noised`; the grid is made of public numbers only. On D coordinates the
        noise is above noise_multiplier sensitivity by at most (noise_multiplier sqrt(D) + 1) / resolution of it.
        """
        spacing = _power_of_two(noise_multiplier * sensitivity / self.resolution)
        return discrete_noised(
            total, sensitivity=sensitivity, noise_multiplier=noise_multiplier, spacing=spacing
        )

    def normal(self, like: Tree) -> Tree:
        """Independent discrete Gaussians of variance 1 in the shape of ``like``.

        P(x = k / resolution) proportional to exp(-k^2 / (2 resolution^2)), k an integer
        """
        _check_real(like)
        sizes = [leaf.numel() for leaf in like.values()]
        whole = torch.from_numpy(discrete_gaussian(sum(sizes), scale=self.resolution))
        flat = (whole.double() / self.resolution).split(sizes)
        return {name: x.view(leaf.shape).to(leaf) for (name, leaf), x in zip(like.items(), flat, strict=True)}


VOUCHED = (SecureNoise, DiscreteNoise)  # classes, and no subclass, whose draws need no look


def disowned(source: object) -> bool:
    """Whether a source's class says ``private = False``, as a constant.

    Read without running any code of the source's: one that answers now so and now otherwise would be believed by the
    statement, and not looked at when it draws.

    >>> disowned(SeededNoise(7)), disowned(SecureNoise())
    (True, False)
    """
    return getattr_static(type(source), "private", None) is False


def is_secret(source: object) -> bool:
    """Whether nobody can repeat the draws; whatever does not say so, such as a generator of numpy, can be repeated."""
    return not disowned(source) and bool(getattr(source, "private", False))


@dataclass(frozen=True)
class SecureSampling:
    """Uniform numbers that nobody can repeat, to draw units by: AES-256 in counter mode, under a new key at every call.

    Who was drawn is a secret that amplification by sampling rests on, as the noise is one. *Guarantee*: as for
    `SecureNoise`: there is no state to save, seed, copy or inherit by a fork.

    >>> u = SecureSampling().random(1000)
    >>> bool((0 <= u).all() and (u < 1).all()), SecureSampling().private
    (True, True)
    """

    private: bool = field(default=True, init=False)

    def random(self, count: int) -> NDArray[np.float64]:
        """Independent uniforms on [0, 1), each a multiple of 2^-53."""
        bits = np.frombuffer(_keystream(_fresh_key()).update(bytes(8 * count)), np.uint64)
        return (bits >> np.uint64(11)) * 2.0**-53


def _fresh_key() -> bytes:
    return os.urandom(32)


def _normal(key: bytes, like: Tree) -> Tree:
    """Standard Gaussians from one key: a stream in float32 for every leaf but the float64 ones."""
    _check_real(like)
    double = {name: leaf for name, leaf in like.items() if leaf.dtype == torch.float64}
    single = {name: leaf for name, leaf in like.items() if name not in double}
    if not double:
        return _split(key, single, torch.float32)
    other = hashlib.sha256(b"saltflat float64" + key).digest()  # two streams never share a key
    made = {**_split(key, single, torch.float32), **_split(other, double, torch.float64)}
    return {name: made[name] for name in like}


def _split(key: bytes, like: Tree, dtype: torch.dtype) -> Tree:
    """One flat stream, cut into the leaves of ``like``."""
    sizes = [leaf.numel() for leaf in like.values()]
    total = sum(sizes)
    flat = torch.empty(total + total % 2, dtype=dtype, device="cpu")
    _fill(key, flat)
    parts = flat[:total].split(sizes)
    return {
        name: part.view(leaf.shape).to(leaf) for (name, leaf), part in zip(like.items(), parts, strict=True)
    }


class _Workspace(threading.local):
    """Arrays that one thread uses again: to allocate them at every call would cost more than to fill them."""

    def __init__(self) -> None:
        self.zeros = memoryview(bytes(16 * _PAIRS))
        self.buffer = bytearray(16 * _PAIRS + 16)  # the cipher asks for one block more than it fills
        with torch.inference_mode(False):  # else whoever calls first decides where they may be used
            self.single = torch.empty((3, _PAIRS), dtype=torch.float32, device="cpu")
            self.double = torch.empty((3, _PAIRS), dtype=torch.float64, device="cpu")


_WORKSPACE = _Workspace()


def _fill(key: bytes, out: Tensor) -> None:
    """Fill the flat ``out``, of even length, with the Gaussians of one key, chunk by chunk."""
    single = out.dtype == torch.float32
    size = 12 if single else 16  # bytes of keystream per pair
    box_muller = usual_transform() if single else double
    stream, space = _keystream(key), _WORKSPACE
    scratch = space.single if single else space.double
    words = torch.frombuffer(space.buffer, dtype=torch.int32 if single else torch.int64)
    for piece in out.split(2 * _PAIRS) if len(out) else ():
        n = len(piece) // 2
        stream.update_into(space.zeros[: size * n], space.buffer)
        bits = words[: size * n // words.itemsize].view(-1, n)
        box_muller(bits, piece.view(2, n), scratch[:, :n])


def _keystream(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def discrete_gaussian(shape: int | tuple[int, ...], scale: int) -> Integers:
    """Integers with P(k) proportional to exp(-k^2 / (2 scale^2)), exactly, from secure random bits.

    *Guarantee*: integer arithmetic only. Added to integers of L2 sensitivity S, the release satisfies
    S^2 / (2 scale^2) zero-concentrated DP. The number of rejections, hence the time, is random.

    >>> discrete_gaussian((2, 3), scale=10).shape
    (2, 3)

    Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", 2020, algorithm 3.
    """
    _check_scale(scale, "scale")
    total = int(np.prod(shape, dtype=np.int64))
    found: list[Integers] = []
    missing = total
    while missing > 0:
        found.append(_accepted(2 * missing + 32, scale)[:missing])
        missing -= len(found[-1])
    return np.concatenate([np.zeros(0, np.int64), *found]).reshape(shape)


def grid_sensitivity(sensitivity: float, spacing: float, size: int) -> float:
    """S + spacing sqrt(D): the L2 sensitivity of a tree of D = ``size`` coordinates once on the grid.

    *Guarantee*: rounding moves each coordinate of each of two neighbouring trees by at most spacing / 2.

    >>> grid_sensitivity(1.0, spacing=0.01, size=100)
    1.1
    """
    _check_spacing(spacing)
    return sensitivity + spacing * math.sqrt(size)


def discrete_noised(total: Tree, *, sensitivity: float, noise_multiplier: float, spacing: float) -> Tree:
    """``total`` on the grid plus a discrete Gaussian, in whole numbers: the whole discrete mechanism.

    spacing (round(total / spacing) + k), P(k) proportional to exp(-k^2 / (2 scale^2)),
    scale = ceil(noise_multiplier grid_sensitivity(sensitivity, spacing, D) / spacing)

    *Guarantee*: if adding or removing a unit moves ``total`` by at most ``sensitivity``, the release is
    1 / (2 noise_multiplier^2) zero-concentrated DP as computed, not only on paper.

    >>> total = {"w": torch.zeros(3, dtype=torch.float64)}
    >>> x = discrete_noised(total, sensitivity=1.0, noise_multiplier=2.0, spacing=2**-10)["w"]
    >>> bool((x * 2**10 == (x * 2**10).round()).all())
    True

    Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", 2020.
    """
    _check_power_of_two(spacing)
    _check_real(total)
    sizes = [leaf.numel() for leaf in total.values()]
    if not (0 < sensitivity < math.inf and 0 < noise_multiplier < math.inf):
        raise SettingError(f"{sensitivity=} and {noise_multiplier=}: finite numbers above 0 are needed")
    scale = math.ceil(noise_multiplier * grid_sensitivity(sensitivity, spacing, sum(sizes)) / spacing)
    _check_scale(scale, "noise_multiplier * (sensitivity / spacing + sqrt(D))")
    noise = torch.from_numpy(discrete_gaussian(sum(sizes), scale=scale)).split(sizes)
    return {
        name: ((_whole(leaf, spacing) + k.view(leaf.shape)) * spacing).to(leaf)
        for (name, leaf), k in zip(total.items(), noise, strict=True)
    }


def _whole(leaf: Tensor, spacing: float) -> Tensor:
    """round(leaf / spacing), exactly; the clamp moves no two values apart, so it costs no privacy."""
    return (leaf.detach().cpu().double() / spacing).round().clamp(-(2.0**52), 2.0**52)


def _power_of_two(most: float) -> float:
    """The largest power of two that is at most ``most``; what is no positive number is refused where it is used."""
    return math.ldexp(1.0, math.frexp(most)[1] - 1)


def _check_real(tree: Tree) -> None:
    for name, leaf in tree.items():
        if not leaf.is_floating_point():
            raise ModelError(f"leaf {name!r} is {leaf.dtype}: noise needs real floating-point parameters")


def _check_power_of_two(spacing: float) -> None:
    _check_spacing(spacing)
    if math.frexp(spacing)[0] != 0.5:
        raise SettingError(f"spacing={spacing!r}: a power of two is needed, so that dividing by it is exact")


def _check_scale(scale: int, name: str, *, most: int = _MAX_SCALE) -> None:
    whole = isinstance(scale, int) and not isinstance(scale, bool)
    if not (whole and 1 <= scale <= most):
        raise SettingError(f"{name}={scale!r}: a whole number from 1 to {most} is needed")


def _check_spacing(spacing: float) -> None:
    if not (math.isfinite(spacing) and spacing > 0):
        raise SettingError(f"spacing={spacing!r}: a finite number above 0 is needed")


def _accepted(tries: int, scale: int) -> Integers:
    """Draws of a discrete Laplace that pass the test which makes them discrete Gaussians."""
    y = _discrete_laplace(tries, scale)
    gap = np.abs(np.abs(y) - scale)
    return y[_bernoulli_exp(gap * gap, 2 * scale * scale)]


def _discrete_laplace(tries: int, scale: int) -> Integers:
    """Up to ``tries`` integers with P(k) proportional to exp(-|k| / scale)."""
    u = _below(np.full(tries, scale))
    u = u[_bernoulli_exp(u, scale)]
    size = u + scale * _geometric(len(u))
    negative = _below(np.full(len(u), 2)) == 1
    keep = ~(negative & (size == 0))  # 0 has one sign only
    return np.where(negative, -size, size)[keep]


def _geometric(n: int) -> Integers:
    """How many Bernoulli(1/e) succeed before the first failure."""
    total = np.zeros(n, np.int64)
    alive = np.arange(n)
    while len(alive):
        alive = alive[_bernoulli_exp_unit(np.ones(len(alive), np.int64), 1)]
        total[alive] += 1
    return total


def _bernoulli_exp(x: Integers, y: int) -> NDArray[np.bool_]:
    """True with probability exp(-x / y), exactly: x // y times exp(-1), and the rest."""
    whole, rest = np.divmod(x, y)
    good = _bernoulli_exp_unit(rest, y)
    good &= _geometric(len(x)) >= whole
    return good


def _bernoulli_exp_unit(x: Integers, y: int) -> NDArray[np.bool_]:
    """True with probability exp(-x / y), 0 <= x <= y: Bernoulli(x / (k y)) first fails at an odd k."""
    odd = np.zeros(len(x), np.bool_)
    alive = np.arange(len(x))
    for k in count(1):
        if not len(alive):
            return odd
        success = _below(np.full(len(alive), k * y)) < x[alive]
        odd[alive[~success]] = k % 2 == 1
        alive = alive[success]
    raise AssertionError("count() does not end")


def _below(bound: Integers) -> Integers:
    """Uniform integers in [0, bound), without bias: words above the last multiple are redrawn."""
    limit = (2**63 - 1) // bound * bound
    value = _words63(len(bound))
    while len(bad := np.flatnonzero(value >= limit)):
        value[bad] = _words63(len(bad))
    return value % bound


def _words63(n: int) -> Integers:
    bits = np.frombuffer(_keystream(_fresh_key()).update(bytes(8 * n)), np.uint64)
    return (bits >> np.uint64(1)).astype(np.int64)
