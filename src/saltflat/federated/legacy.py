"""Clipping every tensor by itself, as published federated code does it: what it is, and what it costs."""

from __future__ import annotations

import logging
import math
from typing import TypedDict

from saltflat.clipping import PerLayer
from saltflat.errors import SettingError
from saltflat.settings import is_number
from saltflat.tree import Tree

log = logging.getLogger("saltflat")


class Clipped(TypedDict):
    """The two settings of a phase that belong together."""

    clip_norm: PerLayer
    noise_multiplier: float


def per_tensor(params: Tree, *, clip_norm: float, noise_multiplier: float) -> Clipped:
    """Every one of L tensors clipped to C, and noise sigma C: as two settings of a phase, at their true cost.

    A client moves such a sum by up to C sqrt(L), so that its noise multiplier is sigma / sqrt(L), whatever was printed
    beside it: 0.336 and not 0.95 for the 8 tensors of the EMNIST network. A plan with these settings runs what was
    published, and its epsilon is the true one. It is there for reproduction: ``PerLayer(C)`` costs what it says.

    >>> import torch
    >>> found = per_tensor({"w": torch.zeros(2), "b": torch.zeros(2)}, clip_norm=0.2, noise_multiplier=1.0)
    >>> round(found["noise_multiplier"], 4), round(found["clip_norm"].sensitivity, 4)
    (0.7071, 0.2828)
    """
    if not is_number(noise_multiplier, 0):
        raise SettingError(f"noise_multiplier must be 0 or more, and finite; got {noise_multiplier!r}")
    true = noise_multiplier / math.sqrt(len(params))
    log.warning(
        "each of %d tensors is clipped to %g by itself, so a client moves the sum by up to %.4g: noise multiplier %g "
        "is %.4g in truth, and epsilon is counted with that",
        *(len(params), clip_norm, clip_norm * math.sqrt(len(params)), noise_multiplier, true),
    )
    return {"clip_norm": PerLayer(dict.fromkeys(params, clip_norm)), "noise_multiplier": true}
