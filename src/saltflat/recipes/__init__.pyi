"""The public names of the room, each listed here and nowhere else."""

from .build import contribution_of as contribution_of
from .build import loss_of as loss_of
from .build import network_of as network_of
from .build import plan_of as plan_of
from .build import recipe_of as recipe_of
from .documents import about as about
from .documents import names as names
from .federation import Federation as Federation
from .networks import Network as Network
from .recipe import Recipe as Recipe
from .recipe import Stage as Stage
from .recipe import read as read
from .recipe import shipped as shipped
