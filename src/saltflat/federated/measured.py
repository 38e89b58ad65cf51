"""What clipping does to clients' updates: for analysis only, since no epsilon covers it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from saltflat.clipping import clip_weights
from saltflat.core.contribution import Contribution
from saltflat.core.sampling import Units, physical
from saltflat.errors import SettingError
from saltflat.landscape.access import Access, declared
from saltflat.settings import is_positive
from saltflat.tree import Tree


@dataclass(frozen=True)
class Clipped:
    """Norms of updates before the clip, and the factors a_i = min(1, C / ||u_i||) that the clip would give them.

    ``factor`` is the mean of a_i, ``inconsistency`` the mean of |a_i - factor|: where it is large, clients are scaled
    very differently and the mean leans to those with short updates.
    Shi et al., "Make Landscape Flatter in Differentially Private Federated Learning", CVPR 2023.
    """

    norms: Tensor = field(repr=False)
    factor: float
    inconsistency: float
    access: Access


def clipping_of(
    contribution: Contribution, params: Tree, units: Units, *, clip_norm: float, access: Access | None = None
) -> Clipped:
    """What a clip to ``clip_norm`` would do to every unit's update at ``params``; void updates are left out.

    Every unit is read, without noise: ``access`` declares them `PUBLIC`, or that the result `STAYS_PRIVATE`.
    """
    who = declared(access, "the clipping of updates")
    if not is_positive(clip_norm):
        raise SettingError(f"clip_norm must be positive and finite; got {clip_norm!r}")
    parts = physical(np.arange(units.count), 64)
    found = torch.cat(
        [torch.zeros(0), *(contribution([params], [1.0], units.take(part)).norms().cpu() for part in parts)]
    )
    norms = found[torch.isfinite(found)].double()
    factors = clip_weights(norms, clip_norm)
    mean = float(factors.mean()) if len(norms) else 1.0
    return Clipped(norms, mean, float((factors - mean).abs().mean()) if len(norms) else 0.0, who)
