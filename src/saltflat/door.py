"""What a method sees of the house: the door to private data, and the form that a method itself has.

Protocols only: `saltflat.core.ask` is the door, and nothing in ``methods/`` can import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Generator

from saltflat.errors import SettingError
from saltflat.frames import Frame
from saltflat.tree import Released, Tree

PointsOf = Callable[[int], Sequence[Tree]]  # a unit's label, or its group's -> its own points
Spread = Callable[[Tree, int], Sequence[tuple[Tree, float]]]  # a point, a unit's label -> points and weights
S = TypeVar("S")


@dataclass(frozen=True)
class Heard:
    """One question's first point and its answer: what a method may look back on."""

    point: Tree
    answer: Released


class Door(Protocol):
    """The only way from a method to private data; see `saltflat.core.ask.Ask` for what each answer is and costs."""

    def __call__(
        self,
        *points: Tree,
        weights: Sequence[float] | None = None,
        frame: Frame | None = None,
        share: float = 1.0,
    ) -> Released: ...

    def apart(
        self,
        points_of: PointsOf,
        *,
        weights: Sequence[float],
        groups: int | None = None,
        frame: Frame | None = None,
        share: float = 1.0,
    ) -> Released: ...

    def gap(
        self, low: Tree, high: Tree, *, bound: float, share: float, frame: Frame | None = None
    ) -> float: ...

    @property
    def fresh(self) -> Door: ...

    @property
    def noise_std(self) -> float: ...

    @property
    def sensitivity(self) -> float: ...

    @property
    def heard(self) -> Sequence[Heard]: ...

    @property
    def fraction(self) -> float | None: ...

    def part(self, share: float) -> Door: ...

    def spread(self, spread: Spread, *, by_unit: bool = False, by_view: bool = False) -> Door: ...

    def counting(self, factor: float, share: float) -> Door: ...

    def framed(self, frame: Frame) -> Door: ...


class PublicGradients(Protocol):
    """Gradients of examples that are public, for a method to use beside the answers; see `saltflat.Public`.

    ``gradient`` is the mean over ``batch`` examples that ``source`` draws, or over all of them without a source;
    ``gradients`` are those of one source after the other, at one point, in less time than one by one; ``loss`` the mean
    loss over all of them; ``check_linear`` refuses a model whose outputs are not linear in the weights. ``described``
    goes into the privacy statement.
    """

    @property
    def described(self) -> str: ...

    def gradient(self, point: Tree, *, batch: int = 1, source: Generator | None = None) -> Tree: ...

    def gradients(self, point: Tree, *, batch: int, sources: Sequence[Generator]) -> Iterator[Tree]: ...

    def loss(self, point: Tree) -> float: ...

    def check_linear(self, point: Tree) -> None: ...


class Method(Protocol[S]):
    """How a step's questions are put and what is made of the answers. Everything but ``ask`` is free.

    State is a value: numbers, trees, and tuples, dataclasses and None of these, so that it can be stored. A method
    that draws a second sample in every step has an attribute ``fresh_noise``, that sample's noise relative to the
    phase's; a method around another one holds it as ``method``, and one that uses public examples holds them as
    ``public``.
    """

    def init(self, params: Tree) -> S: ...

    def step(self, ask: Door, params: Tree, state: S) -> tuple[Tree, S]: ...


AnyMethod: TypeAlias = Method[
    Any
]  # what a wrapper takes, and what a phase holds: its state is its own business


def check_pair(name: str, value: object, such_as: str) -> None:
    """Methods and optimizers are values with ``init`` and ``step``; names and bare classes are not."""
    pair = (getattr(value, "init", None), getattr(value, "step", None))
    if isinstance(value, type) or not all(map(callable, pair)):
        given = repr(value) if isinstance(value, str | type | None) else f"a {type(value).__name__}"
        raise SettingError(f"{name} is a value with init and step, such as {such_as}; got {given}")


def check_method(value: object) -> None:
    """Refuse what is no method in the place of one."""
    check_pair("method", value, "DPSGD() or SAT(radius=0.03)")


def layers(method: AnyMethod) -> Iterator[AnyMethod]:
    """The method, the one inside it, the one inside that, and so on.

    >>> from saltflat.methods import DPLIS, SAT, Quantile
    >>> [type(each).__name__ for each in layers(Quantile(DPLIS(method=SAT(0.05), lr=2.0)))]
    ['Quantile', 'DPLIS', 'SAT']
    """
    inner: AnyMethod | None = method
    while inner is not None:
        yield inner
        inner = getattr(inner, "method", None)


def fresh_noise(method: AnyMethod) -> float | None:
    """The noise of a second sample, relative to the phase's, if the method or one inside it draws one.

    >>> from saltflat.methods import DPSGD, SAM, Quantile
    >>> fresh_noise(Quantile(SAM(0.05, fresh=True))), fresh_noise(DPSGD())
    (3.0, None)
    """
    found = (getattr(each, "fresh_noise", None) for each in layers(method))
    return next((noise for noise in found if noise is not None), None)


def public_in(*owners: object) -> tuple[PublicGradients, ...]:
    """The public examples that methods and optimizers use, and those inside them; each once.

    >>> from saltflat.methods import DPSGD
    >>> public_in(DPSGD())
    ()
    """
    found: dict[int, PublicGradients] = {}
    for owner in owners:
        for each in layers(owner):  # type: ignore[arg-type]
            public: Any = getattr(each, "public", None)
            if hasattr(public, "gradient"):
                found[id(public)] = public
    return tuple(found.values())


def check_public(value: object) -> None:
    """Refuse what holds no public examples in the place of such."""
    if isinstance(value, type) or not callable(getattr(value, "gradient", None)):
        raise SettingError(
            f"public is a value such as Public(contribution, units), made of public examples; got a "
            f"{type(value).__name__}"
        )
