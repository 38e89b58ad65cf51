"""Training methods, one small file each. None of them can reach private data but through ``ask``."""

from saltflat.methods.adadps import AdaDPS
from saltflat.methods.dope import DOPE
from saltflat.methods.dplis import DPLIS
from saltflat.methods.masked import Coin, Earlier, Masked
from saltflat.methods.mirror import Mirror
from saltflat.methods.multiplicity import WeightMultiplicity
from saltflat.methods.quantile import Quantile
from saltflat.methods.rescaled import Rescaled
from saltflat.methods.sam import SAM
from saltflat.methods.sat import SAT
from saltflat.methods.sgd import DPSGD
from saltflat.methods.switch import Antithetic, Gap, Plateau, PublicSharpness, Secant

__all__ = [
    "DOPE",
    "DPLIS",
    "DPSGD",
    "SAM",
    "SAT",
    "AdaDPS",
    "Antithetic",
    "Coin",
    "Earlier",
    "Gap",
    "Masked",
    "Mirror",
    "Plateau",
    "PublicSharpness",
    "Quantile",
    "Rescaled",
    "Secant",
    "WeightMultiplicity",
]
