"""``saltflat train``: one private run from a recipe and flags, kept in a folder; ``saltflat recipes`` lists some."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import DataDir, Device, Threads, check_machine
from saltflat.cli.settings import FLAGS, Flag, changes
from saltflat.errors import Interrupted, SettingError
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
USUAL_EPSILON = 3.0  # for a table that no recipe was named for


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
        bool,
        typer.Option(
            "--dry-run", help="Print plan, noise and cost, try the network on made-up rows; no more."
        ),
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
    after the step at hand, and prints the command that goes on.

    A table of your own: saltflat train --data mine.csv --table mine.toml --size 5000 --epsilon 1, or --data mine.npz
    --classes 3 --size 5000. Without a recipe its settings are those of saltflat suggest.
    """
    from rich.console import Console

    from saltflat.recipes.build import check_shapes, form_of, plan_of, size_of
    from saltflat.runs.begin import Taken
    from saltflat.runs.execute import execute
    from saltflat.runs.layout import Folder

    folder, console = Folder(out), Console()
    chosen = _chosen(recipe, given, sets or [], folder, resume=resume, data_dir=data_dir)
    plan = plan_of(chosen, size_of(chosen))
    _announce(chosen, plan, console)
    if dry_run:
        check_shapes(chosen, form_of(chosen, data_dir))
        console.print(
            "The network takes examples of this form, by made-up rows; nothing was read or charged."
        )
        return
    again = _command(out, data_dir=data_dir, ledger=ledger, device=device, threads=threads)
    check_machine(device, threads)
    board = _tensorboard(folder) if tensorboard else None
    split = _loaded(chosen, plan, data_dir)
    try:
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
    except Interrupted as error:
        after = str(error).split(";")[0]
        raise Interrupted(f"{after}; it is kept in {out}: to go on, run {again}", error.signal) from None
    except Taken as error:
        raise SettingError(f"{error}: {again}") from None
    _report(outcome, folder, console)


def _command(out: Path, *, data_dir: Path | None, ledger: Path | None, device: str, threads: int) -> str:
    """The command that goes on with a run, as a shell takes it.

    >>> _command(Path("my runs/one"), data_dir=None, ledger=None, device="cpu", threads=1)
    "saltflat train --resume --out 'my runs/one' --threads 1"
    """
    flags = {
        "--out": out,
        "--data-dir": data_dir,
        "--ledger": ledger,
        "--device": None if device == "cpu" else device,
        "--threads": threads or None,
    }
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    return shlex.join(["saltflat", "train", "--resume", *given])


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
    recipe: str | None,
    given: dict[str, str],
    sets: list[str],
    folder: Folder,
    *,
    resume: bool,
    data_dir: Path | None,
) -> Recipe:
    """The recipe that was asked for, with what its data says; where a run goes on, it must be that run's."""
    from saltflat.recipes.build import fitted, form_of
    from saltflat.recipes.recipe import from_document
    from saltflat.runs.begin import resumed

    there = resumed(folder) if resume else None
    document = _document(recipe, given, folder, resume=resume, data_dir=data_dir)
    here = from_document(document.but(changes(document, given, sets)))
    if here != there:
        here = fitted(here, form_of(here, data_dir))
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


def _document(
    recipe: str | None, given: dict[str, str], folder: Folder, *, resume: bool, data_dir: Path | None
) -> Document:
    from saltflat.recipes.recipe import current

    if recipe is not None:
        return current(documents.read(recipe))
    if resume:
        return current(documents.read(folder.recipe))
    return _suggested(given, data_dir) or current(documents.shipped(USUAL))


def _suggested(given: dict[str, str], data_dir: Path | None) -> Document | None:
    """For a table without a recipe: what is suggested for its declared size; None for anything else."""
    from saltflat.advice import suggest
    from saltflat.data import Own, is_own, official_form, official_size, own_form
    from saltflat.recipes.build import size_missing

    name = given.get("data")
    if name is None or not (is_own(name) or (name == "adult" and "model" not in given)):
        return None
    asked = {
        key: _of_flag(key, given) for key in ("size", "epsilon", "classes", "target_range") if key in given
    }
    declared: dict[str, Any] = {key: given[key] for key in ("table", "test") if key in given}
    if is_own(name):
        span = asked.get("target_range")
        own = Own(name, **declared, classes=asked.get("classes"), span=tuple(span) if span else None)
        form = own_form(own, data_dir)
        if "size" not in asked:
            raise size_missing(name)
        size = asked["size"]
    else:
        form, size = official_form(name), asked.get("size") or official_size(name)
    found = suggest(
        size=size,
        epsilon=asked.get("epsilon", USUAL_EPSILON),
        features=form.features,
        classes=form.classes or None,
    )
    own_settings: dict[str, Any] = {**declared, "classes": form.classes or None, "target_range": form.span}
    if not is_own(name):
        own_settings = {}
    made = found.recipe(name, **own_settings)
    return documents.Document(made.as_document(), "the suggested settings")


_KINDS: dict[str, Any] = {"size": int, "epsilon": float, "classes": int, "target_range": tuple[float, float]}


def _of_flag(name: str, given: dict[str, str]) -> Any:
    """A flag that the suggestion depends on, as the recipe would have it."""
    from saltflat.errors import DataError
    from saltflat.recipes.toml import word
    from saltflat.recipes.values import Spot, value_of
    from saltflat.recipes.wrong import Wrong

    flag = "--" + name.replace("_", "-")
    try:
        return value_of(word(given[name]), _KINDS[name], Spot((name,)))
    except (Wrong, DataError) as error:
        raise SettingError(f"{flag}: {error}") from None


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "nothing" if value is None else shown(value)


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
    from saltflat.recipes.build import split_of

    split = split_of(recipe, data_dir)
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
            f"{_score(reading.accuracy, reading.error)}epsilon {rounded_up(reading.epsilon or 0.0, 4)}, "
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
        for name in ("accuracy", "error", "epsilon", "examples_per_second"):
            if getattr(reading, name) is not None:
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


def _score(accuracy: float | None, error: float | None) -> str:
    """How the weights did on the test examples, if there are any."""
    if accuracy is not None:
        return f"test {accuracy:.2%}, "
    return "" if error is None else f"test error {error:.4g}, "


def _tensorboard(folder: Folder) -> _Board:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise SettingError(
            "--tensorboard needs the tensorboard package: pip install 'saltflat[tensorboard]'"
        ) from None
    return _Board(folder.tensorboard)


def _report(outcome: Outcome, folder: Folder, console: Console) -> None:
    scored = "no test examples, so no accuracy was taken"
    if outcome.accuracy is not None:
        scored = f"test accuracy {outcome.accuracy:.2%}"
    elif outcome.error is not None:
        scored = f"test error {outcome.error:.4g} (root mean square)"
    console.print(f"{scored}; kept in {folder.path}", highlight=False)
    console.print(outcome.statement.as_text(), highlight=False)
    console.print(
        f"On record in the ledger: epsilon {rounded_up(outcome.on_record, 4)} at delta {outcome.statement.delta:g}, "
        "all runs in it together.",
        highlight=False,
    )
