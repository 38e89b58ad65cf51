"""``saltflat sweep``: a recipe over a grid of settings and seeds, on one ledger; who won, and what looking cost."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine
from saltflat.cli.running import DryRun, Sets, Shared, loaded, with_flags
from saltflat.cli.screen import screen
from saltflat.cli.settings import FLAGS, changes, for_target
from saltflat.errors import DataError, Interrupted, SaltflatError, SettingError
from saltflat.privacy.limits import rounded_up
from saltflat.recipes import documents, toml
from saltflat.recipes.documents import Document
from saltflat.runs.layout import LEDGER

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from saltflat.privacy.record.costs import BestOf
    from saltflat.recipes import Recipe
    from saltflat.runs.clerk import Clerk, Task
    from saltflat.runs.planned import Planned
    from saltflat.runs.sweep import Sweep, Trial

USUAL = "digits"  # the recipe, where none is named
MOST_JOBS = 1024


def register(app: typer.Typer) -> None:
    """Add ``sweep`` to ``app``."""
    app.command("sweep")(with_flags(sweep, FLAGS))


@dataclass(frozen=True)
class Machine:
    """Where and how trials run: nothing of it changes a trial or its cost."""

    out: Path
    data_dir: Path | None
    device: str
    threads: int
    jobs: int
    engine: str

    @property
    def again(self) -> str:
        """The command that goes on, as a shell takes it."""
        flags = {
            "--out": self.out,
            "--data-dir": self.data_dir,
            "--device": None if self.device == "cpu" else self.device,
            "--threads": self.threads or None,
            "--jobs": None if self.jobs == 1 else self.jobs,
            "--engine": None if self.engine == "auto" else self.engine,
        }
        given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        return shlex.join(["saltflat", "sweep", "--resume", *given])


def sweep(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A TOML file, or a name that `saltflat recipes` lists.", show_default=f"{USUAL}"),
    ] = None,
    *,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=V1,V2,...",
            help="A setting and its values: lr, clip_norm, epsilon, or any key that --set takes. Repeat for a grid.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trials of each setting, with seeds from --seed on.")] = 1,
    jobs: Annotated[int, typer.Option(help="Trials at once, each in a process of its own.")] = 1,
    engine: Annotated[
        str, typer.Option(help="What runs several at once: ray, processes; auto: Ray where it is installed.")
    ] = "auto",
    select: Annotated[
        float | None,
        typer.Option(
            "--select",
            metavar="MEAN",
            help="Release the best of a random number of trials alone, MEAN expected, settings drawn at random; it "
            "costs less than all of them.",
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Declare the examples public: nothing is charged to a private record."),
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder that keeps the sweep.")] = Path("runs/sweep"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in --out.")] = False,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    ledger: Shared = None,
    device: Device = "cpu",
    threads: Threads = 0,
    sets: Sets = None,
    given: dict[str, str],
) -> None:
    """Train a recipe with several settings and seeds; all trials are on one ledger, and looking at them has its price.

    Every trial is charged, and the epsilon that is printed at the end is that of all of them together. With --select
    only the best of a random number of trials is released, and all else is deleted: that costs less. With --public the
    examples are declared public.

    The same command again, or --resume, goes on where it was stopped or killed; trials that ended do not run again.

    Examples:

        saltflat sweep digits --over lr=1,2,4 --seeds 3

        saltflat sweep digits --over lr=1,2,4 --over clip_norm=0.1,0.5 --select 6 --jobs 2
    """
    machine = Machine(out, data_dir, device, threads, _counted("--jobs", jobs, MOST_JOBS), _engine(engine))
    if resume:
        asked = [recipe, over, sets, given, select, ledger, public, seeds != 1]
        wanted = _there(out, any(asked))
    else:
        wanted = _wanted(recipe, given, sets or [], over or [], data_dir)
        first = wanted.seeds[0]
        mode, mean = _mode(select, public, ledger, seeds)
        wanted = replace(
            wanted,
            seeds=tuple(range(first, first + _counted("--seeds", seeds, 1000))),
            mode=mode,
            mean=mean,
            ledger=None if ledger is None else str(ledger.absolute()),
        )
        _check_count(wanted)
    _carry_out(wanted, machine, dry_run=dry_run)


def _check_count(sweep: Sweep) -> None:
    from saltflat.runs.sweep import MOST

    if sweep.count > MOST:
        raise SettingError(
            f"these are {sweep.count:,} trials, and a sweep has at most {MOST:,}; take fewer values"
        )


def _engine(name: str) -> str:
    from saltflat.runs.jobs import ENGINES

    if name not in ENGINES:
        raise SettingError(f"--engine is one of {', '.join(ENGINES)}; got {name!r}")
    return name


def _counted(flag: str, number: int, most: int) -> int:
    if not 1 <= number <= most:
        raise SettingError(f"{flag} is a whole number from 1 to {most}; got {number}")
    return number


def _mode(select: float | None, public: bool, ledger: Path | None, seeds: int) -> tuple[str, float | None]:
    from saltflat.privacy.record.costs import MOST_TRIALS
    from saltflat.runs.sweep import COUNTED, PUBLIC, SELECTED

    if public and select is not None:
        raise SettingError(
            "--select is for private examples, and --public says that they are not; leave one out"
        )
    if public and ledger is not None:
        raise SettingError("--public examples are on no private record: leave --ledger out, or --public")
    if select is None:
        return (PUBLIC if public else COUNTED), None
    if seeds != 1:
        raise SettingError("--select draws a new seed for every trial; leave --seeds out")
    if not 1 < select <= MOST_TRIALS:
        raise SettingError(
            f"--select is the expected number of trials, above 1, at most {MOST_TRIALS}; got {select}"
        )
    return SELECTED, float(select)


def _there(out: Path, more: bool) -> Sweep:
    from saltflat.runs.sweep import read

    if more:
        raise SettingError(
            "--resume goes on with the sweep in --out as it was begun: leave the recipe and all that changes it out"
        )
    found = read(out)
    if found is None:
        raise DataError(f"{out} holds no sweep to go on with; leave --resume out to begin one")
    return found


def _wanted(
    recipe: str | None, given: dict[str, str], sets: Sequence[str], over: Sequence[str], data_dir: Path | None
) -> Sweep:
    """The grid that was asked for; seeds and mode are set by the caller."""
    from saltflat.cli.over import axes_of
    from saltflat.recipes.build import fitted, form_of
    from saltflat.recipes.recipe import current, from_document
    from saltflat.runs.sweep import Sweep

    document = current(documents.read(recipe or USUAL))
    document = for_target(document, given, sets)
    document = document.but(changes(document, given, sets, flags=FLAGS))
    base = from_document(document)
    whole = Document(fitted(base, form_of(base, data_dir)).as_document())
    return Sweep(toml.dumps(document.table), axes_of(over, document, whole), (base.seed,))


def _carry_out(sweep: Sweep, machine: Machine, *, dry_run: bool) -> None:
    from saltflat.recipes.build import check_shapes, form_of
    from saltflat.runs import sweep as kept
    from saltflat.runs.planned import planned_of
    from saltflat.runs.selected import best_of

    console, planned = screen(), planned_of(sweep, machine.data_dir)
    cost = best_of(sweep, planned)
    _announce(sweep, planned, cost, console)
    for each in planned:
        check_shapes(each.recipe, form_of(each.recipe, machine.data_dir))
    if dry_run:
        _say(
            console,
            "Every network takes examples of this form, by made-up rows; nothing was read or charged.",
        )
        return
    check_machine(machine.device, machine.threads)
    split = loaded(planned[0].recipe, planned[0].plan, machine.data_dir)
    if cost is not None and not split.test.count:
        raise SettingError("--select picks by the score on public test examples, and this data has none")
    new = kept.begin(machine.out, sweep)
    try:
        with kept.held(machine.out):
            _run(sweep, planned, cost, machine, console)
    except BaseException as error:
        if new:
            _undo(machine.out, sweep)
        if isinstance(error, KeyboardInterrupt | Interrupted):
            raise _stopped(machine, getattr(error, "signal", signal.SIGINT)) from None
        raise


def _announce(sweep: Sweep, planned: Sequence[Planned], cost: BestOf | None, console: Console) -> None:
    from saltflat.cli.running import announce
    from saltflat.privacy.record.history import epsilon_of
    from saltflat.runs.planned import joint_of

    first = planned[0]
    announce(first.recipe, first.plan, console)
    over = "; ".join(f"{axis.key} over {', '.join(axis.values)}" for axis in sweep.axes)
    unit, delta = first.unit, first.recipe.delta
    if cost is not None:
        spent = epsilon_of({cost: 1}, delta, first.plan.adjacency)
        _say(
            console,
            f"Sweep: {over}. A random number of trials, {cost.mean:g} expected, settings drawn at random; only the "
            f"best is released, for epsilon {rounded_up(spent, 4)} at delta {delta:g} (unit: one {unit}), spare steps "
            "included. How many trials there are stays secret.",
        )
        return
    count = len(sweep.trials)
    _say(
        console,
        f"Sweep: {over}; {_seeds(sweep)}: {count} trials. The phases above are the first's.",
    )
    if sweep.mode == "public":
        _say(console, "The examples are declared public: nothing is charged to a private record.")
        return
    _say(
        console,
        f"All {count} together: epsilon {rounded_up(joint_of(sweep, planned), 4)} at delta {delta:g} (unit: one "
        f"{unit}), planned.",
    )


def _seeds(sweep: Sweep) -> str:
    return f"{len(sweep.seeds)} seeds each" if len(sweep.seeds) > 1 else "one seed each"


def _run(
    sweep: Sweep, planned: Sequence[Planned], cost: BestOf | None, machine: Machine, console: Console
) -> None:
    """Every trial that has not ended, then what they say together."""
    from saltflat.privacy.record.ledger import Ledger
    from saltflat.runs.selected import claimed, release
    from saltflat.runs.sweep import PRIVATE, WINNER, drawn, forget_times

    out, first = machine.out.absolute(), planned[0]
    name = first.recipe.data + (" (declared public)" if sweep.mode == "public" else "")
    if cost is None:
        with Ledger.open(sweep.book(out), dataset=name) as book:
            clerk = _worked(
                _tasks(sweep, sweep.trials, planned, machine, sweep.book(out)), book, machine, console
            )
        _tell(sweep, first.recipe, machine, console, clerk.became)
        return
    if not (out / WINNER).exists():
        trials = drawn(out, sweep).trials(sweep)
        with claimed(sweep, cost, first, out):
            pass
        private = out / PRIVATE / LEDGER
        with Ledger.open(private, dataset=name) as book:
            clerk = _worked(
                _tasks(sweep, trials, planned, machine, private), book, machine, console, quiet=True
            )
        again = [why for each, why in clerk.became.items() if why and each not in clerk.final]
        if again:
            raise DataError(
                f"a trial could not run ({again[0]}); everything is kept in {machine.out}, and {out.name}/{PRIVATE} is "
                f"private: when that is mended, run {machine.again}"
            )
        release(sweep, cost, planned, trials, out)
    if (out / PRIVATE).exists():
        shutil.rmtree(out / PRIVATE)
    _tell(sweep, first.recipe, machine, console, {})
    forget_times(out)


def _tasks(
    sweep: Sweep, trials: Sequence[Trial], planned: Sequence[Planned], machine: Machine, ledger: Path
) -> list[Task]:
    from saltflat.runs.clerk import Task
    from saltflat.runs.sweep import has_ended

    out, by_setting = machine.out.absolute(), {each.setting: each for each in planned}
    said = _selection(sweep, planned)
    found = []
    for trial in trials:
        if has_ended(out / trial.folder):
            continue
        each = by_setting[trial.setting]
        message = {
            "folder": str(out / trial.folder),
            "recipe": replace(each.recipe, seed=trial.seed).as_toml(),
            "ledger": str(ledger),
            "data_dir": None if machine.data_dir is None else str(machine.data_dir.absolute()),
            "device": machine.device,
            "threads": machine.threads or (1 if machine.jobs > 1 else 0),
            "selection": said,
            "public": [
                f"all training examples of this run, declared public by whoever ran the sweep of {out.name}"
            ]
            * (sweep.mode == "public"),
        }
        found.append(Task(trial.folder, message, each.most))
    return found


def _selection(sweep: Sweep, planned: Sequence[Planned]) -> str:
    """What a trial's statement says of how settings are chosen."""
    from saltflat.runs.planned import joint_of

    if sweep.mode == "selected":
        return "PRIVATE: a trial of a selection, of which only the best is released; this statement is not."
    if sweep.mode == "public":
        return "This is a trial on examples that were declared public, to choose settings for other data."
    count, spent = len(sweep.trials), rounded_up(joint_of(sweep, planned), 4)
    return (
        f"This is one of {count} trials of a sweep on this data: choosing among them costs what all of them cost "
        f"together, epsilon {spent} at delta {planned[0].recipe.delta:g} as planned, and not the epsilon above."
    )


def _worked(
    tasks: Sequence[Task], book: Any, machine: Machine, console: Console, *, quiet: bool = False
) -> Clerk:
    """The tasks, here or side by side; what became of them is known to the clerk."""
    from saltflat.runs import jobs
    from saltflat.runs.clerk import Clerk
    from saltflat.runs.trial import work

    clerk = Clerk(book, tasks)
    with _shown(len(tasks), console, quiet=quiet) as seen:
        clerk.told = seen
        if machine.jobs == 1:
            jobs.here(work, clerk)
        elif tasks:
            jobs.side_by_side(work, clerk, count=min(machine.jobs, len(tasks)), engine=machine.engine)
    if clerk.signal:
        raise Interrupted("stopped", clerk.signal)
    return clerk


def _stopped(machine: Machine, number: int) -> Interrupted:
    from saltflat.runs.sweep import PRIVATE, SWEEP

    if not (machine.out / SWEEP).exists():
        return Interrupted(
            "stopped; nothing was charged, and nothing is kept: run the same command again", number
        )
    private = f" ({machine.out / PRIVATE} is private)" if (machine.out / PRIVATE).exists() else ""
    return Interrupted(
        f"stopped by {signal.Signals(number).name}; trials that ended, and the steps of the others, are kept in "
        f"{machine.out}{private}: to go on, run {machine.again}",
        number,
    )


def _undo(out: Path, sweep: Sweep) -> None:
    """A start that failed before anything was charged leaves the folder as it was.

    *Guarantee*: nothing is removed once a trial, or the selection, is on record.
    """
    from saltflat.privacy.record.history import read
    from saltflat.runs.layout import IDENTITY, head_of
    from saltflat.runs.sweep import PRIVATE, SWEEP, own_runs

    book, own = sweep.book(out), out / LEDGER
    with suppress(SaltflatError, OSError):  # the error at hand is the news: what cannot be told stays
        history = read(book) if book.exists() else None
        if any((out / trial.folder).exists() for trial in sweep.trials):
            return
        runs = [] if history is None else own_runs(history, out, sweep)
        if history is not None and history.steps(None if book == own else runs):
            return
        if (out / PRIVATE).exists():
            shutil.rmtree(out / PRIVATE)
        for setting in sweep.settings:
            with suppress(FileNotFoundError):
                (out / setting.name).rmdir()
        for file in (own, head_of(own), out / IDENTITY, out / SWEEP):
            file.unlink(missing_ok=True)
        out.rmdir()


# What is seen


@dataclass
class _Shown:
    """Bars in a terminal, a line for each trial elsewhere; nothing of trials that are private."""

    console: Console
    bar: Progress
    every: TaskID
    quiet: bool
    bars: dict[str, TaskID] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, word: str, *given: Any) -> None:
        if self.quiet:
            return
        if word == "step":
            self._step(name, *given)
        elif word == "reading":
            self.last[name] = given[0]
        else:
            self._over(name, given[0])

    def _step(self, name: str, step: int, of: int) -> None:
        if name not in self.bars:
            self.bars[name] = self.bar.add_task(name, total=of, last="")
            self.begun[name] = time.monotonic()
        self.bar.update(self.bars[name], completed=step, last=self.last.get(name, ""))

    def _over(self, name: str, why: str) -> None:
        if name in self.bars:
            self.bar.remove_task(self.bars.pop(name))
        self.bar.advance(self.every)
        seconds = time.monotonic() - self.begun.get(name, time.monotonic())
        said = f"failed: {why}; what it took stays charged" if why else self.last.get(name, "ended")
        _say(self.console, f"{name}: {said} ({seconds:.0f} s)")


@contextmanager
def _shown(count: int, console: Console, *, quiet: bool) -> Iterator[_Shown]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *(() if quiet else (MofNCompleteColumn(),)),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=console, disable=not sys.stdout.isatty()) as bar:
        if quiet:
            yield _Shown(console, bar, bar.add_task("trials, in secret", total=None, last=""), quiet)
        else:
            yield _Shown(console, bar, bar.add_task("trials", total=count, last=""), quiet)


def _tell(sweep: Sweep, recipe: Recipe, machine: Machine, console: Console, became: dict[str, str]) -> None:
    """The table, the winner, the cost; all of it in a file too, and the report."""
    from saltflat.privacy.record import durable
    from saltflat.runs.sweep import RESULT, verdict

    lines = [*table(sweep, machine.out), *verdict(machine.out, sweep, recipe.delta)]
    failed = [f"{name} failed: {why}; what it took stays charged." for name, why in became.items() if why]
    if failed:
        failed.append(f"To try them again: {machine.again}")
    durable.replace(machine.out / RESULT, "\n".join([*lines, *failed]) + "\n", mode=durable.RELEASED)
    for line in (*lines, *failed):
        _say(console, line)
    _report(machine, console)
    if failed:
        raise SettingError(f"{len(failed) - 1} of the trials failed; see above, and {machine.out / RESULT}")


def table(sweep: Sweep, out: Path) -> list[str]:
    """A line for each setting, the best first: mean and standard error over seeds; none where trials are private."""
    from saltflat.runs.sweep import SELECTED, standings

    if sweep.mode == SELECTED:
        return []
    found = standings(out, sweep)
    measure = next((each.scores[0].measure for each in found if each.scores), "score")
    head = ("setting", f"test {measure} (mean ± standard error)", "trials ended")
    rows = [(each.setting.name, each.in_words(), f"{each.ended} of {each.trials}") for each in found]
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(3)]
    line = lambda row: "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    return [line(row) for row in (head, *rows)]


def _report(machine: Machine, console: Console) -> None:
    from saltflat.cli.report import make
    from saltflat.runs.sweep import REPORT, runs_in

    place = machine.out / REPORT
    if not runs_in(machine.out):
        return
    try:
        make([machine.out], out=place)
    except SaltflatError as error:  # the trials are whole without it
        _say(console, f"No report was made: {error}")
        return
    _say(console, f"Kept in {machine.out}; report: {place}")


def _say(console: Console, words: str) -> None:
    console.print(words, highlight=False, markup=False, soft_wrap=True)
