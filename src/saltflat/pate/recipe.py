"""A run of PATE as a TOML file of the library's own values, and what it costs before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent

from saltflat.data import Form, Own, is_own, official_form, official_size, own_form
from saltflat.errors import SettingError
from saltflat.pate.fitting import SGD, SmoothedStudent
from saltflat.pate.gnmax import Cap, ConfidentGNMax, Filter, calibrated
from saltflat.pate.layout import MOST_TEACHERS
from saltflat.pate.sanitised import check_smooth, release_cost
from saltflat.pate.smooth import Smooth
from saltflat.privacy.accounting.events import compose
from saltflat.privacy.record.costs import event_of
from saltflat.recipes import documents, toml
from saltflat.recipes.build import size_missing
from saltflat.recipes.documents import Document
from saltflat.recipes.groups import settings_of
from saltflat.recipes.networks import Network, networks
from saltflat.recipes.values import Spot, made, settings_document
from saltflat.recipes.wrong import Wrong, known_or
from saltflat.settings import is_number, is_whole

METHOD = "PATE"
USUAL = "digits"


@dataclass(frozen=True, kw_only=True)
class PateRecipe:
    """Every setting of a run of PATE. *Guarantee*: none of them is read from the private data.

    ``data`` has the private training examples; the first ``queries`` of its test examples are the public pool that
    teachers vote on, the others evaluate the student. ``users`` is the array (npz) or column (CSV) that says whose each
    training row is: then the unit is the user, else the example. ``size`` is the declared number of units.

    With ``answers`` the cost is that of a cap, to which ``epsilon`` calibrates both noises by one factor. Without
    ``answers`` it is a filter: as many as fit in ``epsilon``. ``order`` also releases what the votes cost at this data,
    at that Renyi order. ``votes`` is a file (npy) of teachers' choices that others trained, a row for each teacher.
    """

    CALLED: ClassVar[str] = "a recipe of PATE"

    data: str
    model: Network
    queries: int
    threshold: float
    sigma1: float
    sigma2: float
    teachers: int = 50
    answers: int | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    order: float | None = None
    users: str | None = None
    votes: str | None = None
    size: int | None = None
    table: str | None = None
    test: str | None = None
    classes: int | None = None
    seed: int = 0
    teacher: SGD = field(default_factory=SGD)
    student: SmoothedStudent = field(default_factory=SmoothedStudent)

    def __post_init__(self) -> None:
        if not is_whole(self.teachers, 2, MOST_TEACHERS):
            raise Wrong(("teachers",), f"is a whole number from 2 to {MOST_TEACHERS}; got {self.teachers}")
        if not is_whole(self.queries, 1, 10**9):
            raise Wrong(("queries",), f"is a whole number of 1 or more; got {self.queries}")
        if not is_whole(self.seed, 0, 2**31):
            raise Wrong(("seed",), f"is a whole number from 0 to 2^31; got {self.seed}")
        if self.size is not None and self.size < 1:
            raise Wrong(("size",), f"must be at least 1; got {self.size}")
        if not 0 < self.delta < 1:
            raise Wrong(("delta",), f"must lie between 0 and 1; got {self.delta}")
        if self.epsilon is not None and not is_number(self.epsilon, 1e-5, 1e4):
            raise Wrong(("epsilon",), f"is a number from 1e-5 to 1e4; got {self.epsilon}")
        if self.answers is None and self.epsilon is None:
            raise SettingError(
                "a recipe of PATE has answers (a cap), or epsilon (a filter), or both: give one"
            )
        if self.answers is None and self.order is not None:
            raise Wrong(("order",), "goes with a cap: give answers too")
        if self.users is not None and not is_own(self.data):
            raise Wrong(
                ("users",), f"is for a file of yours, and {self.data!r} is a data set by name; leave it out"
            )
        self.rough()
        if self.order is not None and not is_number(self.order, 1.1, 1024):
            raise Wrong(("order",), f"is a number from 1.1 to 1024; got {self.order}")

    def limit(self) -> Cap | Filter:
        if self.answers is not None:
            return Cap(queries=self.queries, answers=self.answers)
        return Filter(epsilon=self.epsilon or 0.0, delta=self.delta)

    def rough(self) -> ConfidentGNMax:
        """The mechanism with the noise as it is written."""
        settings = {"threshold": self.threshold, "sigma1": self.sigma1, "sigma2": self.sigma2}
        return ConfidentGNMax(**settings, limit=self.limit())

    @property
    def smooth(self) -> Smooth | None:
        """How the cost at this data is released, if it is."""
        return None if self.order is None else Smooth.at(self.order)

    def mechanism(self) -> ConfidentGNMax:
        """The mechanism that runs: with a cap and an epsilon its noises are calibrated."""
        if self.answers is None or self.epsilon is None:
            return self.rough()
        beside = None if self.smooth is None else event_of(release_cost(self.smooth))
        return calibrated(self.rough(), epsilon=self.epsilon, delta=self.delta, beside=beside)

    def event(self, gnmax: ConfidentGNMax) -> DpEvent:
        """All that the run will be charged for."""
        if self.smooth is None:
            return gnmax.event
        return compose(gnmax.event, event_of(release_cost(self.smooth)))

    def as_document(self) -> dict[str, Any]:
        return {"version": documents.VERSION, "method": METHOD, **settings_document(self, {})}

    def as_toml(self) -> str:
        return toml.dumps(self.as_document())


def own_of(recipe: PateRecipe) -> Own | None:
    """The user's file that the recipe names; None for a data set by name."""
    if not is_own(recipe.data):
        return None
    return Own(recipe.data, recipe.table, recipe.test, recipe.classes)


def form_of(recipe: PateRecipe, data_dir: Path | None = None) -> Form:
    """The declared form of the examples; none is read. Targets that are numbers have no votes, and are refused."""
    own = own_of(recipe)
    form = official_form(recipe.data) if own is None else own_form(own, data_dir)
    if not form.classes:
        raise SettingError(f"teachers vote for classes, and the targets of {recipe.data} are numbers")
    if form.words:
        raise SettingError(f"teachers vote once on an example, and {recipe.data} has a target for every word")
    return form


def size_of(recipe: PateRecipe) -> int:
    """The declared number of units."""
    if recipe.size is None and is_own(recipe.data):
        raise size_missing(recipe.data)
    return recipe.size or official_size(recipe.data)


def widened(recipe: PateRecipe, form: Form) -> PateRecipe:
    """The recipe with the width of a network that fits any data written out."""
    takes, given = settings_of(networks()[recipe.model.name]), recipe.model.settings
    said = {"features": form.features, "outputs": form.outputs}
    both = {name: n for name, n in said.items() if name in takes and given.get(name) is None}
    return replace(recipe, model=Network(recipe.model.name, {**given, **both})) if both else recipe


def check(recipe: PateRecipe, gnmax: ConfidentGNMax, form: Form) -> None:
    """Refuse settings at which a release of the cost at this data would not be proved."""
    if recipe.smooth is not None:
        check_smooth(gnmax, recipe.smooth, teachers=recipe.teachers, classes=form.classes)


def from_document(document: Document) -> PateRecipe:
    """The recipe that a document means; a mistake in it is told with its place."""
    table: Mapping[str, Any] = document.table
    if document.version != documents.VERSION or table.get("method") != METHOD:
        raise SettingError(
            f"{document.place or 'this'} is no recipe of PATE: one begins with version = {documents.VERSION} and "
            f'method = "{METHOD}"'
        )
    own = {name: value for name, value in table.items() if name not in ("version", "method")}
    try:
        return made(PateRecipe, own, Spot())
    except Wrong as error:
        raise document.located(error) from None


def names() -> list[str]:
    """The shipped recipes."""
    files = resources.files("saltflat.pate").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def document(path: str | Path) -> Document:
    """The recipe in a file, or the shipped one of this name."""
    if Path(path).is_file():
        return documents.read(path)
    if str(path) not in names():
        raise SettingError(
            f"there is no file and no recipe of PATE {str(path)!r}; {known_or(str(path), names())}"
        )
    text = (resources.files("saltflat.pate") / f"{path}.toml").read_text(encoding="utf-8")
    return documents.parse(text, f"the recipe {path}")


def read(path: str | Path) -> PateRecipe:
    """The recipe in a file, or the shipped one of this name."""
    return from_document(document(path))
