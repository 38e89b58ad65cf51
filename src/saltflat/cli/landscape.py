"""``saltflat landscape``: how flat the minima of some runs are, measured on the same examples, side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine
from saltflat.runs.layout import number
from saltflat.runs.measures import PARTS, rows, usual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from saltflat.runs.survey import Settings, View

ABOUT = """Measure how flat runs are, on the same examples, with the same random directions; keep it in RUN/landscape.

Test examples are public. Ctrl-C keeps the parts that are done; a second call with the same settings adds to them.
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
    data_dir: DataDir = None,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """See :func:`about`."""
    from rich.console import Console

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
    console = Console()
    views = _views(runs, settings, data_dir)
    _check_rooms(views, settings)
    _announce(views, console)
    _survey(views, settings, console)
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
    splits = {each.recipe.data: split_of(each.recipe, data_dir) for each in reversed(subjects)}
    if not settings.train and (empty := [name for name, split in splits.items() if split.test.count == 0]):
        raise SettingError(f"{empty[0]} has no test examples to look at; give the run some that are public")
    return [View(each, splits[each.recipe.data], settings) for each in subjects]


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


def _survey(views: Sequence[View], settings: Settings, console: Console) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from saltflat.runs.survey import look

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stdout.isatty(), transient=True) as bar:
        for view in views:
            for part in settings.parts:
                if not PARTS[part].between:
                    _step(view, part, bar, lambda view=view, part=part: look(view, part))
        alike = [view for view in views[1:] if view.subject.same_shape(views[0].subject)]
        for part in settings.parts:
            if PARTS[part].between and alike:
                work = lambda part=part: look(views[0], part, alike)
                _step(views[0], part, bar, work, times=len(alike))
    for view in views:
        for note in view.notes:
            console.print(f"{view.subject.name}: {note}", highlight=False)


def _step(view: View, part: str, bar: Progress, work: Any, times: int = 1) -> None:
    """One part under the bar; without a terminal, a line when it is done."""
    from saltflat.runs.survey import passes, weights_in

    name = f"{view.subject.name}: {part}"
    total = passes(part, view.settings, weights_in(view)) * times
    task = bar.add_task(name, total=total)
    view.tick = lambda: bar.advance(task)
    work()
    bar.update(task, completed=total, visible=False)
    if bar.disable:
        bar.console.print(f"{name} done", highlight=False)


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
