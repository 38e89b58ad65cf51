"""``saltflat train``: one private run from a recipe and flags, kept in a folder; ``saltflat recipes`` lists some."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine
from saltflat.cli.settings import FLAGS, Flag, changes
from saltflat.errors import SettingError
from saltflat.privacy.limits import rounded_up
from saltflat.recipes import documents
from saltflat.recipes.toml import dotted
from saltflat.recipes.wrong import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from torch.utils.tensorboard import SummaryWriter

    from saltflat.core.plan import Plan
    from saltflat.data import Split
    from saltflat.recipes import Recipe
    from saltflat.recipes.documents import Document
    from saltflat.runs.execute import Outcome
    from saltflat.runs.layout import Folder, Reading

USUAL = "digits"  # the recipe, where none is named


def register(app: typer.Typer) -> None:
    """Add ``train`` and ``recipes`` to ``app``."""
    app.command("train")(_with_flags_of_a_recipe(train))
    app.command("recipes")(recipes)


def _with_flags_of_a_recipe(command: Any) -> Any:
    """The command, with a flag for each common setting of a recipe."""

    def run(**given: Any) -> None:
        flags = {flag.name: given.pop(flag.name) for flag in FLAGS}
        command(given={name: text for name, text in flags.items() if text is not None}, **given)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    flags = [_option(flag) for flag in FLAGS]
    run.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
    run.__doc__ = command.__doc__
    return run


def _option(flag: Flag) -> inspect.Parameter:
    panel = "Settings (they change what the recipe says; values are TOML)"
    option = typer.Option(flag.word, help=flag.help, metavar="VALUE", rich_help_panel=panel)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(flag.name, kind, default=None, annotation=Annotated[str | None, option])


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A TOML file, or a name that `saltflat recipes` lists.", show_default=f"{USUAL}"),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="The folder that keeps the run.")] = Path("runs/latest"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print plan, noise and cost, and touch nothing.")
    ] = False,
    data_dir: DataDir = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="A ledger shared by all runs on this data.", show_default="one in --out"),
    ] = None,
    device: Device = "cpu",
    threads: Threads = 0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log for TensorBoard, in --out.")
    ] = False,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, such as phase.0.method.SAT.radius=0.05; repeat for more.",
            rich_help_panel="Settings (they change what the recipe says; values are TOML)",
        ),
    ] = None,
    given: dict[str, str],
) -> None:
    """Train a network privately. Noise and sampling are secret; test accuracy is taken on public examples.

    The folder keeps recipe, ledger, checkpoints, metrics (JSON lines), privacy statement and model. Ctrl-C ends
    after the step at hand; the same command with --resume goes on.
    """
    from rich.console import Console

    from saltflat.recipes.build import plan_of
    from saltflat.runs.execute import execute
    from saltflat.runs.layout import Folder

    folder, console = Folder(out), Console()
    chosen = _chosen(recipe, given, sets or [], folder, resume=resume)
    plan = plan_of(chosen, _size(chosen))
    _announce(chosen, plan, console)
    if dry_run:
        return
    check_machine(device, threads)
    board = _tensorboard(folder) if tensorboard else None
    split = _loaded(chosen, plan, data_dir)
    with _shown(_method(chosen), plan.steps, console, board) as seen:
        outcome = execute(
            chosen,
            plan,
            split,
            folder,
            resume=resume,
            ledger=ledger,
            device=device,
            watch=seen.step,
            told=seen.reading,
        )
    _report(outcome, folder, console)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe as TOML.")] = None,
) -> None:
    """List the recipes that ship with saltflat, or print one to start your own from."""
    if name is not None:
        print(documents.text_of(name), end="")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "what it is", title="saltflat train RECIPE", title_justify="left")
    for each in documents.names():
        table.add_row(each, documents.about(each))
    Console().print(table)


def _chosen(
    recipe: str | None, given: dict[str, str], sets: list[str], folder: Folder, *, resume: bool
) -> Recipe:
    """The recipe that was asked for; where a run goes on, it must be that run's."""
    from saltflat.recipes.recipe import from_document
    from saltflat.runs.begin import resumed

    there = resumed(folder) if resume else None
    document = _document(recipe, folder, resume=resume)
    here = from_document(document.but(changes(document, given, sets)))
    if there is None:
        return here
    differing = documents.difference(there.as_document(), here.as_document())
    if differing is not None:
        keys, old, new = differing
        raise SettingError(
            f"the run in {folder.path} has {dotted(keys)} {_brief(old)}, not {_brief(new)}; leave it out to go on, or "
            "begin another run in another --out"
        )
    return there


def _document(recipe: str | None, folder: Folder, *, resume: bool) -> Document:
    from saltflat.recipes.recipe import current

    if recipe is not None:
        return current(documents.read(recipe))
    return current(documents.read(folder.recipe) if resume else documents.shipped(USUAL))


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "nothing" if value is None else shown(value)


def _size(recipe: Recipe) -> int:
    from saltflat.data import official_size

    return recipe.size or official_size(recipe.data)


def _method(recipe: Recipe) -> str:
    return documents.settings(recipe.as_document())["method"]


def _announce(recipe: Recipe, plan: Plan, console: Console) -> None:
    """What will run and what it costs; a warning that comes after the budget is spent would help nobody."""
    from saltflat.privacy.record.statement import Declared, delta_warnings

    spent = f"epsilon {rounded_up(plan.epsilon(recipe.delta), 4)} at delta {recipe.delta:g}"
    if recipe.epsilon is not None:
        spent += f" (at most {recipe.epsilon:g} with {recipe.spare} spare steps)"
    phases = [
        f"phase {number}: {phase.steps} steps of {phase.method} with {phase.optimizer}, noise "
        f"{phase.noise_multiplier:.4g}, clip norm {phase.clip_norm}"
        for number, phase in enumerate(plan.phases)
    ]
    lines = [
        f"{_method(recipe)} on {recipe.data} with {recipe.model}",
        *phases,
        f"{spent}; unit: one example; adjacency: add or remove one",
        f"sampling: Poisson, {plan.expected_units:g} of {plan.size:,} examples expected in a step; "
        f"{plan.steps * plan.expected_units * recipe.views:,.0f} gradients in all",
        *(f"Warning: {each}" for each in delta_warnings(Declared(delta=recipe.delta, size=plan.size))),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _loaded(recipe: Recipe, plan: Plan, data_dir: Path | None) -> Split:
    from saltflat import data

    split = data.load(recipe.data, data_dir)
    if split.train.count > plan.size:
        raise SettingError(
            f"{recipe.data} has more than the {plan.size} examples that were declared; set --size to a public bound"
        )
    return split


@dataclass(frozen=True)
class _Shown:
    """What is seen of a run while it goes: a bar in a terminal, lines elsewhere, TensorBoard if asked for."""

    steps: int
    console: Console
    bar: Progress
    task: TaskID
    board: _Board | None

    def step(self, progress: Any) -> None:
        self.bar.update(self.task, completed=progress.step)

    def reading(self, reading: Reading) -> None:
        line = (
            f"test {reading.accuracy:.2%}, epsilon {rounded_up(reading.epsilon or 0.0, 4)}, "
            f"{reading.examples_per_second:,.0f} examples/s"
        )
        self.bar.update(self.task, last=line)
        if not sys.stdout.isatty():
            self.console.print(f"step {reading.step} of {self.steps}: {line}", highlight=False)
        if self.board is not None:
            self.board.note(reading)


@dataclass
class _Board:
    """TensorBoard's log, begun with the first reading: a run that fails before its first step leaves none."""

    folder: Path
    writer: SummaryWriter | None = None

    def note(self, reading: Reading) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = self.writer or SummaryWriter(str(self.folder))
        for name in ("accuracy", "epsilon", "examples_per_second"):
            self.writer.add_scalar(name, getattr(reading, name), reading.step)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


@contextmanager
def _shown(method: str, steps: int, console: Console, board: _Board | None) -> Iterator[_Shown]:
    """The bar while the run goes; whatever ends it, TensorBoard's file is whole."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with (
        closing(board) if board is not None else nullcontext(),
        Progress(*columns, console=console, disable=not sys.stdout.isatty()) as bar,
    ):
        yield _Shown(steps, console, bar, bar.add_task(method, total=steps, last=""), board)


def _tensorboard(folder: Folder) -> _Board:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise SettingError(
            "--tensorboard needs the tensorboard package: pip install 'saltflat[tensorboard]'"
        ) from None
    return _Board(folder.tensorboard)


def _report(outcome: Outcome, folder: Folder, console: Console) -> None:
    console.print(f"test accuracy {outcome.accuracy:.2%}; kept in {folder.path}", highlight=False)
    console.print(outcome.statement.as_text(), highlight=False)
    console.print(
        f"On record in the ledger: epsilon {rounded_up(outcome.on_record, 4)} at delta {outcome.statement.delta:g}, "
        "all runs in it together.",
        highlight=False,
    )
