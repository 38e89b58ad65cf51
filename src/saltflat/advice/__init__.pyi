"""The public names of the room, each listed here and nowhere else."""

from .examined import Examined as Examined
from .examined import doctor as doctor
from .suggested import Suggestion as Suggestion
from .suggested import suggest as suggest
