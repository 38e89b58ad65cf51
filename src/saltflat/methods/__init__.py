"""Training methods, one small file each. None of them can reach private data but through ``ask``."""

from saltflat.methods.dplis import DPLIS
from saltflat.methods.quantile import Quantile
from saltflat.methods.rescaled import Rescaled
from saltflat.methods.sam import SAM
from saltflat.methods.sat import SAT
from saltflat.methods.sgd import DPSGD
from saltflat.methods.switch import Antithetic, Gap, Plateau, PublicSharpness, Secant

__all__ = [
    "DPLIS",
    "DPSGD",
    "SAM",
    "SAT",
    "Antithetic",
    "Gap",
    "Plateau",
    "PublicSharpness",
    "Quantile",
    "Rescaled",
    "Secant",
]
