"""What ``train`` and ``federate`` share: their flags, the recipe that is meant, what is seen of a run, how it ends."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.machine import check_machine
from saltflat.cli.processes import launcher, placed, restarts, started_again
from saltflat.cli.screen import screen
from saltflat.cli.settings import Flag, changes, for_target
from saltflat.errors import GroupError, Interrupted, SettingError
from saltflat.privacy.limits import rounded_up
from saltflat.recipes import documents
from saltflat.recipes.toml import dotted
from saltflat.recipes.wrong import shown as in_words

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

PANEL = "Settings (they change what the recipe says; values are TOML)"
FEW_CLIENTS = 100  # below so many declared ones there is a warning
Out = Annotated[Path, typer.Option(help="The folder that keeps the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print plan, noise and cost, try the network on made-up rows; no more."),
]
Shared = Annotated[
    Path | None,
    typer.Option("--ledger", help="A ledger shared by all runs on this data.", show_default="one in --out"),
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Also log for TensorBoard, in --out.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other setting, such as phase.0.method.SAT.radius=0.05; repeat for more.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class Asked:
    """What a command was asked for, beside the recipe."""

    command: str
    out: Path
    resume: bool
    dry_run: bool
    data_dir: Path | None
    ledger: Path | None
    device: str
    threads: int
    tensorboard: bool
    workers: int = 0  # processes that train clients, or threads that read examples on disk
    norms: bool = False  # whether clients' data was declared public, and their updates are measured
    infinity: bool = False  # whether examples were declared public, and a training without noise is done too

    @property
    def folder(self) -> Folder:
        from saltflat.runs.layout import Folder

        return Folder(self.out)

    def document(self) -> Document:
        """The recipe of the run that is in the folder; a folder without one is refused."""
        from saltflat.recipes.recipe import current
        from saltflat.runs.begin import resumed

        resumed(self.folder)
        return current(documents.read(self.folder.recipe))

    @property
    def again(self) -> str:
        """The command that goes on with the run, as a shell takes it; with `torchrun`, if that started it.

        >>> Asked("train", Path("my runs/one"), False, False, None, None, "cpu", 1, False).again
        "saltflat train --resume --out 'my runs/one' --threads 1"
        """
        flags = {
            "--out": self.out,
            "--data-dir": self.data_dir,
            "--ledger": self.ledger,
            "--device": None if self.device == "cpu" else self.device,
            "--threads": self.threads or None,
            "--workers": self.workers or None,
        }
        given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
        return shlex.join([*launcher(), self.command, "--resume", *given])


def carry_out(chosen: Recipe, asked: Asked) -> None:
    """Announce the run, and carry it out unless it is a dry one; Ctrl-C ends after the step at hand."""

    from saltflat.core.group import Group
    from saltflat.recipes.build import check_shapes, form_of, plan_of, size_of

    console, plan = screen(), Group.here().told(lambda: plan_of(chosen, size_of(chosen)))
    announce(chosen, plan, console)
    if asked.dry_run:
        check_shapes(chosen, form_of(chosen, asked.data_dir))
        console.print(
            "The network takes examples of this form, by made-up rows; nothing was read or charged."
        )
        return
    check_machine(placed(asked.device), asked.threads)
    split = loaded(chosen, plan, asked.data_dir)
    _report(train_one(chosen, plan, split, asked, console), asked.folder, console)


def train_one(
    chosen: Recipe, plan: Plan, split: Split, asked: Asked, console: Console, *, again: str = ""
) -> Outcome:
    """Train one run under its bar; stopped, it says what is kept and the command that goes on (``again``)."""
    from saltflat.landscape.access import PUBLIC
    from saltflat.runs.begin import Taken
    from saltflat.runs.execute import execute

    board = _tensorboard(asked.folder) if asked.tensorboard else None
    again = again or asked.again
    try:
        with _shown(chosen, plan.steps, console, board) as seen:
            return execute(
                chosen,
                plan,
                split,
                asked.folder,
                resume=asked.resume,
                ledger=asked.ledger,
                device=placed(asked.device),
                workers=asked.workers,
                crashes=max(1, restarts()),
                watch=seen.step,
                told=seen.reading,
                access=PUBLIC if asked.norms else None,
                infinity=PUBLIC if asked.infinity else None,
                preparing=seen.preparing,
            )
    except Interrupted as error:
        raise _stopped(error, asked, again) from None
    except GroupError as error:
        then = "torchrun starts all of them again" if started_again() else _kept(asked, again)
        raise GroupError(f"{error}; {then}") from error
    except Taken as error:
        raise SettingError(f"{error}. To go on, run {again}") from None


def _stopped(error: Interrupted, asked: Asked, again: str) -> Interrupted:
    """What to type to go on; a run that had not begun has looked at nothing private, and begins with what was made."""
    return Interrupted(f"{str(error).split(';')[0]}; {_kept(asked, again)}", error.signal)


def _kept(asked: Asked, again: str) -> str:
    """What is there of a run that ended early, and how it goes on."""
    if asked.folder.recipe.exists():
        return f"it is kept in {asked.out}: to go on, run {again}"
    made = asked.folder.public
    there = f"what was made is kept in {made}" if made.exists() else "nothing is kept"
    return f"nothing was charged, and {there}: run the same command again"


def with_flags(command: Any, flags: Sequence[Flag]) -> Any:
    """The command, with a flag for each common setting of a recipe."""

    def run(**given: Any) -> None:
        said = {flag.name: given.pop(flag.name) for flag in flags}
        command(given={name: text for name, text in said.items() if text is not None}, **given)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    more = [_option(flag) for flag in flags]
    run.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*own, *more]}
    run.__doc__ = command.__doc__
    return run


def _option(flag: Flag) -> inspect.Parameter:
    option = typer.Option(flag.word, help=flag.help, metavar="VALUE", rich_help_panel=PANEL)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(flag.name, kind, default=None, annotation=Annotated[str | None, option])


def chosen_of(
    document: Document, given: dict[str, str], sets: Sequence[str], asked: Asked, *, flags: Sequence[Flag]
) -> Recipe:
    """The recipe that was asked for, with what its data says; where a run goes on, it must be that run's."""
    from saltflat.recipes.build import fitted, form_of
    from saltflat.recipes.recipe import from_document
    from saltflat.runs.begin import resumed

    there = resumed(asked.folder) if asked.resume else None
    document = for_target(document, given, sets)
    here = from_document(document.but(changes(document, given, sets, flags=flags)))
    _check_command(here, asked)
    if here != there:
        here = fitted(here, form_of(here, asked.data_dir))
    if there is None:
        return here
    differing = documents.difference(there.as_document(), here.as_document())
    if differing is not None:
        keys, old, new = differing
        raise SettingError(
            f"the run in {asked.out} has {dotted(keys)} {_brief(old)}, not {_brief(new)}; leave it out to go on, or "
            "begin another run in another --out"
        )
    return there


def of_flag(name: str, given: dict[str, str], declared: Any) -> Any:
    """What a flag says, where it decides which recipe is meant, as the recipe would have it."""
    from saltflat.errors import DataError
    from saltflat.recipes.toml import word
    from saltflat.recipes.values import Spot, value_of
    from saltflat.recipes.wrong import Wrong

    flag = "--" + name.replace("_", "-")
    try:
        return value_of(word(given[name]), declared, Spot((name,)))
    except (Wrong, DataError) as error:
        raise SettingError(f"{flag}: {error}") from None


def _check_command(recipe: Recipe, asked: Asked) -> None:
    """One command trains on examples, the other on clients; each says when the other one is meant."""
    if recipe.clients is not None and asked.command != "federate":
        raise SettingError(
            "this recipe has clients, and a unit of it is a client: run saltflat federate, with the same arguments"
        )
    if recipe.clients is None and asked.command == "federate":
        raise SettingError(
            "this recipe has no clients: declare how many there are and where they come from, such as --clients 100 "
            "--split iid, or --clients 5000 --user COLUMN for a file of yours; saltflat train takes it as it is"
        )


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "nothing" if value is None else in_words(value)


def _method(recipe: Recipe) -> str:
    return documents.settings(recipe.as_document())["method"]


def announce(recipe: Recipe, plan: Plan, console: Console) -> None:
    """What will run and what it costs; a warning that comes after the budget is spent would help nobody."""
    from saltflat.privacy.record.statement import Declared, delta_warnings

    unit, step = ("example", "step") if recipe.clients is None else ("client", "round")
    spent = f"epsilon {rounded_up(plan.epsilon(recipe.delta), 4)} at delta {recipe.delta:g}"
    if recipe.epsilon is not None:
        spent += f" (at most {recipe.epsilon:g} with {recipe.spare} spare {step}s)"
    if recipe.advantage is not None:
        spent += f", for advantage at most {recipe.advantage:g} with {recipe.spare} spare {step}s"
    phases = [
        f"phase {number}: {phase.steps} {step}s of {phase.method} with {phase.optimizer}, noise "
        f"{phase.noise_multiplier:.4g}, clip norm {phase.clip_norm}"
        for number, phase in enumerate(plan.phases)
    ]
    lines = [
        f"{_method(recipe)} on {recipe.data} with {recipe.model}",
        *phases,
        *_clients(recipe),
        *_public(recipe),
        f"{spent}; unit: one {unit}; adjacency: {_adjacency(plan)}",
        f"sampling: {_sampling(plan, unit, step)}; "
        f"{plan.steps * plan.expected_units * recipe.views:,.0f} {_contributions(recipe)} in all",
        *(
            f"Warning: {each}"
            for each in delta_warnings(Declared(delta=recipe.delta, size=plan.size, unit=unit))
        ),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _clients(recipe: Recipe) -> list[str]:
    if recipe.clients is None:
        return []
    count = recipe.clients.count
    said = [f"{count:,} clients are declared; each trains by {recipe.clients.local}"]
    if count < FEW_CLIENTS:
        said.append(
            f"Warning: {count} clients are few: noise that hides one of them hides most of what they know together. "
            "Expect a useful model from some hundreds on"
        )
    return said


def _public(recipe: Recipe) -> list[str]:
    """What comes before the private phase, and costs nothing."""
    from saltflat.runs.stages import provenance, scenario_of, uses_public

    if not uses_public(recipe):
        return []
    used = [f"public, and not protected at all: {each}" for each in provenance(recipe)]
    return [
        f"scenario {scenario_of(recipe)}",
        *used,
        *(f"warm-up: {each.in_words()}" for each in recipe.warmup),
    ]


def _adjacency(plan: Plan) -> str:
    return "add or remove one" if plan.adjacency == "add-or-remove" else "replace one by another"


def _sampling(plan: Plan, unit: str, step: str) -> str:
    if plan.adjacency == "add-or-remove":
        return f"Poisson, {plan.expected_units:g} of {plan.size:,} {unit}s expected in a {step}"
    return f"exactly {plan.expected_units:g} of {plan.size:,} {unit}s in a {step}, without replacement"


def _contributions(recipe: Recipe) -> str:
    return "gradients" if recipe.clients is None else "local trainings"


@dataclass
class _Told:
    """Says how far the features are, now and then, to standard error; of those that are quick nothing is said."""

    last: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.last > 5:
            self.last = time.monotonic()
            typer.echo(f"features: {done:,} of {total:,} images", err=True)


def loaded(recipe: Recipe, plan: Plan, data_dir: Path | None) -> Split:
    from saltflat.recipes.build import split_of

    split = _first_computes(lambda: split_of(recipe, data_dir, watch=_Told()))
    if recipe.clients is None and split.train.count > plan.size:
        raise SettingError(
            f"{recipe.data} has more than the {plan.size} examples that were declared; set --size to a public bound"
        )
    return split


def _first_computes(make: Callable[[], Split]) -> Split:
    """The examples; where features are kept in a folder, the first process computes them, and the others read them.

    Where they are not, every process computes them at once: waiting for the first would take as long.
    """
    from saltflat.core.group import Group
    from saltflat.privacy.record.cache import VARIABLE

    made: list[Split] = []
    if os.environ.get(VARIABLE):
        Group.here().told(lambda: made.append(make()))
    return made[0] if made else make()


@dataclass(frozen=True)
class _Shown:
    """What is seen of a run while it goes: a bar in a terminal, lines elsewhere, TensorBoard if asked for."""

    step_word: str
    unit: str
    steps: int
    console: Console
    bar: Progress
    task: TaskID
    board: _Board | None
    before: dict[str, TaskID] = field(default_factory=dict)

    def step(self, progress: Any) -> None:
        self.bar.update(self.task, completed=progress.step)

    def preparing(self, what: str, done: int, of: int) -> None:
        """Before the private phase: a bar for each piece of work, or four lines."""
        if what not in self.before:
            self.before[what] = self.bar.add_task(what, total=of, last="")
        self.bar.update(self.before[what], completed=done)
        if not sys.stdout.isatty() and done and (4 * done // of) > (4 * (done - 1) // of):
            self.console.print(f"{what}: {done:,} of {of:,}", highlight=False)

    def reading(self, reading: Reading) -> None:
        line = (
            f"{score(reading)}epsilon {rounded_up(reading.epsilon or 0.0, 4)}, "
            f"{reading.examples_per_second:,.0f} {self.unit}s/s"
        )
        self.bar.update(self.task, last=line)
        if not sys.stdout.isatty():
            self.console.print(f"{self.step_word} {reading.step} of {self.steps}: {line}", highlight=False)
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
        for name in ("accuracy", "error", "perplexity", "epsilon", "examples_per_second"):
            if getattr(reading, name) is not None:
                self.writer.add_scalar(name, getattr(reading, name), reading.step)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


@contextmanager
def _shown(recipe: Recipe, steps: int, console: Console, board: _Board | None) -> Iterator[_Shown]:
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
        words = ("step", "example") if recipe.clients is None else ("round", "client")
        task = bar.add_task(_method(recipe), total=steps, last="")
        yield _Shown(*words, steps, console, bar, task, board)


def score(reading: Reading | Outcome) -> str:
    """How the weights did on the test examples, if there are any."""
    if reading.perplexity is not None:
        return f"test perplexity {reading.perplexity:.4g}, "
    if reading.accuracy is not None:
        return f"test {reading.accuracy:.2%}, "
    return "" if reading.error is None else f"test error {reading.error:.4g}, "


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
    if outcome.perplexity is not None:
        scored = f"test perplexity {outcome.perplexity:.4g}, of the next words {outcome.accuracy:.2%} right"
    elif outcome.accuracy is not None:
        scored = f"test accuracy {outcome.accuracy:.2%}"
    elif outcome.error is not None:
        scored = f"test error {outcome.error:.4g} (root mean square)"
    for stage in outcome.before.stages if outcome.before is not None else ():
        if stage.kind != "private" and stage.accuracy is not None:
            spent = "infinity, not private" if stage.epsilon is None else f"{stage.epsilon:g}"
            console.print(f"{stage.name}: test {stage.accuracy:.2%} (epsilon {spent})", highlight=False)
    console.print(f"{scored}; kept in {folder.path}", highlight=False)
    console.print(outcome.statement.as_text(), highlight=False)
    console.print(
        f"On record in the ledger: epsilon {rounded_up(outcome.on_record, 4)} at delta {outcome.statement.delta:g}, "
        "all runs in it together.",
        highlight=False,
    )
