"""Random words -> pairs of standard Gaussians, by Box and Muller's transform.

    (sqrt(-2 ln u) cos t, sqrt(-2 ln u) sin t), u uniform on (0, 1), t uniform on (-pi, pi)

There are two of it for float32, which take the same words to the same numbers but for rounding: `single`, eighteen of
torch's operations, and `compiled`, one pass in C (`box_muller.c`), where that was built when the package was installed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import product

import torch
from torch import Tensor

Transform = Callable[[Tensor, Tensor, Tensor], None]  # random words, where the Gaussians go, room to work in

FEW_THREADS = 4  # of torch's: more of them are as fast together as the compiled transform, which has one


def _constant(value: float) -> Tensor:
    """As a tensor of no dimensions: half the cost per call of a Python number."""
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device="cpu")


_LOW_24, _LOW_31, _LOW_53 = (_constant(2**bits - 1) for bits in (24, 31, 53))
_HALF_CELL_55, _HALF_CELL_53 = _constant(2.0**-56), _constant(2.0**-54)
_HALF_TURN_32, _HALF_TURN_64 = (_constant(math.pi * 2.0**-bits) for bits in (32, 64))
_MINUS_2 = _constant(-2.0)


def single(bits: Tensor, out: Tensor, scratch: Tensor) -> None:
    """u = a 2^-24 + b, b = (2 i + 1) 2^-56, with a of 24 and i of 31 bits; t = (j + 1/2) 2 pi / 2^32.

    Rounding u to float32 would leave holes around radius 0, where u is next to 1. What the rounding lost,
    e, is added back to first order: ln(u + e) = ln u + e, as exact as float32 can hold for every u.
    """
    high, low, angle = bits
    a, b, u = scratch
    a.copy_(high.bitwise_and_(_LOW_24))
    b.copy_(low.bitwise_and_(_LOW_31))
    torch.add(_HALF_CELL_55, b, alpha=2.0**-55, out=b)
    torch.add(b, a, alpha=2.0**-24, out=u)
    torch.sub(u, a, alpha=2.0**-24, out=a)
    e = b.sub_(a)
    t = torch.add(_HALF_TURN_32, a.copy_(angle), alpha=math.pi * 2.0**-31, out=a)
    _polar(u.log_().add_(e), t, out)


def compiled(bits: Tensor, out: Tensor, scratch: Tensor) -> None:
    """The same in one pass, by `box_muller.c`; only where `_library` finds it."""
    if not (bits.is_contiguous() and out.is_contiguous()):
        raise ValueError("the compiled transform takes rows that lie one after the other")
    _library().saltflat_box_muller(bits.data_ptr(), out.data_ptr(), bits.shape[1])  # type: ignore[union-attr]


@cache
def _library() -> ctypes.CDLL | None:
    """`box_muller.c` as it was compiled when the package was installed, or None: there need not be a compiler."""
    found = find_spec("saltflat.privacy._box_muller")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
        library.saltflat_box_muller.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        library.saltflat_box_muller.restype = None
    except (OSError, AttributeError):  # built for another machine
        return None
    return library


def double(bits: Tensor, out: Tensor, scratch: Tensor) -> None:
    """u = (2 i + 1) 2^-54 with i of 53 bits; t = (j + 1/2) 2 pi / 2^64."""
    high, angle = bits
    t, _, u = scratch
    u.copy_(high.bitwise_and_(_LOW_53))
    torch.add(_HALF_CELL_53, u, alpha=2.0**-53, out=u)
    torch.add(_HALF_TURN_64, t.copy_(angle), alpha=math.pi * 2.0**-63, out=t)
    _polar(u.log_(), t, out)


def _polar(log_u: Tensor, t: Tensor, out: Tensor) -> None:
    """out = sqrt(-2 log_u) (cos t, sin t)."""
    radius = log_u.mul_(_MINUS_2).sqrt_()
    cos, sin = out
    torch.cos(t, out=cos).mul_(radius)
    torch.sin(t, out=sin).mul_(radius)


def usual_transform() -> Transform:
    """For float32, whichever is faster."""
    return compiled if torch.get_num_threads() <= FEW_THREADS and is_sound() else single


@cache
def is_sound() -> bool:
    """Whether the compiled transform is there, and gives what the other gives.

    Whoever compiled it may have told the compiler to be careless with numbers: so it is tried once in every process, on
    words from all ends of their ranges.
    """
    if _library() is None:
        return False
    ends = (0, 1, 2**20, 2**24 - 2, 2**24 - 1, 2**30, 2**31 - 2, 2**31 - 1, -(2**31), 1 - 2**31, -1)
    words = torch.tensor(list(product(ends, repeat=3)), dtype=torch.int32, device="cpu").T.contiguous()
    one, other, scratch = torch.zeros((3, 3, words.shape[1]), dtype=torch.float32, device="cpu")
    one, other = one[:2], other[:2]
    compiled(words, one, scratch)
    single(words, other, scratch)  # this one writes into the words
    return bool(((one - other).abs() <= 2e-6 * (1 + other.abs())).all())  # NaN is not near anything
