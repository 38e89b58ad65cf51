"""``saltflat landscape``: how flat the minima of some runs are, measured on the same examples, side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from saltflat.runs.survey import Settings, View

ROWS = {  # of the table: entry, label
    "accuracy": "accuracy",
    "loss": "loss",
    "weight_norm": "weight norm",
    "lambda_max": "lambda_max",
    "lambda_5": "lambda_5",
    "ratio": "lambda_max / lambda_5",
    "hessian_norm": "Hessian norm",
    "trace": "trace",
    "sharpness": "(C_eps, A)-sharpness",
    "sam_gap": "SAM gap",
    "adaptive_gap": "adaptive SAM gap",
    "average_gap": "average gap",
}


def register(app: typer.Typer) -> None:
    """Add ``landscape`` to ``app``."""
    app.command("landscape")(landscape)


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
            help="Compute this part only; several with commas. See below.", show_default="the usual ones"
        ),
    ] = None,
    examples: Annotated[int, typer.Option(help="How many examples to look at.")] = 2000,
    grid: Annotated[int, typer.Option(help="Points of a surface in each direction.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of directions, probes and draws.")] = 0,
    probes: Annotated[int, typer.Option(help="Random vectors for the trace.")] = 30,
    lanczos: Annotated[int, typer.Option(help="Most Lanczos steps.")] = 80,
    radius: Annotated[float, typer.Option(help="How far the SAM gap climbs.")] = 0.05,
    reach: Annotated[float, typer.Option(help="At which distance the average gap is taken.")] = 1.0,
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
    data_dir: DataDir = None,
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Measure how flat runs are, on the same examples, with the same random directions, and keep it in RUN/landscape.

    Parts: eigenvalues, trace, spectrum, sharpness, gaps, noise, line, surface, gradients, interpolation (of several
    runs); and when asked for, trajectory and smoothed. Test examples are public. Ctrl-C keeps the parts that are
    done; a second run overwrites.
    """
    from rich.console import Console

    from saltflat.runs.survey import USUAL, Settings

    names = tuple(part.strip() for words in only or () for part in words.split(",") if part.strip())
    settings = Settings(
        parts=names or USUAL,
        examples=examples,
        grid=grid,
        seed=seed,
        probes=probes,
        steps=lanczos,
        float64=float64,
        train=train,
        stays_private=private_stays_here,
        radius=radius,
        reach=reach,
        device=device,
    )
    check_machine(device, threads)
    console = Console()
    views = _views(runs, settings, data_dir)
    _announce(views, console)
    _survey(views, settings, console)
    _report(views, console)


def _views(runs: Sequence[Path], settings: Settings, data_dir: Path | None) -> list[View]:
    """All runs, read before anything is computed; each data set is read once."""
    from saltflat import data
    from saltflat.errors import SettingError
    from saltflat.runs.survey import View
    from saltflat.runs.weights import subject

    subjects = [subject(path) for path in runs]
    places = [each.place.resolve() for each in subjects]
    if len(set(places)) < len(places):
        raise SettingError("each run can be given once")
    splits = {
        name: data.load(name, data_dir) for name in dict.fromkeys(each.recipe.data for each in subjects)
    }
    return [View(each, splits[each.recipe.data], settings) for each in subjects]


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

    from saltflat.runs.survey import look, look_between

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stdout.isatty(), transient=True) as bar:
        for view in views:
            for part in settings.parts:
                if part != "interpolation":
                    _step(view, part, bar, lambda view=view, part=part: look(view, part))
        alike = [view for view in views[1:] if view.subject.same_shape(views[0].subject)]
        if "interpolation" in settings.parts and alike:
            _step(views[0], "interpolation", bar, lambda: look_between(views[0], alike), times=len(alike))
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
    for entry, label in ROWS.items():
        if any(entry in each for each in found):
            table.add_row(label, *(_cell(each, entry) for each in found))
    for place, steps in enumerate(t for t, _ in _tolerance(found)):
        cells = [
            f"{each['noise_tolerance'][place][1]:.4g}" if "noise_tolerance" in each else "" for each in found
        ]
        table.add_row(f"rise after noise of {steps} step{'s' * (steps > 1)}", *cells)
    return table


def _tolerance(found: Sequence[dict[str, Any]]) -> list[list[float]]:
    return next((each["noise_tolerance"] for each in found if "noise_tolerance" in each), [])


def _cell(entries: dict[str, Any], entry: str) -> str:
    value = entries.get(entry)
    if value is None:
        return ""
    if entry == "accuracy":
        return f"{value:.2%}"
    error = f" ± {entries['trace_error']:.2g}" if entry == "trace" and "trace_error" in entries else ""
    return f"{value:.4g}{error}"
