"""The public names of the room, each listed here and nowhere else."""

# Accountants
from .accounting.bounds import epsilon as epsilon
from .accounting.calibration import noise_for as noise_for
from .accounting.events import compose as compose
from .accounting.events import phase_event as phase_event
from .limits import rounded_up as rounded_up

# Sources of noise
from .noise import DiscreteNoise as DiscreteNoise
from .noise import SecureNoise as SecureNoise
from .noise import SecureSampling as SecureSampling
from .noise import SeededNoise as SeededNoise

# The record
from .record.costs import CappedUser as CappedUser
from .record.costs import FixedSize as FixedSize
from .record.costs import RenyiBound as RenyiBound
from .record.history import Budget as Budget
from .record.history import read as read
from .record.ledger import Ledger as Ledger
from .record.statement import Declared as Declared
from .record.statement import Statement as Statement
from .record.statement import state as state
