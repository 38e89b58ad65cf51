"""Fixed maps before the model: geometry that costs no privacy, as nothing of private rows is in it.

A feature map is a list of stages, values that say how each is made; the statistics that some need come from images that
programs make. What is computed from private images stays as private as they are.
"""

from saltflat.features.computed import compute, featured
from saltflat.features.convolutions import RandomConvolutions
from saltflat.features.hog import HOG
from saltflat.features.joined import Joined, Mirrored
from saltflat.features.patches import Patches
from saltflat.features.scaled import Grey, Grouped, RowScaled
from saltflat.features.scattering import Scattering
from saltflat.features.stages import Stage, built, described, shape_after
from saltflat.features.transfer import Frozen, Pretrained, transferred
from saltflat.features.whitened import Whitened

__all__ = [
    "HOG",
    "Frozen",
    "Grey",
    "Grouped",
    "Joined",
    "Mirrored",
    "Patches",
    "Pretrained",
    "RandomConvolutions",
    "RowScaled",
    "Scattering",
    "Stage",
    "Whitened",
    "built",
    "compute",
    "described",
    "featured",
    "shape_after",
    "transferred",
]
