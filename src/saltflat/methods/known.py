"""What methods with public examples have in common: which ones a step looks at, and how far their gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from saltflat.door import PublicGradients, check_public
from saltflat.errors import SettingError
from saltflat.methods.draws import check_seed, public_draws
from saltflat.settings import is_whole
from saltflat.tree import Tree, mul, norm

MOST_EXAMPLES = 1 << 20  # public ones in one draw


@dataclass(frozen=True)
class Stepped:
    """A number of steps, which numbers the draws, and the state of the method inside, if there is one."""

    inner: object = None
    steps: int = 0


def check_known(public: PublicGradients, batch: int, seed: int) -> None:
    """Refuse settings that no public examples can be drawn by."""
    check_public(public)
    if not is_whole(batch, 1, MOST_EXAMPLES):
        raise SettingError(
            f"batch is a number of public examples, from 1 to {MOST_EXAMPLES}; got batch={batch!r}"
        )
    check_seed(seed)


def drawn_gradient(public: PublicGradients, point: Tree, batch: int, *key: int) -> Tree:
    """The gradient of public examples; one ``key`` always draws the same."""
    return public.gradient(point, batch=batch, source=public_draws(*key))


def drawn_gradients(
    public: PublicGradients, point: Tree, batch: int, *keys: tuple[int, ...]
) -> Iterator[Tree]:
    """`drawn_gradient` for one key after the other."""
    return iter(public.gradients(point, batch=batch, sources=[public_draws(*key) for key in keys]))


def shortened(direction: Tree, bound: float) -> Tree:
    """min(1, bound / ||direction||) direction.

    >>> import torch
    >>> shortened({"w": torch.tensor([3.0, 4.0])}, 1.0)
    {'w': tensor([0.6000, 0.8000])}
    """
    length = float(norm(direction))
    return direction if length <= bound else mul(direction, bound / length)
