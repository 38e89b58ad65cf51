"""The shape of a loss: curvature, sharpness, surfaces, gradient statistics.

Everything that reads examples reads them raw, so an `Objective` is made only with a declaration: the examples are
`PUBLIC`, or the result `STAYS_PRIVATE`.
"""

from saltflat.landscape.access import PUBLIC, STAYS_PRIVATE, Access
from saltflat.landscape.density import Density, spectral_density
from saltflat.landscape.directions import filter_normalised, random_directions
from saltflat.landscape.gaps import (
    adaptive_gap,
    average_gap,
    m_sharpness,
    noise_growth,
    noise_tolerance,
    sam_gap,
)
from saltflat.landscape.gradients import (
    Compared,
    Norms,
    compared,
    cosine,
    noise_effect,
    norm_histogram,
    signal_share,
    successive_cosines,
)
from saltflat.landscape.lanczos import Ends, Krylov, ends, krylov
from saltflat.landscape.objective import Evaluation, Objective, analytic, of_model, smoothed
from saltflat.landscape.operator import Differences, Hessian, Operator, Product, hessian
from saltflat.landscape.path import Plane, trajectory_plane
from saltflat.landscape.sampled import curvature_error, loss_error, rise_error
from saltflat.landscape.sharpness import Sharpness, sharpness
from saltflat.landscape.surface import Line, Surface, interpolation, line, surface
from saltflat.landscape.trace import Trace, trace

__all__ = [
    "PUBLIC",
    "STAYS_PRIVATE",
    "Access",
    "Compared",
    "Density",
    "Differences",
    "Ends",
    "Evaluation",
    "Hessian",
    "Krylov",
    "Line",
    "Norms",
    "Objective",
    "Operator",
    "Plane",
    "Product",
    "Sharpness",
    "Surface",
    "Trace",
    "adaptive_gap",
    "analytic",
    "average_gap",
    "compared",
    "cosine",
    "curvature_error",
    "ends",
    "filter_normalised",
    "hessian",
    "interpolation",
    "krylov",
    "line",
    "loss_error",
    "m_sharpness",
    "noise_effect",
    "noise_growth",
    "noise_tolerance",
    "norm_histogram",
    "of_model",
    "random_directions",
    "rise_error",
    "sam_gap",
    "sharpness",
    "signal_share",
    "smoothed",
    "spectral_density",
    "successive_cosines",
    "surface",
    "trace",
    "trajectory_plane",
]
