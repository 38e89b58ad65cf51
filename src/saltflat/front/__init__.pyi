"""The public names of the room, each listed here and nowhere else."""

from .call import fit as fit
from .fitting import Fitted as Fitted
from .loop import Drawn as Drawn
from .loop import PrivateLoop as PrivateLoop
from .loop import make_private as make_private
from .rows import Preflight as Preflight
from .rows import preflight as preflight
