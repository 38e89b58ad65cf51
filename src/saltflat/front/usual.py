"""What `fit` and `make_private` take if nothing else is said."""

from __future__ import annotations

from saltflat.methods import SAT
from saltflat.optimizers import SGD

METHOD = SAT(radius=0.03)  # these two are what `fit` takes if nothing else is said
LR = 2.0
OPTIMIZER = SGD(lr=LR, momentum=0.9)
CLIP = 0.1
TABLE_CLIP = 3.0  # for rows of numbers with classes; see `table_optimizer`


def table_optimizer(size: int, epsilon: float | None) -> SGD:
    """The optimizer for rows of numbers with classes: lr = 0.02 (signal / 300)^(2/3), from 0.02 to 0.2.

    signal = size x epsilon says how loud the noise is. Under a clip norm of 0.1 nearly every gradient has one length,
    and what is minimised is no longer the cross-entropy: probabilities end up too extreme. At `TABLE_CLIP` few
    gradients are clipped. Measured by experiments/table_defaults.py.

    Args:
        size: The public or declared number of examples.
        epsilon: The budget; None where the noise is given instead, which counts as 1.
    """
    signal = size * (1.0 if epsilon is None else epsilon)
    return SGD(lr=float(f"{min(0.2, max(0.02, 0.02 * (signal / 300) ** (2 / 3))):.3g}"), momentum=0.9)


def usual_batch(size: int) -> int:
    """The expected batch size for ``size`` public or declared examples: half of them, at most 2048.

    Noise is added once a step, so a step should hear many; measured in docs/small_data.md.

    >>> usual_batch(1), usual_batch(200), usual_batch(200_000)
    (1, 100, 2048)
    """
    return min(2048, max(1, size // 2))


def usual_epochs(size: int) -> int:
    """How often each example is seen: few examples bear few noisy steps.

    >>> usual_epochs(200), usual_epochs(2_000), usual_epochs(200_000)
    (10, 20, 40)
    """
    return 10 if size < 1_000 else 20 if size < 10_000 else 40


def usual_delta(size: int) -> float:
    """The largest power of ten that is at most 1 / (10 size), and at most 1e-5.

    *Guarantee*: never above what a privacy statement advises.

    >>> usual_delta(200), usual_delta(10_000), usual_delta(60_000), usual_delta(200_000)
    (1e-05, 1e-05, 1e-06, 1e-07)
    """
    digits = len(str(10 * size - 1))  # 10^digits >= 10 size, in whole numbers: no logarithm rounds
    return min(1e-5, float(f"1e-{digits}"))
