"""The public names, each listed here and nowhere else."""

__version__: str

# Train
# Values that a plan is made of, and the rooms that stand beside it
from . import audit as audit
from . import bridges as bridges
from . import clipping as clipping
from . import data as data
from . import features as features
from . import federated as federated
from . import finetune as finetune
from . import frames as frames
from . import landscape as landscape
from . import methods as methods
from . import models as models
from . import optimizers as optimizers
from . import pate as pate
from . import privacy as privacy
from . import recipes as recipes
from . import schedules as schedules
from . import synthesis as synthesis
from . import warmup as warmup

# Ask before anything is spent
from .advice import doctor as doctor
from .advice import suggest as suggest

# Say whose privacy is kept
from .core.contribution import each_view as each_view
from .core.contribution import per_example as per_example
from .core.contribution import per_user as per_user
from .core.contribution import supervised as supervised

# Say what is run, and what it may cost
from .core.draw import Poisson as Poisson
from .core.draw import WithoutReplacement as WithoutReplacement
from .core.layers import check_model as check_model
from .core.layers import without_batchnorm as without_batchnorm
from .core.plan import Phase as Phase
from .core.plan import Plan as Plan
from .core.plan import calibrate as calibrate
from .core.public import Public as Public
from .core.resume import Checkpoints as Checkpoints
from .core.step import Safeguards as Safeguards
from .core.train import Running as Running
from .core.train import train as train
from .front import fit as fit
from .front import make_private as make_private
from .front import preflight as preflight
from .plans import sai as sai
from .plans import split_budget as split_budget
from .runs.load import load_run as load_run
