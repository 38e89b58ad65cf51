"""Spectrum noise: random phases under a spectrum that falls off as that of photographs does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.settings import is_number


@dataclass(frozen=True, kw_only=True)
class SpectrumNoise:
    """Gaussian noise with amplitude 1 / (|f_x|^a + |f_y|^b), a and b from ``gentle`` to ``steep`` for each image.

    Each channel of a colour is a random mixture of three such images; values are scaled to [0, 1] image by image.
    Baradad et al., "Learning to See by Looking at Noise", NeurIPS 2021.
    """

    gentle: float = 0.5
    steep: float = 3.5

    def __post_init__(self) -> None:
        if not (is_number(self.gentle, 0, 8) and is_number(self.steep, self.gentle, 8)):
            raise SettingError(
                f"exponents go from gentle to steep, within [0, 8]; got {self.gentle!r} to {self.steep!r}"
            )

    def painted(self, count: int, channels: int, side: int, source: np.random.Generator) -> Tensor:
        exponents = self.gentle + (self.steep - self.gentle) * torch.from_numpy(source.random((count, 2)))
        rise, width = torch.fft.fftfreq(side) * side, torch.fft.rfftfreq(side) * side
        down = rise.abs().double().view(1, -1, 1) ** exponents[:, 1].view(-1, 1, 1)
        across = width.double().view(1, 1, -1) ** exponents[:, 0].view(-1, 1, 1)
        white = torch.from_numpy(source.standard_normal((count, channels, side, side), dtype=np.float32))
        spectrum = torch.fft.rfft2(white) / (down + across).clamp(min=1e-6).unsqueeze(1)
        spectrum[:, :, 0, 0] = 0  # the mean says nothing
        images = torch.fft.irfft2(spectrum, s=(side, side)).float()
        if channels > 1:
            mixture = torch.from_numpy(source.standard_normal((count, channels, channels), dtype=np.float32))
            images = torch.einsum("nij,njhw->nihw", mixture, images)
        return stretched(images)


def stretched(images: Tensor) -> Tensor:
    """Every image to [0, 1], all channels by one factor.

    >>> stretched(torch.tensor([[[[2.0, 4.0]]]]))
    tensor([[[[0., 1.]]]])
    """
    flat = images.flatten(1)
    low, high = (edge.view(-1, 1, 1, 1) for edge in (flat.amin(1), flat.amax(1)))
    return (images - low) / (high - low).clamp(min=1e-12)
