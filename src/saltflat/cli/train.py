"""``saltflat train``: one private run from a recipe and flags, kept in a folder; ``saltflat recipes`` lists some."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine
from saltflat.errors import SettingError
from saltflat.recipes.recipe import Recipe, about, names, read

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from torch.utils.tensorboard import SummaryWriter

    from saltflat.core.plan import Plan
    from saltflat.data import Split
    from saltflat.runs.execute import Outcome
    from saltflat.runs.layout import Folder, Reading

SETTINGS = dataclasses.fields(Recipe)


def register(app: typer.Typer) -> None:
    """Add ``train`` and ``recipes`` to ``app``."""
    app.command("train")(_with_flags_of_a_recipe(train))
    app.command("recipes")(recipes)


def _with_flags_of_a_recipe(command: Any) -> Any:
    """The command, with one flag for each setting of a recipe; the recipe's own defaults are shown."""

    def run(**given: Any) -> None:
        changes = {each.name: given.pop(each.name) for each in SETTINGS}
        command(changes={name: value for name, value in changes.items() if value is not None}, **given)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "changes"]
    flags = [_flag(each) for each in SETTINGS]
    run.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
    run.__doc__ = command.__doc__
    return run


def _flag(setting: dataclasses.Field) -> inspect.Parameter:
    name = "--" + setting.name.replace("_", "-")
    words = [f"{name}/--no-{name[2:]}" if isinstance(setting.default, bool) else name]
    option = typer.Option(
        *words,
        help=setting.metadata["help"],
        show_default=str(setting.default),
        rich_help_panel="Settings (they change what the recipe says)",
    )
    kind = type(setting.default)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A TOML file, or a name that `saltflat recipes` lists.")
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
    changes: dict[str, Any],
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
    chosen = _chosen(recipe, changes, folder, resume=resume)
    plan = plan_of(chosen, _size(chosen))
    _announce(chosen, plan, console)
    if dry_run:
        return
    check_machine(device, threads)
    board = _tensorboard(folder) if tensorboard else None
    split = _loaded(chosen, plan, data_dir)
    with _shown(chosen.method, plan.steps, console, board) as shown:
        outcome = execute(
            chosen,
            plan,
            split,
            folder,
            resume=resume,
            ledger=ledger,
            device=device,
            watch=shown.step,
            told=shown.reading,
        )
    _report(outcome, folder, console)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe as TOML, with every setting.")] = None,
) -> None:
    """List the recipes that ship with saltflat, or print one to start your own from."""
    if name is not None:
        from saltflat.recipes.recipe import shipped

        print(f"# {about(name)}\n{shipped(name).as_toml()}", end="")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "what it is", title="saltflat train RECIPE", title_justify="left")
    for each in names():
        table.add_row(each, about(each))
    Console().print(table)


def _chosen(recipe: str | None, changes: dict[str, Any], folder: Folder, *, resume: bool) -> Recipe:
    if not resume:
        return (read(recipe) if recipe is not None else Recipe()).but(changes)
    from saltflat.runs.begin import resumed

    there = resumed(folder)
    here = (read(recipe) if recipe is not None else there).but(changes)
    for each in SETTINGS:
        old, new = getattr(there, each.name), getattr(here, each.name)
        if old != new:
            raise SettingError(
                f"the run in {folder.path} has {each.name} {old}, not {new}; leave it out to go on, or begin "
                "another run in another --out"
            )
    return there


def _size(recipe: Recipe) -> int:
    from saltflat.data import official_size

    return recipe.size or official_size(recipe.data)


def _announce(recipe: Recipe, plan: Plan, console: Console) -> None:
    noise = ", then ".join(f"{p.steps} steps with noise {p.noise_multiplier:.4g}" for p in plan.phases)
    console.print(
        f"{recipe.method} on {recipe.data} with {recipe.model}: {noise}; clip norm {recipe.clip_norm:g}\n"
        f"epsilon {plan.epsilon(recipe.delta):.3f} at delta {recipe.delta:g} (at most {recipe.epsilon:g} with "
        f"{recipe.spare} spare steps); unit: one example; adjacency: add or remove one\n"
        f"sampling: Poisson, {recipe.batch_size} of {plan.size:,} examples expected in a step; "
        f"{plan.steps * plan.expected_units * recipe.views:,.0f} gradients in all",
        highlight=False,
    )


def _loaded(recipe: Recipe, plan: Plan, data_dir: Path | None) -> Split:
    from saltflat import data

    split = data.load(recipe.data, data_dir)
    if split.train.count > plan.size:
        raise SettingError(
            f"{recipe.data} has more than the {plan.size} examples that were declared; set --size to a public bound"
        )
    return split


@dataclasses.dataclass(frozen=True)
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
            f"test {reading.accuracy:.2%}, epsilon {reading.epsilon:.3f}, "
            f"{reading.examples_per_second:,.0f} examples/s"
        )
        self.bar.update(self.task, last=line)
        if not sys.stdout.isatty():
            self.console.print(f"step {reading.step} of {self.steps}: {line}", highlight=False)
        if self.board is not None:
            self.board.note(reading)


@dataclasses.dataclass
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
        f"On record in the ledger: epsilon {outcome.on_record:.3f} at delta {outcome.statement.delta:g}, all "
        "runs in it together.",
        highlight=False,
    )
