"""A recipe: everything that decides a run, made of the library's own values, and the file that says the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from saltflat.clipping import Clip
from saltflat.core.draw import Draw, Poisson
from saltflat.core.plan import Phase
from saltflat.data import is_own, is_text, official_size
from saltflat.data.augment import Transform
from saltflat.door import AnyMethod
from saltflat.errors import SettingError
from saltflat.features.stages import Stage as FeatureStage
from saltflat.optimizers import EMA, Optimizer
from saltflat.privacy.accounting.calibration import ACCOUNTANTS
from saltflat.privacy.accounting.splits import SPLITS
from saltflat.privacy.limits import ADVANTAGE_FLOOR, STEPS_CEILING
from saltflat.recipes import documents, follows, old, toml
from saltflat.recipes.documents import Document
from saltflat.recipes.federation import Federation
from saltflat.recipes.groups import PYTHON_ONLY
from saltflat.recipes.networks import Network
from saltflat.recipes.sharing import Making, Sharing
from saltflat.recipes.values import Spot, made, settings_document
from saltflat.recipes.wrong import Wrong
from saltflat.schedules import Schedule
from saltflat.warmup import WarmUp

_VIEWS = 1024  # of an example, which are in memory together
_SEEDS = range(-(2**63), 2**64)  # what torch takes


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A phase before the number of examples is known: ``epochs`` instead of ``steps``, and noise that is calibrated.

    ``portion`` is the phase's part of epsilon, where there are several. The noise multiplier is given where the recipe
    has no epsilon to calibrate it to. The rest is as in `saltflat.Phase`, which also checks it.
    """

    CALLED: ClassVar[str] = "a phase"

    epochs: float | None = None
    steps: int | None = None
    portion: float | None = None
    noise_multiplier: float | None = None
    method: AnyMethod
    clip_norm: float | Clip
    optimizer: Optimizer
    noise_schedule: Schedule = 1.0
    until: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise SettingError("a phase has epochs, or steps: give one of them")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise Wrong(("epochs",), f"must be above 0, and finite; got {self.epochs}")
        if self.steps is not None and not 1 <= self.steps <= STEPS_CEILING:
            raise Wrong(("steps",), f"must be a whole number from 1 to {STEPS_CEILING}; got {self.steps}")
        if self.portion is not None and not 0 < self.portion < 1:
            raise Wrong(("portion",), f"is a part of epsilon, between 0 and 1; got {self.portion}")
        self.phase(steps=1)

    def phase(self, *, steps: int) -> Phase:
        """The phase of so many steps; its noise multiplier is 1 where calibration is to set it."""
        return Phase(
            method=self.method,
            steps=steps,
            noise_multiplier=1.0 if self.noise_multiplier is None else self.noise_multiplier,
            clip_norm=self.clip_norm,
            optimizer=self.optimizer,
            noise_schedule=self.noise_schedule,
            until=self.until,
        )

    def steps_at(self, rate: float) -> int:
        """Its steps, each on a sample at ``rate``."""
        if self.steps is not None:
            return self.steps
        steps = (self.epochs or 0.0) / rate
        if not steps <= STEPS_CEILING:
            raise SettingError(
                f"{self.epochs:g} epochs are {steps:g} steps, and {STEPS_CEILING} are the most"
            )
        return max(1, round(steps))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Every setting of a run. *Guarantee*: none of them is read from the private data.

    ``data`` is the name of a data set and ``size`` its declared number of examples, the official one if left out. It
    may be a file of yours too: a CSV whose columns ``table`` declares, with rows for testing in ``test``, or an npz
    whose targets are so many ``classes``, or numbers in ``target_range``. Each step takes ``batch_size`` of the
    examples on average, or each with probability ``rate``; exactly so many where ``draw`` is `WithoutReplacement`.
    With ``epsilon`` the noise is calibrated: to one phase; to several with portions, by ``budget_split``; to several
    without, by one factor for all. ``accountant`` is what it is calibrated by: "PLD", or "RDP" as most papers had it,
    which asks for 7 to 8 % more noise. ``advantage``, the membership advantage, is a target in the place of epsilon.
    ``spare`` more steps of each phase are paid for, which crashes may waste. ``views`` of each example are made by
    ``augment``; ``features`` are fixed maps that stand before the network, stage by stage. ``physical`` is the most
    examples in memory at once and changes no result; ``seed`` that of the first weights. With ``clients`` a unit is a
    client (`Federation`), and whatever is said of examples above is said of them; ``steps`` are rounds. ``start`` is
    a file of safetensors with the first weights, which must be made from public data; the statement says so. ``public``
    examples are not private (`Sharing`): ``size`` counts them, and what is trained on privately goes without.
    ``synthetic`` ones are made from them (`Making`), and ``warmup`` lists what the network is trained by before the
    private phase. ``using`` holds the functions that a file names.

    >>> recipe = shipped("digits")
    >>> recipe.phase[0].method, recipe.epsilon
    (SAT(radius=0.03, momentum=0.0, drift=1), 3.0)
    >>> recipe.but({"phase.0.method": "DPSGD", "epsilon": 1}).phase[0].method
    DPSGD()
    """

    CALLED: ClassVar[str] = "a recipe"

    data: str
    model: Network
    phase: tuple[Stage, ...]
    size: int | None = None
    table: str | None = None
    test: str | None = None
    classes: int | None = None
    target_range: tuple[float, float] | None = None
    epsilon: float | None = None
    advantage: float | None = None
    delta: float = 1e-5
    batch_size: float | None = None
    rate: float | None = None
    draw: Draw = field(default_factory=Poisson)
    budget_split: str = "joint_ratio"
    accountant: str = "PLD"
    ema: EMA | None = None
    views: int = 1
    augment: tuple[Transform, ...] = ()
    features: tuple[FeatureStage, ...] = ()
    spare: int = 8
    physical: int = 512
    seed: int = 0
    clients: Federation | None = None
    start: str | None = None
    public: Sharing | None = None
    synthetic: Making | None = None
    warmup: tuple[WarmUp, ...] = ()
    using: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False, metadata=PYTHON_ONLY)

    def __post_init__(self) -> None:
        _check_declared(self)
        _check_clients(self)
        _check_text(self)
        _check_public(self)
        _check_sampling(self)
        _check_budget(self)
        for name, number in (("size", self.size), ("views", self.views), ("physical", self.physical)):
            if number is not None and number < 1:
                raise Wrong((name,), f"must be at least 1; got {number}")
        if self.spare < 0:
            raise Wrong(("spare",), f"must be 0 or more; got {self.spare}")
        if self.views > 1 and not self.augment:
            raise Wrong(("views",), f"{self.views} views would all be the same: add augment = [...]")
        if self.views > _VIEWS:
            raise Wrong(("views",), f"must be at most {_VIEWS}; got {self.views}")
        if self.seed not in _SEEDS:
            raise Wrong(("seed",), f"must be a whole number of 64 bits; got {self.seed}")

    def but(self, changes: Mapping[str, Any]) -> Recipe:
        """The same recipe with other entries, by their dotted keys, each as a file would have it."""
        asked = ((toml.keys_of(name), value, "") for name, value in changes.items())
        return from_document(Document(self.as_document()).but(asked), using=self.using)

    def as_document(self) -> dict[str, Any]:
        """The recipe as the tables of a file, with every setting written out."""
        whole = settings_document(self, self.using)
        phases = whole.pop("phase")
        return {"version": documents.VERSION, **whole, "phase": phases}

    def as_toml(self) -> str:
        """The recipe as a file that `read` takes.

        >>> shipped("digits").as_toml().splitlines()[:2]
        ['version = 2', 'data = "digits"']
        """
        return toml.dumps(self.as_document())


def _check_declared(recipe: Recipe) -> None:
    """What is declared of a file of the user's goes with such a file only."""
    given = {name: getattr(recipe, name) for name in ("table", "test", "classes", "target_range")}
    for name, value in given.items():
        if value is not None and not is_own(recipe.data):
            raise Wrong(
                (name,), f"is for a file of yours, and {recipe.data!r} is a data set by name; leave it out"
            )


def _check_clients(recipe: Recipe) -> None:
    """Where a client is the unit, clients are what is declared and drawn; what is said of examples has no place."""
    own = recipe.clients
    if own is None:
        return
    if recipe.size is not None:
        raise Wrong(("size",), "clients.count is the declared number of units; leave it out")
    if recipe.views > 1 or recipe.augment:
        raise Wrong(("augment",), "clients train on their rows as they are; leave views and augment out")
    if own.user is not None and not is_own(recipe.data):
        raise Wrong(
            ("clients", "user"),
            f"is a column of a file of yours, and {recipe.data!r} is a data set by name; give split",
        )


def _check_text(recipe: Recipe) -> None:
    """Of text there are words, and neither clients, images nor views."""
    if is_own(recipe.data) or not is_text(recipe.data):
        return
    for name in ("clients", "augment", "features"):
        if getattr(recipe, name):
            raise Wrong((name,), f"{recipe.data} is text, and this is for other data; leave it out")


def _check_public(recipe: Recipe) -> None:
    """What is made needs public examples to be made from; who is public in a file of yours is not for chance to say."""
    for name in ("public", "synthetic", "warmup"):
        if recipe.clients is not None and getattr(recipe, name):
            raise Wrong((name,), "goes with examples as units, and units here are clients; leave it out")
    if recipe.public is not None and is_own(recipe.data):
        raise Wrong(
            ("public",),
            "which rows of a file of yours are public is for their owners to say, and not for a seed: leave it out, "
            "and hand public examples to a method from Python (docs/public.md)",
        )
    if recipe.synthetic is not None and recipe.public is None:
        raise Wrong(("synthetic",), "is made from public examples: add [public] with a count")
    if recipe.synthetic is not None and recipe.features:
        raise Wrong(("synthetic",), "are images, and the network here sees features; leave one of them out")


def _check_sampling(recipe: Recipe) -> None:
    if (recipe.batch_size is None) == (recipe.rate is None):
        raise SettingError("a recipe has batch_size, or rate: give one of them")
    if recipe.batch_size is not None and not 0 < recipe.batch_size < math.inf:
        raise Wrong(("batch_size",), f"must be above 0, and finite; got {recipe.batch_size}")
    if recipe.rate is not None and not 0 < recipe.rate <= 1:
        raise Wrong(("rate",), f"is each example's probability to join a step, in (0, 1]; got {recipe.rate}")


def _check_budget(recipe: Recipe) -> None:
    """One target and no noise, or noise in every phase and no target; portions in every phase, or in none."""
    phases = recipe.phase
    if not phases:
        raise Wrong(("phase",), "a recipe needs at least one phase, a block under [[phase]]")
    noisy = [k for k, each in enumerate(phases) if each.noise_multiplier is not None]
    if recipe.epsilon is not None and recipe.advantage is not None:
        raise Wrong(("advantage",), "and epsilon both decide the noise; leave one of them out")
    target = "epsilon" if recipe.epsilon is not None else "advantage" if recipe.advantage is not None else ""
    if target and noisy:
        raise Wrong(
            ("phase", str(noisy[0]), "noise_multiplier"),
            f"{target} decides it; leave it out, or leave {target} out",
        )
    if not target and len(noisy) < len(phases):
        raise SettingError(
            "a recipe has epsilon, or a noise_multiplier in every phase, or advantage: give one of the three"
        )
    if recipe.advantage is not None and not ADVANTAGE_FLOOR <= recipe.advantage < 1:
        raise Wrong(
            ("advantage",),
            f"is the true minus the false positive rate of the best attack, at least {ADVANTAGE_FLOOR:g} and below 1; "
            f"got {recipe.advantage}",
        )
    if recipe.epsilon is not None and not 0 < recipe.epsilon < math.inf:
        raise Wrong(("epsilon",), f"must be above 0, and finite; got {recipe.epsilon}")
    if not 0 < recipe.delta < 1:
        raise Wrong(("delta",), f"must lie between 0 and 1; got {recipe.delta}")
    if recipe.budget_split not in SPLITS:
        raise Wrong(("budget_split",), f"is one of {', '.join(SPLITS)}; got {recipe.budget_split!r}")
    if recipe.accountant not in ACCOUNTANTS:
        raise Wrong(("accountant",), f"is one of {', '.join(ACCOUNTANTS)}; got {recipe.accountant!r}")
    portions = [each.portion for each in phases if each.portion is not None]
    if portions and (len(portions) < len(phases) or len(phases) == 1 or recipe.epsilon is None):
        raise Wrong(
            ("phase",), "portions divide epsilon over several phases: give every phase one, or none at all"
        )
    if portions and not math.isclose(math.fsum(portions), 1, rel_tol=1e-9):
        raise Wrong(("phase",), f"portions sum to 1; got {', '.join(map(str, portions))}")


def current(document: Document) -> Document:
    """The document in the version of today."""
    if document.version == documents.VERSION:
        return document
    if "phase" in document.table:
        raise SettingError(
            f"{document.place}: a recipe with phases begins with version = {documents.VERSION}"
        )
    try:
        return replace(document, table=old.upgraded(document.table, official_size))
    except Wrong as error:
        raise document.located(error) from None


def from_document(document: Document, *, using: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe that a document means; a mistake in it is told with its place."""
    if document.table.get("method") == "PATE":
        raise SettingError(f"{document.place or 'this'} is a recipe of PATE: run it with saltflat pate")
    table = {name: value for name, value in current(document).table.items() if name != "version"}
    try:
        table = follows.resolved(table, _known(table)) if follows.any_in(table) else table
        return replace(made(Recipe, table, Spot(using=using or {})), using=using or {})
    except Wrong as error:
        raise document.located(error) from None


def _known(table: Mapping[str, Any]) -> dict[str, float]:
    """What numbers of a recipe may follow, as far as it says: its declared size and its budget."""
    size, data, clients = table.get("size"), table.get("data"), table.get("clients")
    if isinstance(clients, dict):
        size = clients.get("count")
    elif size is None and isinstance(data, str):
        if is_own(data):
            raise size_missing(data)
        size = official_size(data)
    said = {"size": size, "epsilon": table.get("epsilon")}
    known = {
        name: float(each)
        for name, each in said.items()
        if isinstance(each, (int, float)) and not isinstance(each, bool) and 0 < each < math.inf
    }
    return {**known, "signal": math.prod(known.values())} if len(known) == 2 else known


def size_missing(data: str) -> SettingError:
    """How many rows a file of the user's has must be said by the user."""
    return SettingError(
        f"how many rows {data} has is private: declare a number that is public and not smaller, with --size 5000 or "
        "size = 5000"
    )


def read(
    path: str | Path, changes: Mapping[str, Any] | None = None, *, using: Mapping[str, Any] | None = None
) -> Recipe:
    """The recipe in a file, or the shipped one of this name; ``using`` has the functions that the file names.

    ``changes`` are other entries, by their dotted keys. They come before the numbers that follow size and epsilon,
    which `Recipe.but` leaves as they are.
    """
    return from_document(_changed(documents.read(path), changes), using=using)


def shipped(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A shipped recipe, with ``changes`` as in `read`.

    >>> shipped("digits", {"epsilon": 1}).epsilon
    1.0
    """
    return from_document(_changed(documents.shipped(name), changes))


def _changed(document: Document, changes: Mapping[str, Any] | None) -> Document:
    asked = ((toml.keys_of(name), value, "") for name, value in (changes or {}).items())
    return current(document).but(asked)
