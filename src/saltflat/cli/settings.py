"""The flags that change what a recipe says: short ones for common settings, ``--set`` for all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saltflat.errors import DataError, SettingError
from saltflat.recipes.documents import Document
from saltflat.recipes.toml import Keys, dotted, inline, keys_of, word

OLD_NAMES: dict[str, Any] = {  # methods, as papers and older recipes call them
    "dp-sgd": "DPSGD",
    "dp-sat": {"SAT": {"radius": 0.03}},
    "dp-sam": {"SAM": {"radius": 0.03}},
}
Change = tuple[Keys, Any, str]


@dataclass(frozen=True)
class Flag:
    """A flag for one setting, of the recipe or of its only phase; ``keys`` where it is not called as the flag is."""

    name: str
    help: str
    of_phase: bool = False
    keys: Keys = ()

    @property
    def word(self) -> str:
        return "--" + self.name.replace("_", "-")


ADVANTAGE = (
    "In the place of --epsilon: how far any attack's true positive rate may pass its false positive rate."
)
FLAGS = (
    Flag(
        "data",
        "Data set: digits (embedded), mnist, adult, ...; or yours: mine.npz, mine.csv, a folder of images, of x.npy "
        "and y.npy, or of Parquet.",
    ),
    Flag("table", "For a CSV or Parquet: the TOML file that declares its columns (docs/tables.md)."),
    Flag(
        "test",
        "For a CSV or Parquet: another one of the same columns, whose rows are public; for accuracy only.",
    ),
    Flag("classes", "For an npz, or x.npy and y.npy: how many classes y has, 0 and up."),
    Flag("target_range", "For an npz whose y is a number: its range, such as '[0, 100]'."),
    Flag("model", "Network of saltflat.models: mlp (fits any), digits_cnn, '{mlp = {width = 64}}', ..."),
    Flag("size", "Declared number of training examples: the official one, or a public bound on yours."),
    Flag("epsilon", "The epsilon that the run may spend, one example added or removed."),
    Flag("advantage", ADVANTAGE),
    Flag("delta", "The delta that goes with it."),
    Flag("batch_size", "Expected number of examples in a step (Poisson sampling)."),
    Flag("method", "Such as DPSGD or '{SAT = {radius = 0.03}}'; dp-sgd, dp-sat, dp-sam.", of_phase=True),
    Flag("epochs", "Expected number of times that each example is used.", of_phase=True),
    Flag("lr", "Learning rate: a number or a schedule.", of_phase=True),
    Flag("clip_norm", "The most that one example moves a step's sum: a number or a rule.", of_phase=True),
    Flag("spare", "Steps that crashes may waste before the budget is short."),
    Flag("physical", "Most examples in memory at once; changes no result."),
    Flag("seed", "Seed of the initial weights; noise and sampling are always secret."),
)


_SHARED = ("data", "table", "test", "classes", "target_range", "model", "delta", "spare", "method")
_LOCAL = ("clients", "local", "Local")
CLIENT_FLAGS = (
    *(flag for flag in FLAGS if flag.name in _SHARED),
    Flag("clients", "Declared number of clients: a public bound.", keys=("clients", "count")),
    Flag("user", "For a file of yours: the column that says whose a row is.", keys=("clients", "user")),
    Flag(
        "split",
        "Or how examples are divided: iid, dirichlet, dirichlet-equal, '{Dirichlet = {alpha = 0.3}}'.",
        keys=("clients", "split"),
    ),
    Flag("epsilon", "The epsilon that the run may spend, one client added or removed."),
    Flag("advantage", ADVANTAGE),
    Flag("rounds", "Number of rounds.", of_phase=True, keys=("steps",)),
    Flag("rate", "Each client's probability to join a round."),
    Flag("draw", "How clients are drawn: Poisson, or WithoutReplacement for exactly rate x clients."),
    Flag("lr", "The server's learning rate; 1 with SGD is federated averaging.", of_phase=True),
    Flag("clip_norm", "The most that one client moves a round's sum: a number or a rule.", of_phase=True),
    Flag("local_epochs", "How often a client goes over its own rows in a round.", keys=(*_LOCAL, "epochs")),
    Flag("local_lr", "A client's learning rate.", keys=(*_LOCAL, "lr")),
    Flag("local_batch_size", "Rows in a client's minibatch.", keys=(*_LOCAL, "batch_size")),
    Flag("physical", "Most clients in memory at once; changes no result."),
    Flag("seed", "Seed of the initial weights; noise and sampling are always secret."),
)
SPLITS = {"iid": "IID", "dirichlet": "Dirichlet", "dirichlet-equal": "DirichletEqual"}


def changes(
    document: Document, given: Mapping[str, str], sets: Sequence[str], *, flags: Sequence[Flag] = FLAGS
) -> Iterator[Change]:
    """What the flags ask for, as changes of the document: (keys, value, the flag)."""
    for flag in flags:
        if flag.name in given:
            value = value_of(flag, given[flag.name])
            keys = keys_for(flag, value, document)
            yield keys, value, flag.word
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"--set {text[:60]} has no value; write --set phase.0.method.SAT.radius=0.05")
        try:
            yield keys_of(key.strip()), word(value.strip()), "--set"
        except DataError as error:
            raise SettingError(f"--set {text[:60]}: {error}") from None


def for_target(document: Document, given: Mapping[str, str], sets: Sequence[str]) -> Document:
    """The document without its target where a flag gives one of the other kind: one of the two decides the noise."""
    asked = {text.partition("=")[0].strip() for text in sets} | set(given)
    if {"epsilon", "advantage"} <= asked:
        raise SettingError("--epsilon and --advantage both decide the noise; leave one of them out")
    for name, other in (("advantage", "epsilon"), ("epsilon", "advantage")):
        if name in asked and other in document.table:
            table = {key: value for key, value in document.table.items() if key != other}
            document = replace(document, table=table)
    return document


def value_of(flag: Flag, text: str) -> Any:
    """What a flag's word means."""
    if flag.name == "method" and text in OLD_NAMES:
        return OLD_NAMES[text]
    if flag.name == "split" and text in SPLITS:
        return SPLITS[text]
    try:
        return word(text)
    except DataError as error:
        raise SettingError(f"{flag.word} {text[:60]}: {error}") from None


def keys_for(flag: Flag, value: Any, document: Document) -> Keys:
    """The entry of the recipe that a flag changes."""
    return _in_the_phase(flag, value, document) if flag.of_phase else flag.keys or (flag.name,)


def _in_the_phase(flag: Flag, value: Any, document: Document) -> Keys:
    """Where a setting of the only phase is; with several, the words to say which is meant."""
    phases = document.table.get("phase")
    blocks = [each for each in phases if isinstance(each, dict)] if isinstance(phases, list) else []
    ways = [_way(flag, place, phase) for place, phase in enumerate(blocks)] or [
        ("phase", "0", *(flag.keys or (flag.name,)))
    ]
    if len(ways) > 1:
        said = " or ".join(f"--set '{dotted(way)}={inline(value)}'" for way in ways)
        raise SettingError(f"{flag.word} is for one phase, and the recipe has {len(ways)}: write {said}")
    return ways[0]


def _way(flag: Flag, place: int, phase: Mapping[str, Any]) -> Keys:
    """The learning rate is the optimizer's; DPLIS and others have one too, which must follow it."""
    above = ("phase", str(place))
    if flag.name != "lr":
        return (*above, *(flag.keys or (flag.name,)))
    optimizer = phase.get("optimizer")
    name = next(iter(optimizer)) if isinstance(optimizer, dict) and optimizer else str(optimizer)
    own = _with_rate(phase.get("method"), (*above, "method"))
    if own is not None:
        raise SettingError(
            f"--lr is the optimizer's, and {dotted(own)} must follow it: write --set "
            f"{dotted((*above, 'optimizer', name, 'lr'))}=... --set {dotted(own)}=..."
        )
    return (*above, "optimizer", name, "lr")


def _with_rate(method: Any, above: Keys) -> Keys | None:
    """The learning rate that a method, or one inside it, has of its own."""
    if not (isinstance(method, dict) and len(method) == 1):
        return None
    ((name, settings),) = method.items()
    if not isinstance(settings, dict):
        return None
    own = (*above, name)
    return (*own, "lr") if "lr" in settings else _with_rate(settings.get("method"), (*own, "method"))
