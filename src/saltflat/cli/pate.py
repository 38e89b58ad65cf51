"""``saltflat pate``: teachers vote on public queries, a student learns from the noisy answers; kept in a folder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Threads, check_machine
from saltflat.cli.running import PANEL, with_flags
from saltflat.cli.screen import screen
from saltflat.cli.settings import Flag
from saltflat.errors import DataError, Interrupted, SettingError
from saltflat.privacy.limits import rounded_up
from saltflat.recipes.toml import dotted, keys_of, word

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from saltflat.pate.gnmax import Answers, ConfidentGNMax
    from saltflat.pate.recipe import PateRecipe
    from saltflat.pate.run import Outcome, Shown
    from saltflat.runs.layout import Folder

USUAL = "digits"

FLAGS = (
    Flag("data", "Data set: digits (embedded), mnist, svhn, ...; or a file: mine.npz, mine.csv."),
    Flag(
        "users",
        "For a file of yours: the array or column that says whose each row is; the unit is then a user.",
    ),
    Flag("table", "For a CSV: the TOML file that declares its columns (docs/tables.md)."),
    Flag(
        "test", "For a CSV: another one of the same columns, whose rows are public: queries and evaluation."
    ),
    Flag("classes", "For an npz: how many classes y has, 0 and up."),
    Flag("size", "Declared number of units: the official one, or a public bound on yours."),
    Flag("model", "Network of saltflat.models, for teachers and student: mlp (fits any), tutorial_cnn, ..."),
    Flag("teachers", "How many teachers share the private data."),
    Flag("votes", "A file (npy) of what teachers choose, a row for each; then none is trained."),
    Flag("queries", "The most public queries that are asked: the first of the test examples."),
    Flag("answers", "The most that are answered (a cap); left out: as many as fit in epsilon (a filter)."),
    Flag("threshold", "How many votes for one class let a query be answered."),
    Flag("sigma1", "Noise on that test, in votes."),
    Flag("sigma2", "Noise on the answer, in votes."),
    Flag("epsilon", "With a cap: both noises are scaled to it. Without: the budget that is spent."),
    Flag("delta", "The delta that goes with it."),
    Flag("order", "Also release what the votes cost at this data, at this Renyi order (docs/pate.md)."),
    Flag("seed", "Public seed of parts, first weights and shuffles; noise is always secret."),
)


def register(app: typer.Typer) -> None:
    """Add ``pate`` to ``app``."""
    app.command("pate")(with_flags(pate, FLAGS))


def pate(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A TOML file, or digits or mnist.", show_default=USUAL),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="The folder that keeps the run.")] = Path("runs/pate"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print settings, noise and cost; read and charge nothing.")
    ] = False,
    data_dir: DataDir = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="A ledger shared by all runs on this data.", show_default="one in --out"),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes that train teachers side by side; 0: none but this one.")
    ] = 0,
    threads: Threads = 0,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, such as student.sigma=0.03; repeat for more.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    given: dict[str, str],
) -> None:
    """Label public queries by teachers that each saw a part of the private data, and train a student on the answers.

    Teachers and votes are private: they stay in the folder private/ of --out while the run goes, and are removed at its
    end. Released are which queries were answered, the labels, and the student. The whole cost is on the ledger before a
    teacher is trained. Ctrl-C stops in good order, and prints the command that goes on.
    """

    from saltflat.pate.recipe import check, form_of, widened
    from saltflat.pate.run import execute
    from saltflat.runs.begin import Taken
    from saltflat.runs.layout import Folder

    folder, console = Folder(out), screen()
    chosen = _chosen(recipe, given, sets or [], folder, resume=resume)
    form = form_of(chosen, data_dir)
    chosen = widened(chosen, form)
    gnmax = chosen.mechanism()
    check(chosen, gnmax, form)
    _announce(chosen, gnmax, console)
    if dry_run:
        console.print("Nothing was read or charged.")
        return
    check_machine("cpu", threads)
    again = _again(out, data_dir=data_dir, ledger=ledger, workers=workers, threads=threads)
    try:
        with _shown(chosen, console) as shown:
            outcome = execute(
                chosen, folder, resume=resume, ledger=ledger, workers=workers, data_dir=data_dir, shown=shown
            )
    except Interrupted as error:
        after = str(error).split(";")[0]
        raise Interrupted(f"{after}; it is kept in {out}: to go on, run {again}", error.signal) from None
    except Taken as error:
        raise SettingError(f"{error}: {again}") from None
    _report(outcome, folder, console)


def _chosen(
    recipe: str | None, given: dict[str, str], sets: list[str], folder: Folder, *, resume: bool
) -> PateRecipe:
    """The recipe with what flags change; a run that goes on keeps its own."""
    from saltflat.pate.recipe import document, from_document, read
    from saltflat.recipes import documents

    there = None
    if resume:
        if not folder.recipe.exists():
            raise DataError(f"{folder.path} holds no run to go on with; leave --resume out to begin one")
        there = read(folder.recipe)
    base = document(recipe or (folder.recipe if resume else USUAL))
    here = from_document(base.but(_changes(given, sets)))
    if there is None or here == there:
        return here
    differing = documents.difference(there.as_document(), here.as_document())
    name = dotted(differing[0]) if differing else "settings"
    raise SettingError(
        f"the run in {folder.path} has another {name}; leave it out to go on, or begin another run in another --out"
    )


def _changes(given: dict[str, str], sets: list[str]) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """What flags ask for, as changes of a document: (keys, value, the flag)."""
    for flag in FLAGS:
        if flag.name in given:
            yield (flag.name,), _word(given[flag.name], flag.word), flag.word
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"--set {text[:60]} has no value; write --set student.sigma=0.03")
        try:
            keys = keys_of(key.strip())
        except DataError as error:
            raise SettingError(f"--set {text[:60]}: {error}") from None
        yield keys, _word(value.strip(), "--set"), "--set"


def _word(text: str, flag: str) -> Any:
    try:
        return word(text)
    except DataError as error:
        raise SettingError(f"{flag} {text[:60]}: {error}") from None


def _announce(recipe: PateRecipe, gnmax: ConfidentGNMax, console: Console) -> None:
    """What will run and what it costs."""
    from saltflat.pate.recipe import size_of
    from saltflat.pate.run import in_words, smoothing
    from saltflat.privacy.accounting.bounds import epsilon
    from saltflat.privacy.record.statement import Declared, delta_warnings

    unit = "example" if recipe.users is None else "user"
    spent = rounded_up(epsilon(recipe.event(gnmax), recipe.delta), 4)
    taught = f"votes of others in {recipe.votes}" if recipe.votes else f"{recipe.teachers} teachers"
    lines = [
        f"PATE on {recipe.data} with {recipe.model}: {taught}, {recipe.queries:,} public queries",
        f"confident GNMax: threshold {gnmax.threshold:g}, noise {gnmax.sigma1:.4g} on the test, "
        f"{gnmax.sigma2:.4g} on the answer",
        f"{in_words(gnmax)}; student: {smoothing(recipe.student)}",
        f"epsilon {spent} at delta {recipe.delta:g}; unit: one {unit}; adjacency: add or remove one; no "
        f"sampling: every {unit} counts in every query",
        *(
            f"Warning: {each}"
            for each in delta_warnings(Declared(delta=recipe.delta, size=size_of(recipe), unit=unit))
        ),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


@dataclass
class _Bars:
    """What is seen of a run while it goes: bars in a terminal, lines elsewhere. All of it is public."""

    bar: Progress
    console: Console
    tasks: dict[str, TaskID]
    asked: int = 0
    answered: int = 0

    def teachers(self, done: int, total: int) -> None:
        self._move("teachers", done, total)

    def answers(self, answers: Answers) -> None:
        self.asked, self.answered = self.asked + answers.asked, self.answered + answers.answered
        self.bar.update(self.tasks["queries"], completed=self.asked)

    def student(self, done: int, total: int) -> None:
        self._move("student", done, total)

    def _move(self, name: str, done: int, total: int) -> None:
        self.bar.update(self.tasks[name], completed=done, total=total)
        if self.bar.disable and done and (4 * done // total) > (4 * (done - 1) // total):
            self.console.print(f"{name}: {done} of {total}", highlight=False)


@contextmanager
def _shown(recipe: PateRecipe, console: Console) -> Iterator[Shown]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from saltflat.pate.run import Shown

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    totals = {"teachers": recipe.teachers, "queries": recipe.queries, "student": recipe.student.epochs}
    with Progress(*columns, console=console, disable=not sys.stdout.isatty()) as bar:
        bars = _Bars(bar, console, {name: bar.add_task(name, total=total) for name, total in totals.items()})
        yield Shown(teachers=bars.teachers, answers=bars.answers, student=bars.student)


def _again(out: Path, **flags: Any) -> str:
    """The command that goes on with a run, as a shell takes it.

    >>> _again(Path("my runs/one"), data_dir=None, workers=2)
    "saltflat pate --resume --out 'my runs/one' --workers 2"
    """
    given = [w for name, v in flags.items() if v for w in ("--" + name.replace("_", "-"), str(v))]
    return shlex.join(["saltflat", "pate", "--resume", "--out", str(out), *given])


def _report(outcome: Outcome, folder: Folder, console: Console) -> None:
    said = [*outcome.released.sentences(), f"Kept in {folder.path}.", outcome.statement.as_text()]
    said.append(
        f"On record in the ledger: epsilon {rounded_up(outcome.on_record, 4)} at delta {outcome.statement.delta:g}, "
        "all runs in it together."
    )
    console.print("\n".join(said), highlight=False, markup=False, soft_wrap=True)
