"""Training methods, one small file each. None of them can reach private data but through ``ask``."""

from saltflat.methods.sam import SAM
from saltflat.methods.sat import SAT
from saltflat.methods.sgd import DPSGD

__all__ = ["DPSGD", "SAM", "SAT"]
