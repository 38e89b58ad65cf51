"""The public names of the room, each listed here and nowhere else."""

# What was found, and how it is read again
from .kept import Kept as Kept
from .kept import read as read

# The adversaries
from .losses import Sides as Sides
from .losses import membership as membership
from .once import Company as Company
from .once import one_run as one_run
from .repeated import canary as canary
from .result import MEANING as MEANING
from .result import Audited as Audited
from .result import Bound as Bound
from .result import Claim as Claim
from .result import Control as Control
from .result import Interval as Interval
