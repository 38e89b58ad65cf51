"""The scattering transform: moduli of wavelet coefficients, averaged; stable under small shifts and deformations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import SettingError
from saltflat.features.stages import Seen, Shape, check_image
from saltflat.settings import is_whole


@dataclass(frozen=True)
class Scattering:
    """S = (x * phi,  |x * psi_a| * phi,  ||x * psi_a| * psi_b| * phi), with Morlet wavelets psi and a Gaussian phi.

    There are ``angles`` wavelets at each of J = ``scales`` octaves, and b is coarser than a, so that an input channel
    gives 1 + L J + L^2 J (J - 1) / 2 channels, 81 as it stands, at a 2^J-th of the side. Borders are mirrored. The
    filters, and the order of channels, are those of kymatio's ``Scattering2D``.
    Bruna and Mallat, "Invariant Scattering Convolution Networks", PAMI 2013; under differential privacy Tramer and
    Boneh, "Differentially Private Learning Needs Better Features", ICLR 2021.

    >>> Scattering().after((3, 32, 32))
    (243, 8, 8)
    """

    scales: int = 2
    angles: int = 8

    def __post_init__(self) -> None:
        if not (is_whole(self.scales, 1, 8) and is_whole(self.angles, 1, 64)):
            raise SettingError(
                f"scales lie in 1 to 8 and angles in 1 to 64; got {self.scales!r} and {self.angles!r}"
            )

    def after(self, shape: Shape) -> Shape:
        channels, height, width = check_image(shape, "Scattering")
        pair = self.angles**2 * self.scales * (self.scales - 1) // 2
        sides = []
        for side in (height, width):
            padded = self.padded(side)
            if -(-(padded - side) // 2) >= side:
                raise SettingError(
                    f"images of {height} x {width} are too small for {self.scales} scales; take fewer"
                )
            sides.append(padded // 2**self.scales - 2)
        return channels * (1 + self.angles * self.scales + pair), sides[0], sides[1]

    def padded(self, side: int) -> int:
        """The side with its borders: whole steps of 2^J, and at least one on each end."""
        step = 2**self.scales
        return ((side + step) // step + 1) * step

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        self.after(shape)
        _, height, width = check_image(shape, "Scattering")
        return _Scattering(self, height, width)


class _Scattering(nn.Module):
    """Filters as buffers; convolutions by Fourier transform, averages by two small matrices."""

    def __init__(self, of: Scattering, height: int, width: int) -> None:
        super().__init__()
        self.scales, self.angles = of.scales, of.angles
        rows, columns = of.padded(height), of.padded(width)
        self.border = [
            (columns - width) // 2,
            -(-(columns - width) // 2),
            (rows - height) // 2,
            -(-(rows - height) // 2),
        ]
        for scale in range(self.scales):
            psi = torch.stack([morlet(rows, columns, scale, k, of.angles) for k in range(of.angles)])
            for level in range(scale + 1):  # at every resolution that it may meet a signal in
                self.register_buffer(f"psi_{scale}_{level}", _low(psi, level).float(), persistent=False)
            for name, side in (("rows", rows), ("columns", columns)):
                mean = averaging(side, scale, self.scales).float()
                self.register_buffer(f"{name}_{scale}", mean, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        count, channels = images.shape[:2]
        padded = F.pad(images, self.border, mode="reflect").flatten(0, 1)
        spectrum, zeroth = torch.fft.fft2(padded), self._mean(padded, 0).unsqueeze(1)
        first, second = [], []
        for scale in range(self.scales):
            moduli = self._moduli(spectrum.unsqueeze(1), scale, 0)  # (images, angles, ...)
            first.append(self._mean(moduli, scale))
            spectra = torch.fft.fft2(moduli) if scale + 1 < self.scales else moduli
            for angle, coarser in product(range(self.angles), range(scale + 1, self.scales)):
                again = self._moduli(spectra[:, angle].unsqueeze(1), coarser, scale)
                second.append(self._mean(again, coarser))
        whole = torch.cat([zeroth, *first, *second], 1)
        return whole.view(count, channels * whole.shape[1], *whole.shape[2:])

    def _moduli(self, spectrum: Tensor, scale: int, level: int) -> Tensor:
        """|u * psi| for all angles, of a signal at resolution 2^-level, at resolution 2^-scale."""
        psi = self.get_buffer(f"psi_{scale}_{level}").unsqueeze(-1)
        product = (
            torch.view_as_real(spectrum) * psi
        )  # psi is real: a complex product would take twice as long
        found = torch.view_as_real(torch.fft.ifft2(_folded(product, 2 ** (scale - level))))
        return (found[..., 0].square() + found[..., 1].square()).sqrt()

    def _mean(self, values: Tensor, scale: int) -> Tensor:
        """u * phi at resolution 2^-J, without the borders: the Gaussian is a product, so it takes a matrix a side."""
        return self.get_buffer(f"rows_{scale}") @ values @ self.get_buffer(f"columns_{scale}").mT


def morlet(rows: int, columns: int, scale: int, number: int, angles: int) -> Tensor:
    """The spectrum, which is real, of g(u) (exp(i <xi, u>) - b), with b such that it has mean 0; periodic.

    g is a Gaussian with deviation 0.8 2^scale, elongated across the wave by angles / 4; |xi| = 3 pi / 4 / 2^scale.
    """
    deviation, slant = 0.8 * 2**scale, 4 / angles
    angle = (angles - 1 - angles // 2 - number) * math.pi / angles
    reach = torch.arange(-2 * rows, 3 * rows), torch.arange(-2 * columns, 3 * columns)
    x, y = torch.meshgrid(reach[0].double(), reach[1].double(), indexing="ij")
    along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    envelope = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
    envelope = envelope * slant / (2 * math.pi * deviation**2)
    wave = envelope * torch.exp(1j * along * 0.75 * math.pi / 2**scale)
    wave = wave - envelope * (wave.sum() / envelope.sum())
    periodic = wave.view(5, rows, 5, columns).sum((0, 2))
    return torch.fft.fft2(periodic).real


def averaging(side: int, level: int, scales: int) -> Tensor:
    """The matrix of convolution with a Gaussian of deviation 0.8 2^(J - 1), from resolution 2^-level to 2^-J.

    It leaves the first and the last step out, which are border.
    """
    deviation = 0.8 * 2 ** (scales - 1)
    reach = torch.arange(-2 * side, 3 * side).double()
    gauss = torch.exp(-(reach**2) / (2 * deviation**2)) / (math.sqrt(2 * math.pi) * deviation)
    spectrum = torch.fft.fft(gauss.view(5, side).sum(0)).real
    here = side // 2**level
    spectrum = torch.cat([spectrum[: here // 2], spectrum[side - (here - here // 2) :]])
    waves = (
        torch.fft.fft(torch.eye(here, dtype=torch.float64)) * spectrum
    )  # every place's answer, in frequencies
    folded = waves.view(here, 2 ** (scales - level), -1).mean(1)
    return torch.fft.ifft(folded).real.T[1:-1].contiguous()


def _low(spectra: Tensor, level: int) -> Tensor:
    """The low frequencies of a spectrum: that of the same signal at resolution 2^-level."""
    for axis in (-2, -1):
        side = spectra.shape[axis]
        here = side // 2**level
        ends = [
            spectra.narrow(axis, 0, here // 2),
            spectra.narrow(axis, side - (here - here // 2), here - here // 2),
        ]
        spectra = torch.cat(ends, axis)
    return spectra


def _folded(spectrum: Tensor, factor: int) -> Tensor:
    """The spectrum of every ``factor``-th value along both axes: the mean over frequencies that look alike then.

    (..., rows, columns, 2) -> complex (..., rows / factor, columns / factor)
    """
    for axis in (-3, -2):
        spectrum = sum(spectrum.chunk(factor, axis)[1:], spectrum.chunk(factor, axis)[0])
    return torch.view_as_complex(spectrum if factor == 1 else spectrum / factor**2)
