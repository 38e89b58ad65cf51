"""``saltflat landscape``: how flat the minima of some runs are, measured on the same examples, side by side."""

from __future__ import annotations

import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine
from saltflat.cli.screen import screen
from saltflat.errors import Interrupted
from saltflat.runs.layout import number
from saltflat.runs.measures import PARTS, rows, usual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from saltflat.runs.survey import Settings, View

ABOUT = """Measure how flat runs are, on the same examples, with the same random directions; keep it in RUN/landscape.

Test examples are public. Ctrl-C keeps the parts that are done, and prints the command that goes on (--resume).
"""


def register(app: typer.Typer) -> None:
    """Add ``landscape`` to ``app``."""
    app.command("landscape", help=about())(landscape)


def about() -> str:
    """The command in words, with every part that there is."""
    listed = [f"{p.name}: {p.words}{'' if p.usual else ' (when asked for)'}" for p in PARTS.values()]
    return ABOUT + "\n\b\n" + "\n".join(["Parts:", *listed])  # \b: each on a line of its own


def landscape(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, finished or not, or files in their checkpoints.", metavar="RUN..."
        ),
    ],
    *,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Compute this part only; several with commas. See above.", show_default="the usual ones"
        ),
    ] = None,
    examples: Annotated[int, typer.Option(help="How many examples to look at.")] = 2000,
    grid: Annotated[int, typer.Option(help="Points of a surface in each direction.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of directions, probes and draws.")] = 0,
    probes: Annotated[int, typer.Option(help="Random vectors for the trace.")] = 30,
    lanczos: Annotated[int, typer.Option(help="Most Lanczos steps.")] = 80,
    radius: Annotated[float, typer.Option(help="How far the SAM gap climbs.")] = 0.05,
    distance: Annotated[float, typer.Option(help="At which distance the average gap is taken.")] = 1.0,
    float64: Annotated[bool, typer.Option("--float64", help="Compute in float64: slower, exact.")] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Look at the private training examples, not at the test examples.")
    ] = False,
    private_stays_here: Annotated[
        bool,
        typer.Option(
            "--private-stays-here", help="Declare that what --train tells is kept as private as the data."
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop what was measured with other settings, and measure anew.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on: leave out the parts that are kept already.")
    ] = False,
    data_dir: DataDir = None,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """See :func:`about`."""

    from saltflat.runs.survey import Settings

    names = tuple(part.strip() for words in only or () for part in words.split(",") if part.strip())
    settings = Settings(
        parts=names or usual(),
        examples=examples,
        grid=grid,
        seed=seed,
        probes=probes,
        steps=lanczos,
        float64=float64,
        train=train,
        stays_private=private_stays_here,
        radius=radius,
        distance=distance,
        anew=replace,
        device=device,
    )
    check_machine(device, threads)
    console = screen()
    views = _views(runs, settings, data_dir)
    _check_rooms(views, settings)
    _announce(views, console)
    measure(works(views, settings.parts, resume=resume), console, _again(runs, settings, data_dir, threads))
    _report(views, console)


def _views(runs: Sequence[Path], settings: Settings, data_dir: Path | None) -> list[View]:
    """All runs, read before anything is computed; each data set is read once."""
    from saltflat.errors import SettingError
    from saltflat.recipes.build import split_of
    from saltflat.runs.survey import View
    from saltflat.runs.weights import subject

    subjects = [subject(path) for path in runs]
    places = [each.place.resolve() for each in subjects]
    if len(set(places)) < len(places):
        raise SettingError("each run can be given once")
    for each in subjects:
        if each.recipe.target_range is not None:
            raise SettingError(
                f"{each.name}: its target is a number, and landscapes are those of classes only"
            )
    of = lambda recipe: (recipe.data, recipe.features, recipe.public)
    splits = {of(each.recipe): split_of(each.recipe, data_dir) for each in reversed(subjects)}
    if not settings.train and (
        empty := [name for (name, *_), split in splits.items() if split.test.count == 0]
    ):
        raise SettingError(f"{empty[0]} has no test examples to look at; give the run some that are public")
    return [View(each, splits[of(each.recipe)], settings) for each in subjects]


def _check_rooms(views: Sequence[View], settings: Settings) -> None:
    """Refuse before anything is computed; what lies between runs is kept with the first one alone."""
    from saltflat.runs.survey import check_room

    alone = all(PARTS[part].between for part in settings.parts)
    for view in views[:1] if alone else views:
        check_room(view)


def _announce(views: Sequence[View], console: Console) -> None:
    first = views[0].heading
    console.print(
        f"{first['examples']:,} {first['split']} examples of {first['data']}, subset {first['subset']}, seed "
        f"{first['seed']}, {first['precision']}; {first['status']}",
        highlight=False,
    )
    for view in views:
        if view.subject.note:
            console.print(f"{view.subject.name} is {view.subject.note}", highlight=False)
    for view in views[1:]:
        if not view.subject.same_shape(views[0].subject) or view.heading["data"] != first["data"]:
            console.print(
                f"{view.subject.name} has another network or other data than {views[0].subject.name}: their numbers "
                "do not compare",
                highlight=False,
            )


@dataclass(frozen=True)
class Work:
    """One part of one run, or between the first run and others; ``size`` in forward passes, as expected."""

    view: View
    part: str
    others: tuple[View, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.view.subject.name}: {self.part}"

    @property
    def size(self) -> float:
        from saltflat.runs.survey import passes, weights_in

        each = passes(self.part, self.view.settings, weights_in(self.view)) * PARTS[self.part].weight
        return each * max(1, len(self.others))


def works(views: Sequence[View], parts: Sequence[str], *, resume: bool = False) -> list[Work]:
    """What is to be done, in its order: run by run, then what lies between; with ``resume`` not what is kept."""
    from saltflat.runs.survey import is_kept

    alike = tuple(view for view in views[1:] if view.subject.same_shape(views[0].subject))
    alone = [Work(view, part) for view in views for part in parts if not PARTS[part].between]
    between = [Work(views[0], part, alike) for part in parts if PARTS[part].between and alike]
    return [each for each in (*alone, *between) if not (resume and is_kept(each.view, each.part))]


def measure(todo: Sequence[Work], console: Console, again: str) -> None:
    """All of it under one bar that knows how long the whole takes; Ctrl-C says what is kept, and ``again`` goes on."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    shown = sys.stdout.isatty()
    period = 600.0  # seconds: parts differ in speed, and the estimate is of the whole
    done: list[Work] = []
    try:
        with Progress(
            *columns, console=console, disable=not shown, transient=True, speed_estimate_period=period
        ) as bar:
            task = bar.add_task("", total=sum(each.size for each in todo) or 1)
            for each in todo:
                bar.update(task, description=f"{each.name} ({len(done) + 1} of {len(todo)})")
                _step(each, bar, task, before=sum(other.size for other in done))
                done.append(each)
                if not shown:
                    console.print(f"{each.name} done", highlight=False, markup=False)
    except KeyboardInterrupt:
        kept = ", ".join(each.name for each in done) or "nothing yet"
        raise Interrupted(f"stopped at once; kept: {kept}; to go on, run {again}", signal.SIGINT) from None
    for view in {id(each.view): each.view for each in todo}.values():
        for note in view.notes:
            console.print(f"{view.subject.name}: {note}", highlight=False, markup=False)


def _step(work: Work, bar: Progress, task: TaskID, *, before: float) -> None:
    """One part; a pass moves the bar by what it weighs, and never past the part's own share."""
    from saltflat.runs.survey import look

    passed, weight = 0.0, PARTS[work.part].weight

    def tick() -> None:
        nonlocal passed
        passed = min(passed + weight, work.size)
        bar.update(task, completed=before + passed)

    work.view.tick = tick
    look(work.view, work.part, work.others)
    bar.update(task, completed=before + work.size)


def _again(runs: Sequence[Path], settings: Settings, data_dir: Path | None, threads: int) -> str:
    """The command that goes on, as a shell takes it: the same runs and settings, without what is kept."""
    usual_ones = type(settings)()
    flags: list[str] = [] if settings.parts == usual_ones.parts else ["--only", ",".join(settings.parts)]
    named = {"--lanczos": "steps", "--device": "device"}
    named |= {f"--{name}": name for name in ("examples", "grid", "seed", "probes", "radius", "distance")}
    for flag, name in named.items():
        if getattr(settings, name) != getattr(usual_ones, name):
            flags += [flag, str(getattr(settings, name))]
    flags += ["--float64"] * settings.float64
    flags += ["--train", "--private-stays-here"] * settings.train
    flags += ["--data-dir", str(data_dir)] if data_dir is not None else []
    flags += ["--threads", str(threads)] if threads else []
    return shlex.join(["saltflat", "landscape", "--resume", *map(str, runs), *flags])


def _report(views: Sequence[View], console: Console) -> None:
    console.print(_table(views))
    for place in dict.fromkeys(view.subject.place for view in views):
        console.print(f"kept in {place}", highlight=False, soft_wrap=True)
    if views[0].settings.train:
        console.print("these numbers were read from private examples without noise: keep them", style="bold")


def _table(views: Sequence[View]) -> Table:
    from rich.table import Table

    from saltflat.runs.survey import read_measures

    found = [read_measures(view.subject.place) or {} for view in views]
    title = f"landscape on {found[0].get('examples', 0):,} {found[0].get('split')} examples"
    table = Table("measure", *(view.subject.name for view in views), title=title, title_justify="left")
    for row in rows(found):
        table.add_row(row.label, *(_cell(*cell, percent=row.percent) for cell in row.cells))
    return table


def _cell(value: Any, error: float | None, *, percent: bool) -> str:
    found = number(value)
    if found is None:
        return "" if value is None else str(value)
    return f"{found:.2%}" if percent else f"{found:.4g}" + (f" ± {error:.2g}" if error is not None else "")
