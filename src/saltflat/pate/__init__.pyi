"""The public names of the room, each listed here and nowhere else."""

# Train students on what was answered
from .fitting import SGD as SGD
from .fitting import SmoothedStudent as SmoothedStudent
from .fitting import fitted as fitted

# Ask, and pay
from .gnmax import Answers as Answers
from .gnmax import Cap as Cap
from .gnmax import ConfidentGNMax as ConfidentGNMax
from .gnmax import Counted as Counted
from .gnmax import Filter as Filter
from .gnmax import calibrated as calibrated
from .gnmax import label as label

# Give every unit to one teacher
from .layout import Layout as Layout
from .layout import by_example as by_example
from .layout import by_user as by_user

# What votes cost
from .renyi import rdp_gnmax as rdp_gnmax
from .renyi import rdp_threshold as rdp_threshold
from .sanitised import Sanitised as Sanitised
from .sanitised import check_smooth as check_smooth
from .sanitised import release as release
from .sanitised import release_cost as release_cost
from .smooth import Smooth as Smooth

# Let them choose
from .teachers import Desk as Desk
from .teachers import Teaching as Teaching
from .teachers import votes_of as votes_of
from .votes import TeacherVotes as TeacherVotes
