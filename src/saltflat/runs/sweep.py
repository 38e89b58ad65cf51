"""Recipes that differ in some settings, each with some seeds, in one folder: what is where, who won, what all cost.

out/sweep.json           the recipe, what is varied, the seeds, how trials are charged
out/ledger.jsonl         one ledger for all trials, unless another one was named
out/lr=1,clip_norm=0.5/seed-0 ...  a trial's folder each: a run like any other
out/result.txt           the table and what was said at the end
out/report.html          the same with pictures

Where only the best is released (`SELECTED`) there is, instead of folders of trials,

out/private/             all that must not be seen: how many trials, which, and the trials; it is gone at the end
out/winner/              the one that was released
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from saltflat.errors import DataError, LedgerError, SettingError
from saltflat.privacy.record import durable
from saltflat.privacy.record.history import History
from saltflat.privacy.record.history import read as read_ledger
from saltflat.recipes import toml
from saltflat.runs.identity import identity_of
from saltflat.runs.layout import LEDGER, SWEEP, Folder, Reading, number, readings

MOST = 1000  # trials
LONGEST = 1 << 20  # bytes of sweep.json
NAME = re.compile(
    r"[A-Za-z0-9_-]{1,40}"
)  # what a setting is called for short: it is a part of a folder's name
COUNTED, PUBLIC, SELECTED = "counted", "public", "selected"
PRIVATE, WINNER, RESULT, REPORT = "private", "winner", "result.txt", "report.html"


@dataclass(frozen=True)
class Axis:
    """A setting that is varied: its dotted key, what it is called for short, and its values as TOML."""

    key: str
    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One point of the grid: ``changes`` of the recipe, (key, value as TOML), and a name that is a folder's too."""

    name: str
    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a setting and a seed, and the folder that is its own, seen from the sweep's."""

    setting: Setting
    seed: int
    folder: str


@dataclass(frozen=True)
class Sweep:
    """What was asked for: the grid of ``axes`` over ``recipe`` (TOML), each point with every seed.

    ``mode`` says how trials are charged: each by itself (`COUNTED`), each by itself on data that was declared public
    (`PUBLIC`), or the best of a random number, ``mean`` expected, and no other (`SELECTED`). ``ledger`` is one that was
    named; None: one in the folder.

    >>> lr = Axis("phase.0.optimizer.SGD.lr", "lr", ("1.0", "2.0"))
    >>> [trial.folder for trial in Sweep("", (lr,), (0, 1)).trials]
    ['lr=1.0/seed-0', 'lr=1.0/seed-1', 'lr=2.0/seed-0', 'lr=2.0/seed-1']
    """

    recipe: str
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    mode: str = COUNTED
    mean: float | None = None
    ledger: str | None = None

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every point of the grid, the last axis fastest."""
        found: dict[str, Setting] = {}
        for values in product(*(axis.values for axis in self.axes)):
            pairs = list(zip(self.axes, values, strict=True))
            name = ",".join(f"{axis.name}={_short(value)}" for axis, value in pairs)[:120]
            name = f"{name}~{len(found)}" if name in found else name
            found[name] = Setting(name, tuple((axis.key, value) for axis, value in pairs))
        return tuple(found.values())

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial of a sweep that runs them all."""
        return tuple(
            Trial(setting, seed, f"{setting.name}/seed-{seed}")
            for setting in self.settings
            for seed in self.seeds
        )

    @property
    def count(self) -> int:
        """How many trials the grid has, without making them."""
        return len(self.seeds) * math.prod(len(axis.values) for axis in self.axes)

    @property
    def shown(self) -> list[str]:
        """The folders that may be looked at.

        *Guarantee*: of a sweep that releases the best alone, that one's.
        """
        return [WINNER] if self.mode == SELECTED else [trial.folder for trial in self.trials]

    def book(self, out: Path) -> Path:
        """The ledger that its trials, or their selection, are charged to."""
        return out / LEDGER if self.ledger is None else Path(self.ledger)

    def as_json(self) -> str:
        over = [[axis.key, axis.name, list(axis.values)] for axis in self.axes]
        told = {"version": 1, "mode": self.mode, "mean": self.mean, "over": over, "seeds": list(self.seeds)}
        return json.dumps({**told, "ledger": self.ledger, "recipe": self.recipe}, indent=1) + "\n"


def _short(value: str) -> str:
    """A value as a part of a folder's name.

    >>> _short("0.5"), _short('"DPSGD"'), _short("{SAT = {radius = 0.03}}")
    ('0.5', 'DPSGD', 'SAT-radius-0.03')
    """
    return re.sub(r"[^A-Za-z0-9._+]+", "-", value).strip("-.")[:40] or "value"


def from_json(text: str) -> Sweep:
    """The sweep that `Sweep.as_json` wrote; ValueError, KeyError or TypeError if it is none."""
    told = json.loads(text)
    axes = tuple(Axis(str(key), str(name), tuple(map(str, values))) for key, name, values in told["over"])
    seeds = told["seeds"]
    for key, value in ((axis.key, value) for axis in axes for value in axis.values):
        toml.keys_of(key), toml.word(value)
    good = told["version"] == 1 and told["mode"] in (COUNTED, PUBLIC, SELECTED) and bool(axes)
    good = good and bool(seeds) and all(type(seed) is int for seed in seeds)
    good = good and all(axis.values and NAME.fullmatch(axis.name) for axis in axes)
    good = good and Sweep("", axes, tuple(seeds)).count <= MOST
    mean = number(told["mean"])
    if not good or (mean is None) is (told["mode"] == SELECTED):
        raise ValueError("this is no sweep")
    ledger = told["ledger"]
    return Sweep(
        str(told["recipe"]), axes, tuple(seeds), told["mode"], mean, None if ledger is None else str(ledger)
    )


def read(out: Path) -> Sweep | None:
    """The sweep that a folder was begun with; None if it was not, DataError if that cannot be read."""
    place = out / SWEEP
    if not place.exists():
        return None
    try:
        if not place.is_file() or place.stat().st_size > LONGEST:
            raise ValueError
        return from_json(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, DataError):
        raise DataError(f"{place} is damaged: bring it back, or go on with each run by itself") from None


def begin(out: Path, sweep: Sweep) -> bool:
    """Make the folder and write down what is in it; whether it is new. One that holds anything else is refused."""
    there = read(out) if out.is_dir() else None
    if there is not None:
        check_same(out, there, sweep)
        return False
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"{out} is not empty, and holds no sweep; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    durable.create(out / SWEEP, sweep.as_json().encode(), mode=durable.RELEASED)
    return True


def check_same(out: Path, there: Sweep, here: Sweep) -> None:
    """Refuse to go on with another sweep than the one that is in the folder."""
    if there == here:
        return
    over = lambda sweep: "; ".join(f"{axis.key}={','.join(axis.values)}" for axis in sweep.axes)
    words = {
        "--over": (over(there), over(here)),
        "seeds": (list(there.seeds), list(here.seeds)),
        "trials": (there.mode, here.mode),
        "--select": (there.mean, here.mean),
        "--ledger": (there.ledger or "one of its own", here.ledger or "one of its own"),
    }
    said = [f"{name} {old}, not {new}" for name, (old, new) in words.items() if old != new]
    raise SettingError(
        f"{out} holds another sweep: it was begun with {'; '.join(said) or 'another recipe'}; go on with it by "
        f"saltflat sweep --resume --out {out}, or give another --out"
    )


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold the folder of a sweep, so that no two processes work on it; the system lets go when the process ends."""
    with (out / SWEEP).open("rb+") as file:  # some file systems lock only what may be written
        try:
            durable.lock(file.fileno(), out / SWEEP)
        except BlockingIOError:
            raise SettingError(f"another process works on the sweep in {out}; wait for it") from None
        yield


# What is there


def runs_in(out: Path) -> list[Path]:
    """The folders that may be looked at (`Sweep.shown`) and are there; none if there is no sweep.

    Read without trust, as a report does.
    """
    try:
        found = read(out)
    except DataError:
        found = None
    return [out / name for name in (found.shown if found else ()) if (out / name).is_dir()]


def above(run: Path) -> tuple[Path, Sweep] | None:
    """The sweep that a run's folder is a trial of, and its folder."""
    place = run.resolve()
    for out in (place.parent, place.parent.parent):
        try:
            found = read(out)
        except DataError:
            found = None
        if found is not None and place.relative_to(out).as_posix() in found.shown:
            return out, found
    return None


def has_ended(folder: Path) -> bool:
    """Whether a trial wrote what is written last: statement, then model."""
    kept = Folder(folder)
    return kept.statement.exists() and kept.model.exists()


@dataclass(frozen=True)
class Score:
    """How a trial did on the public test examples; ``key`` is what trials are sorted by: higher is better."""

    measure: str
    value: float

    @property
    def key(self) -> float:
        return self.value if self.measure == "accuracy" else -self.value

    @classmethod
    def of(cls, reading: Reading) -> Score | None:
        for measure in ("perplexity", "error", "accuracy"):
            value = getattr(reading, measure)
            if value is not None:
                return cls(measure, value)
        return None


def score_of(folder: Path) -> Score | None:
    """That of a trial's last weights; None if it has not ended, or there are no test examples."""
    try:
        found = readings(Folder(folder).metrics)[0] if has_ended(folder) else ()
    except OSError:
        found = ()
    return Score.of(found[-1]) if found else None


@dataclass(frozen=True)
class Standing:
    """A setting, and how its trials did: mean and standard error s / sqrt(k) over seeds."""

    setting: Setting
    scores: tuple[Score, ...]
    trials: int
    ended: int

    @property
    def mean(self) -> float | None:
        return statistics.fmean(each.value for each in self.scores) if self.scores else None

    @property
    def error(self) -> float | None:
        if len(self.scores) < 2:
            return None
        return statistics.stdev(each.value for each in self.scores) / math.sqrt(len(self.scores))

    @property
    def place(self) -> tuple[bool, float]:
        """The best is first; settings that lack a trial come after those that have all."""
        key = statistics.fmean(each.key for each in self.scores) if self.scores else -math.inf
        return len(self.scores) < self.trials, -key

    def in_words(self) -> str:
        """Mean and error, as the table says it."""
        if self.mean is None:
            return "not ended" if self.ended < self.trials else "no test examples"
        share = self.scores[0].measure == "accuracy"
        written = (lambda v: f"{100 * v:.2f} %") if share else (lambda v: f"{v:.4g}")
        return written(self.mean) + ("" if self.error is None else f" ± {written(self.error)}")


def standings(out: Path, sweep: Sweep) -> list[Standing]:
    """Every setting, the best first."""
    found, places = [], dict[Setting, list[Path]]()
    for trial in sweep.trials:
        places.setdefault(trial.setting, []).append(out / trial.folder)
    for setting, folders in places.items():
        scores = tuple(score for folder in folders if (score := score_of(folder)) is not None)
        found.append(Standing(setting, scores, len(folders), sum(map(has_ended, folders))))
    return sorted(found, key=lambda each: each.place)


def winner_of(found: Sequence[Standing]) -> Standing | None:
    """The setting with the best mean; None where nothing was scored."""
    return found[0] if found and found[0].scores else None


@dataclass(frozen=True)
class Looked:
    """What a sweep has cost by now: its own trials, and with whatever else is on record in its ledger."""

    epsilon: float
    everything: float
    delta: float
    unit: str
    adjacency: str


def looked(out: Path, sweep: Sweep, delta: float) -> Looked | None:
    """What is on record; None where there is no ledger yet. LedgerError if it cannot be trusted."""
    place = sweep.book(out)
    if not place.is_file():
        return None
    history = read_ledger(place)
    unit, adjacency = history.unit or ("example", "add-or-remove")
    runs = own_runs(history, out, sweep)
    mine = history.epsilon(delta, runs) if runs else 0.0
    return Looked(mine, history.epsilon(delta), delta, unit, adjacency)


def own_runs(history: History, out: Path, sweep: Sweep) -> list[int]:
    """The lines at which its trials, or their selection, began and went on."""
    if sweep.mode == SELECTED:
        return history.identified(identity_of(out) or "")
    folders = [out / trial.folder for trial in sweep.trials]
    names = [identity_of(folder) for folder in folders if folder.is_dir()]
    return [line for name in names if name is not None for line in history.identified(name)]


CURSE = (
    "The winner was picked by its score on these test examples, so that score is too good: the best of several is "
    "partly the luckiest. Judge it on examples that had no part in the choice."
)


def verdict(out: Path, sweep: Sweep, delta: float) -> list[str]:
    """Who won, why that flatters, and what having looked costs: a sentence each."""
    try:
        cost = looked(out, sweep, delta)
    except LedgerError as error:
        return [f"What the sweep cost is not known: {error}."]
    if sweep.mode == SELECTED:
        return _of_selected(out, sweep, cost)
    found = standings(out, sweep)
    best, ended = winner_of(found), sum(each.ended for each in found)
    said = ["No trial was scored: there is no winner."]
    if best is not None:
        seeds = f"{len(best.scores)} seeds" if len(best.scores) > 1 else "one seed"
        said = [
            f"Winner: {best.setting.name}, {best.scores[0].measure} {best.in_words()} over {seeds}.",
            CURSE,
        ]
    return [*said, *_of_all(sweep, cost, ended, sum(each.trials for each in found))]


def _of_all(sweep: Sweep, cost: Looked | None, ended: int, trials: int) -> list[str]:
    there = f"{ended} of {trials} trials ended"
    if cost is None:
        return [f"{there}; nothing is on record."]
    if sweep.mode == PUBLIC:
        return [
            f"{there}. Their examples were declared public: nothing of this protects them, and nothing was charged to "
            "a record of private data."
        ]
    more = ""
    if cost.everything > cost.epsilon * (1 + 1e-9):
        more = f" With whatever else is in the ledger: {_spent(cost, cost.everything)}."
    return [
        f"{there}. The cost of having looked: all trials together, whether they won, lost or failed, cost "
        f"{_spent(cost, cost.epsilon)}. That, and not the epsilon of the winner alone, is what picking it costs.{more}"
    ]


def _of_selected(out: Path, sweep: Sweep, cost: Looked | None) -> list[str]:
    won = score_of(out / WINNER)
    if cost is None or won is None:
        return ["Nothing is released: no trial ended, or the selection has not."]
    mark = Standing(Setting("", ()), (won,), 1, 1).in_words()
    return [
        f"Winner: {won.measure} {mark}; its settings are in {WINNER}/recipe.toml.",
        CURSE,
        f"The cost of having looked: {_spent(cost, cost.epsilon)}, for the best of a random number of trials, "
        f"{sweep.mean:g} expected, settings drawn at random each time. It holds because nothing else is released: how "
        "many trials there were, and how the others did, is deleted and stays private.",
    ]


def _spent(cost: Looked, epsilon: float) -> str:
    from saltflat.privacy.limits import rounded_up

    kind = cost.adjacency.replace("-", " ")
    return (
        f"epsilon {rounded_up(epsilon, 4)} at delta {cost.delta:g} (unit: one {cost.unit}; adjacency: {kind})"
    )


def released_readings(metrics: Path, epsilon: float) -> bytes:
    """The readings of a trial that won, each at the epsilon of the selection: none of them was released for less."""
    lines = [json.dumps({**asdict(each), "epsilon": epsilon}) for each in readings(metrics)[0]]
    return ("\n".join(lines) + "\n").encode()


# What a selection draws, in secret


@dataclass(frozen=True)
class Drawn:
    """The trials of a selection: their number is the secret coin's, settings and seeds are drawn at random.

    *Guarantee*: drawn once, before anything is charged, from the operating system, and never again: a sweep that goes
    on after a kill finds what was first drawn.
    """

    settings: tuple[int, ...]
    seeds: tuple[int, ...]

    @classmethod
    def at_random(cls, sweep: Sweep) -> Drawn:
        from random import SystemRandom

        coin, mean, grid = SystemRandom(), float(sweep.mean or 0), len(sweep.settings)
        count = 1
        while coin.random() >= 1 / mean:  # K is geometric: P(K = k) = (1 - 1/mean)^(k - 1) / mean
            count += 1
        return cls(
            tuple(coin.randrange(grid) for _ in range(count)),
            tuple(coin.randrange(2**31) for _ in range(count)),
        )

    def trials(self, sweep: Sweep) -> list[Trial]:
        """Those trials, in the private folder."""
        settings = sweep.settings
        pairs = enumerate(zip(self.settings, self.seeds, strict=True))
        return [Trial(settings[each], seed, f"{PRIVATE}/trial-{k:04d}") for k, (each, seed) in pairs]


def forget_times(out: Path) -> None:
    """Give all that a selection left the times of its first file, sweep.json.

    When the winner's files and the result were written tells how long all trials took, and so about how many ran.
    """
    found = os.stat(out / SWEEP)
    times = (found.st_mtime_ns, found.st_mtime_ns)
    for place in (*out.rglob("*"), out):
        if not place.is_symlink():
            os.utime(place, ns=times)


README = (
    "PRIVATE: the trials of a selection, of which only the best is released. How many they are, their settings, scores "
    "and weights are as private as the training data. They are here so that an interrupted sweep goes on, and are "
    "removed when it ends.\n"
)


def drawn(out: Path, sweep: Sweep) -> Drawn:
    """What was drawn for the selection in ``out``; drawn now, and kept for its owner alone, if nothing was."""
    private = out / PRIVATE
    durable.private_folder(private)
    place = private / "drawn.json"
    if not place.exists():
        durable.replace(private / "README.txt", README)
        once = Drawn.at_random(sweep)
        durable.create(place, json.dumps({"settings": once.settings, "seeds": once.seeds}).encode())
    try:
        told: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        found = Drawn(tuple(told["settings"]), tuple(told["seeds"]))
        whole = all(type(n) is int for n in (*found.settings, *found.seeds))
        if not (whole and found.settings and all(0 <= k < len(sweep.settings) for k in found.settings)):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{place} is damaged, and may not be drawn again: bring it back, or begin another sweep, which is charged"
        ) from None
    return found
