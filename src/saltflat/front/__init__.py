"""The front of the house: training in one call, and in a loop of your own. All of it is made of the parts."""

from saltflat.front.call import Fitted, fit
from saltflat.front.loop import Drawn, PrivateLoop, make_private
from saltflat.front.rows import Preflight, preflight

__all__ = ["Drawn", "Fitted", "Preflight", "PrivateLoop", "fit", "make_private", "preflight"]
