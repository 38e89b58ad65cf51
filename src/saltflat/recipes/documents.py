"""Recipes as plain tables: found, read and changed without knowing what their values mean, and without torch.

What an entry means, and whether it may be so, is decided by `saltflat.recipes.values`; here a mistake is only told
apart by where it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from saltflat.errors import DataError, SettingError
from saltflat.recipes import old, toml
from saltflat.recipes.lines import lines_of
from saltflat.recipes.toml import Keys, dotted
from saltflat.recipes.wrong import Wrong, known_or, shown

VERSION = 2
INSTEAD = {  # one of two
    **{"epochs": "steps", "steps": "epochs", "batch_size": "rate", "rate": "batch_size"},
    **{"split": "user", "user": "split"},
}


@dataclass(frozen=True)
class Document:
    """The tables of a recipe, and where each of its entries was written: in a line of a file, or in a flag."""

    table: dict[str, Any]
    place: str = ""
    where: Mapping[Keys, str] = field(default_factory=dict)
    asked: Mapping[Keys, str] = field(default_factory=dict)  # by flags, of what was changed

    @property
    def version(self) -> int:
        """The version that the recipe says it has; a flat list of settings that says none has the first."""
        given = self.table.get("version", 1)
        if type(given) is not int or given not in (1, VERSION):
            raise self.located(
                Wrong(("version",), f"this saltflat reads versions 1 and 2 of recipes; got {shown(given)}")
            )
        return given

    def but(self, changes: Iterable[tuple[Keys, Any, str]]) -> Document:
        """The document with some entries changed: (keys, value, the words for where this was asked for)."""
        document = self
        for keys, value, said in changes:
            try:
                table = changed(document.table, keys, value)
            except Wrong as error:
                raise SettingError(f"{said}: {error}" if said else str(error)) from None
            kept = {way: place for way, place in document.where.items() if way[: len(keys)] != keys}
            asked = {**document.asked, keys: said}
            document = replace(document, table=table, where={**kept, keys: said}, asked=asked)
        return document

    def located(self, error: Wrong) -> SettingError:
        """The mistake in one line: where it was made, which entry it is, what is wrong.

        A value that is refused as a whole is the flag's that changed something in it, if there is one.
        """
        length = len(error.keys)
        inside = (said for keys, said in self.asked.items() if length and keys[:length] == error.keys)
        ways = (error.keys[:end] for end in range(length, 0, -1))
        around = (self.where[way] for way in ways if way in self.where)
        place = next(inside, None) or next(around, self.place)
        return SettingError(f"{place}: {error}" if place else str(error))


def changed(node: Any, keys: Keys, value: Any, above: Keys = ()) -> Any:
    """A copy of tables and lists with ``value`` at ``keys``; what it stands in the place of is left out.

    >>> changed({"epochs": 3, "method": "SGD"}, ("steps",), 90)
    {'method': 'SGD', 'steps': 90}
    >>> changed({"optimizer": [{"SGD": {"lr": 2}}]}, ("optimizer", "0", "SGD", "lr"), 1)
    {'optimizer': [{'SGD': {'lr': 1}}]}
    """
    if not keys:
        return value
    key, rest, here = keys[0], keys[1:], (*above, keys[0])
    if len(here) > toml.DEEPEST:
        raise Wrong(here[:3], f"no entry lies more than {toml.DEEPEST} deep")
    if isinstance(node, list):
        if key not in map(str, range(len(node))):
            raise Wrong(above, f"has {len(node)} entries, counted from 0; got {key!r}")
        return [changed(each, rest, value, here) if str(k) == key else each for k, each in enumerate(node)]
    table = {node: {}} if node == key else node  # "DPSGD" is short for {DPSGD = {}}
    if not isinstance(table, dict):
        raise Wrong(above, f"is {shown(node)}, which holds no {key!r}; set it as a whole")
    kept = {name: each for name, each in table.items() if rest or name != INSTEAD.get(key)}
    return {**kept, key: changed(table.get(key, {}), rest, value, here)}


def parse(text: str, place: str) -> Document:
    """The recipe in a TOML text that was found in ``place``."""
    try:
        table = toml.loads(text)
    except DataError as error:
        raise DataError(f"{place} cannot be a recipe: {error}") from None
    if not table:
        raise DataError(f"{place} is empty; a recipe begins with version = {VERSION}")
    where = {keys: f"{place}, line {line}" for keys, line in lines_of(text).items()}
    return Document(table, place, where)


def read(path: str | Path) -> Document:
    """The recipe in a file, or the shipped one of this name."""
    file = Path(path)
    if not file.is_file() and str(path) in names():  # a folder called digits is no recipe
        return shipped(str(path))
    try:
        with file.open("rb") as open_file:
            text = open_file.read(4 * toml.LONGEST).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); give a TOML file or one of "
            f"{', '.join(names())}"
        ) from None
    return parse(text, str(path))


def names() -> list[str]:
    """The shipped recipes."""
    files = resources.files("saltflat.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def shipped(name: str) -> Document:
    """A shipped recipe."""
    return parse(text_of(name), f"the recipe {name}")


def text_of(name: str) -> str:
    """A shipped recipe as it is written."""
    if name not in names():
        raise SettingError(f"there is no recipe {name!r}; {known_or(name, names())}")
    return (resources.files("saltflat.recipes") / f"{name}.toml").read_text(encoding="utf-8")


def about(name: str) -> str:
    """What a shipped recipe is for: the comment at its top."""
    said = []
    for line in text_of(name).splitlines():
        if not line.startswith("#"):
            break
        said.append(line[1:].strip())
    return " ".join(said)


def flat(value: Any, above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """The entries of nested tables and lists; a list without tables is one entry."""
    tables = isinstance(value, list) and any(isinstance(each, dict) for each in value)
    if not (isinstance(value, dict) or tables) or not value:
        yield above, value
        return
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield from flat(each, (*above, str(key)))


def settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a recipe by its dotted key, of either version; data, model and method first, in words.

    >>> settings({"version": 2, "data": "mnist", "model": "mlp_mnist", "phase": [{"method": {"SAT": {"radius": 0.1}}}]})
    {'data': 'mnist', 'model': 'mlp_mnist', 'method': 'SAT', 'version': 2, 'phase.0.method.SAT.radius': 0.1}
    """
    phases = table.get("phase")
    if isinstance(phases, list):
        methods = [phase.get("method") for phase in phases if isinstance(phase, dict)]
        method = ", then ".join(called(each) for each in methods)
    else:
        method = called(table.get("method"))
    words = {"data": called(table.get("data")), "model": called(table.get("model")), "method": method}
    whole = {dotted(keys): value for keys, value in flat(dict(table))}
    return {**{name: said for name, said in words.items() if said}, **whole}


def called(value: Any) -> str:
    """The name of a value, with those that it is put around; nothing for what has none.

    >>> called({"Quantile": {"method": {"SAT": {"radius": 0.1}}}}), called("DPSGD")
    ('Quantile(SAT)', 'DPSGD')
    """
    if isinstance(value, str):
        return value
    if not (isinstance(value, dict) and len(value) == 1):
        return ""
    ((name, inside),) = value.items()
    inner = called(inside.get("method")) if isinstance(inside, dict) else ""
    return f"{name}({inner})" if inner else name


def strange(table: Mapping[str, Any]) -> str:
    """In words, what this version does not know in a recipe, or misses there; nothing if all is as it should be."""
    if "version" not in table:
        unknown = [dotted(keys) for keys, _ in flat(dict(table)) if dotted(keys) not in old.DEFAULTS]
        absent = [name for name in old.DEFAULTS if name not in table]
    elif table["version"] == VERSION and table.get("method") == "PATE":
        unknown = [name for name in table if name not in SETTINGS_OF_PATE]
        absent = [name for name in ("data", "model", "queries", "threshold") if name not in table]
    elif table["version"] == VERSION:
        unknown = [name for name in table if name not in SETTINGS]
        absent = [name for name in ("data", "model", "phase") if name not in table]
    else:
        return f"it has version {shown(table['version'])}, and this saltflat reads 1 and 2"
    said = [
        f"it has settings that this version does not know: {', '.join(unknown)}" if unknown else "",
        f"it does not have {', '.join(absent)}" if absent else "",
    ]
    return "; ".join(each for each in said if each)


SETTINGS = (  # of a recipe; `saltflat.recipes.Recipe` says what each is
    *("version", "data", "model", "size", "epsilon", "advantage", "delta", "batch_size", "rate", "draw"),
    *("budget_split", "accountant"),
    *("table", "test", "classes", "target_range"),
    *("ema", "views", "augment", "features", "spare", "physical", "seed", "clients", "start", "phase"),
    *("public", "synthetic", "warmup"),
)


SETTINGS_OF_PATE = (  # `saltflat.pate.recipe.PateRecipe` says what each is
    *(
        "version",
        "method",
        "data",
        "model",
        "queries",
        "threshold",
        "sigma1",
        "sigma2",
        "teachers",
        "answers",
    ),
    *("epsilon", "delta", "order", "users", "votes", "size", "table", "test", "classes", "seed"),
    *("teacher", "student"),
)


def difference(there: Any, here: Any, above: Keys = ()) -> tuple[Keys, Any, Any] | None:
    """The first entry in which two documents differ, and what it is in each; None if there is none.

    >>> difference({"lr": 2.0, "method": {"SAT": {}}}, {"lr": 2.0, "method": "DPSGD"})
    (('method',), 'SAT', 'DPSGD')
    """
    if isinstance(there, dict) and isinstance(here, dict) and not _two_names(there, here):
        pairs = [(key, there.get(key), here.get(key)) for key in dict.fromkeys([*there, *here])]
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = [(str(k), *both) for k, both in enumerate(zip(there, here, strict=True))]
    else:
        brief = lambda value: called(value) or value
        return None if there == here else (above, brief(there), brief(here))
    found = (difference(old_one, new_one, (*above, key)) for key, old_one, new_one in pairs)
    return next((each for each in found if each is not None), None)


def _two_names(there: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether two tables name two different classes."""
    return len(there) == len(here) == 1 and there.keys() != here.keys()
