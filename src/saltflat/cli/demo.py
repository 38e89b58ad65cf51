"""``saltflat demo``: DP-SAT and DP-SGD on embedded digits, side by side, at one epsilon, and a report on both."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.screen import screen
from saltflat.errors import Interrupted, SettingError
from saltflat.privacy.limits import rounded_up

if TYPE_CHECKING:
    from rich.console import Console

    from saltflat.core.plan import Plan
    from saltflat.data import Split
    from saltflat.recipes import Recipe
    from saltflat.runs.execute import Outcome

STEPS = 200
TESTED = 360  # test digits
METHODS: dict[str, Any] = {"DP-SAT": {"SAT": {"radius": 0.03}}, "DP-SGD": "DPSGD"}
REPORT = "report.html"
NOTE = "demo.txt"  # in every folder that the demo may clear
LOOK: dict[str, Any] = {  # a small landscape: what the report opens on
    "parts": (
        "eigenvalues",
        "trace",
        "sharpness",
        "gaps",
        "noise",
        "line",
        "surface",
        "gradients",
        "trajectory",
    ),
    "grid": 17,
    "probes": 10,
    "steps": 30,
}
_SAID = f"Made by `saltflat demo`. The next demo replaces {', '.join(METHODS)} and {REPORT} in this folder.\n"


def register(app: typer.Typer) -> None:
    """Add ``demo`` to ``app``."""
    app.command("demo")(demo)


def demo(
    epsilon: Annotated[float, typer.Option(help="The epsilon that each of the two runs may spend.")] = 3.0,
    delta: Annotated[float, typer.Option(help="The delta that goes with it.")] = 1e-5,
    out: Annotated[
        Path, typer.Option(help="The folder of both runs and the report; the next demo replaces them.")
    ] = Path("runs/demo"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the demo in --out.")] = False,
    ledger: Annotated[
        Path | None,
        typer.Option(help="A ledger file to charge both runs to.", show_default="one for each run"),
    ] = None,
) -> None:
    """Train a small network on scikit-learn's digits with DP-SAT, and with DP-SGD beside it; report on both.

    Takes under two minutes, needs no network and no GPU. Both runs start from the same weights and spend the
    same epsilon; the noise is fresh each time, so accuracies move by a point or two from run to run. Then it
    measures how flat both ended up, on the public test digits. Ctrl-C keeps what is done, and prints the command
    that goes on.
    """
    import torch

    from saltflat.data import digits
    from saltflat.privacy.record.history import read
    from saltflat.recipes.build import plan_of

    torch.set_num_threads(1)  # a network this small only loses time when threads wait for each other
    console = screen()
    split = digits()
    recipes = {name: _recipe(method, epsilon, delta) for name, method in METHODS.items()}
    plans = {name: plan_of(recipe, split.train.count) for name, recipe in recipes.items()}
    again = _again(out, ledger, epsilon=epsilon, delta=delta)
    with _room(out, resume=resume), _stopped(again):
        outcomes = {
            name: _run(name, recipe, plans[name], split, console, out=out, ledger=ledger)
            for name, recipe in recipes.items()
        }
        _say(outcomes, plans["DP-SAT"], console)
        if ledger is not None:
            spent = read(ledger).epsilon(delta)
            console.print(
                f"on record in {ledger}: epsilon {rounded_up(spent, 4)} for all runs so far", soft_wrap=True
            )
        _look(out, split, console, again)
        _page(out, ledger, console)


def _again(out: Path, ledger: Path | None, *, epsilon: float, delta: float) -> str:
    """The command that goes on, as a shell takes it.

    >>> _again(Path("my demo"), None, epsilon=3.0, delta=1e-6)
    "saltflat demo --resume --out 'my demo' --delta 1e-06"
    """
    given = {"--epsilon": (epsilon, 3.0), "--delta": (delta, 1e-5), "--ledger": (ledger, None)}
    flags = [word for flag, (value, usual) in given.items() if value != usual for word in (flag, str(value))]
    return shlex.join(["saltflat", "demo", "--resume", "--out", str(out), *flags])


@contextmanager
def _stopped(again: str) -> Iterator[None]:
    """Whatever stops the demo, say the command that goes on."""
    try:
        yield
    except KeyboardInterrupt:
        said = f"stopped at once; what was kept before is whole: to go on, run {again}"
        raise Interrupted(said, signal.SIGINT) from None
    except Interrupted as error:
        after = str(error).split(";")[0] if again not in str(error) else str(error)
        more = "" if again in str(error) else f"; it is kept: to go on, run {again}"
        raise Interrupted(f"{after}{more}", error.signal) from None


def _look(out: Path, split: Split, console: Console, again: str) -> None:
    """Measure how flat both runs ended up; what is kept already is left out."""
    from saltflat.cli.landscape import measure, works
    from saltflat.report.verdict import FLATNESS
    from saltflat.runs.layout import number
    from saltflat.runs.survey import Settings, View, read_measures
    from saltflat.runs.weights import subject

    settings = Settings(**LOOK, anew=True)
    views = [View(replace(subject(out / name), name=name), split, settings) for name in METHODS]
    measure(works(views, settings.parts, resume=True), console, again)
    found = {view.subject.name: read_measures(view.subject.place) or {} for view in views}
    for key, name in FLATNESS:
        there = {run: facts for run, facts in found.items() if number(facts.get(key)) is not None}
        told = [f"{run} {_with_error(facts, key)}" for run, facts in there.items()]
        if told:
            console.print(f"{name}, lower is flatter: {', '.join(told)}", highlight=False, soft_wrap=True)


def _with_error(facts: dict[str, Any], key: str) -> str:
    from saltflat.runs.layout import number

    error = number(facts.get(f"{key}_error"))
    return f"{facts[key]:.3g}" + (f" ± {error:.2g}" if error is not None else "")


def _recipe(method: Any, epsilon: float, delta: float) -> Recipe:
    """The recipe of `saltflat train` for digits, with STEPS steps of this method."""
    from saltflat.recipes import shipped

    phase = {"phase.0.method": method, "phase.0.steps": STEPS}
    return shipped("digits").but({**phase, "epsilon": epsilon, "delta": delta})


@contextmanager
def _room(out: Path, *, resume: bool) -> Iterator[None]:
    """The folder, for this demo alone, cleared of the demo before; what anyone else put there stays."""
    from saltflat.privacy.record import durable

    if out.exists() and not out.is_dir():
        raise SettingError(f"--out {out} is a file; give a folder")
    if out.exists() and any(out.iterdir()) and not (out / NOTE).exists():
        raise SettingError(f"{out} holds files that the demo did not make; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    with (out / NOTE).open("a+") as note:
        try:
            durable.lock(note.fileno(), out / NOTE)
        except BlockingIOError:
            raise SettingError(f"a demo is running in {out}; wait for it, or give another --out") from None
        note.truncate(0)
        note.write(_SAID)
        note.flush()
        for name in METHODS if not resume else ():
            if (out / name).exists():
                shutil.rmtree(out / name)
        yield


def _run(
    name: str, recipe: Recipe, plan: Plan, split: Split, console: Console, *, out: Path, ledger: Path | None
) -> Outcome:
    """Train with a progress bar; begin the run, or go on with it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from saltflat.runs.begin import resumed
    from saltflat.runs.execute import execute
    from saltflat.runs.layout import Folder

    folder = Folder(out / name)
    resume = folder.recipe.exists()
    if resume and resumed(folder) != recipe:
        raise SettingError(f"the demo in {out} has other settings; leave --resume out to begin another")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task(name, total=plan.steps)

        def watch(progress: Any) -> None:
            bar.update(task, completed=progress.step)

        return execute(recipe, plan, split, folder, resume=resume, ledger=ledger, watch=watch)


def _say(outcomes: dict[str, Outcome], plan: Plan, console: Console) -> None:
    from rich.table import Table

    from saltflat.report.sure import wilson

    title = f"Digits: 1,437 private images, {TESTED} to test"
    table = Table("method", "test accuracy", "95 % interval", "epsilon", title=title, title_justify="left")
    for name, outcome in outcomes.items():
        low, high = wilson(round((outcome.accuracy or 0.0) * TESTED), TESTED)
        spent = rounded_up(outcome.statement.epsilon, 4)
        table.add_row(name, f"{outcome.accuracy:.1%}", f"{low:.1%} to {high:.1%}", spent)
    console.print(table)
    (phase,), statement = plan.phases, outcomes["DP-SAT"].statement
    console.print(
        f"epsilon {rounded_up(statement.epsilon, 4)} at delta {statement.delta:g}, for each run by itself\n"
        f"unit: one {statement.unit}; adjacency: {statement.adjacency}\n"
        f"sampling: {statement.sampling}\n"
        f"plan: {plan.steps} steps, noise multiplier {phase.noise_multiplier:.3f}, clip norm {phase.clip_norm:g}\n"
        f"Two single runs on {TESTED} test digits decide little: the intervals are wide, and another run moves each.\n"
        "This table compares two runs on the same images: releasing both costs more than either.",
        highlight=False,
    )


def _page(out: Path, ledger: Path | None, console: Console) -> None:
    """The report on both runs; where nothing can be drawn, a line on what to install."""
    from saltflat.cli.report import make
    from saltflat.report.draw import check_drawing

    say = lambda words: console.print(words, highlight=False, soft_wrap=True, markup=False)
    try:
        check_drawing()
    except SettingError as error:
        say(f"no report: {error}; then: saltflat report {' '.join(str(out / name) for name in METHODS)}")
        return
    make([out / name for name in METHODS], out=out / REPORT, ledger=ledger)
    say(f"report: {out / REPORT} (open it in a browser; the next demo replaces it)")
