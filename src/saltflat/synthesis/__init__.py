"""Public examples that are made, by programs or by a generator fitted to public ones; and how good they are."""

from saltflat.synthesis import metrics
from saltflat.synthesis.ddpm import DDPM
from saltflat.synthesis.diffusion import EDM, Diffusion
from saltflat.synthesis.fitting import Fit, Fitted, even_labels, fit
from saltflat.synthesis.fractals import Fractals
from saltflat.synthesis.guidance import Discriminator, Guidance
from saltflat.synthesis.images import Images, Process
from saltflat.synthesis.leaves import DeadLeaves
from saltflat.synthesis.nonleaking import NonLeaking
from saltflat.synthesis.spectrum import SpectrumNoise
from saltflat.synthesis.strokes import Strokes
from saltflat.synthesis.unet import UNet

__all__ = [
    "DDPM",
    "EDM",
    "DeadLeaves",
    "Diffusion",
    "Discriminator",
    "Fit",
    "Fitted",
    "Fractals",
    "Guidance",
    "Images",
    "NonLeaking",
    "Process",
    "SpectrumNoise",
    "Strokes",
    "UNet",
    "even_labels",
    "fit",
    "metrics",
]
