"""Randomness that is public: jitter and coins that do not depend on private data and need not be secret."""

from __future__ import annotations

import numpy as np
import torch

from saltflat.errors import SettingError
from saltflat.settings import is_whole


def check_seed(seed: object) -> None:
    """Refuse what is no seed of public draws."""
    if not is_whole(seed, -(2**63), 2**63):
        raise SettingError(f"seed is a whole number of 64 bits; got {seed!r}")


def public_draws(*key: int) -> torch.Generator:
    """A source that is the same for one key, in every process: state then is a number, not a generator.

    >>> torch.rand(1, generator=public_draws(1, 2)) == torch.rand(1, generator=public_draws(1, 2))
    tensor([True])
    """
    words = np.random.SeedSequence([abs(number) for number in key]).generate_state(2)
    return torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
