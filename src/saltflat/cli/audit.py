"""``saltflat audit``: play the adversary against a recipe's plan, and say whether its epsilon survives."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from saltflat.cli.machine import Threads, check_machine
from saltflat.cli.screen import screen
from saltflat.errors import Interrupted, SettingError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from saltflat import Plan, Safeguards
    from saltflat.audit import Audited, Sides
    from saltflat.audit.game import Done
    from saltflat.data import Examples
    from saltflat.recipes import Recipe

KINDS = ("canary", "one-run", "membership")
REFUTED, CONTROLS = 1, 3  # exit codes; 0: the claim survives, 2: a request that cannot be met
LEAK = 200  # steps without noise after which a network knows its members by heart


def register(app: typer.Typer) -> None:
    """Add ``audit`` to ``app``."""
    app.command("audit")(audit)


def audit(
    recipe: Annotated[
        str, typer.Argument(help="A TOML file, or a name that `saltflat recipes` lists.")
    ] = "digits",
    *,
    kind: Annotated[str, typer.Option(help=f"The adversary: one of {', '.join(KINDS)}.")] = "canary",
    runs: Annotated[int, typer.Option(help="canary: runs with, and as many without.")] = 2000,
    together: Annotated[
        int,
        typer.Option(help="canary: runs that share a training; 1: each its own, a hundred times as long."),
    ] = 100,
    canaries: Annotated[int, typer.Option(help="one-run: canaries in the training.")] = 1000,
    alone: Annotated[
        bool, typer.Option("--alone", help="one-run: the canaries alone, in the place of among the digits.")
    ] = False,
    controls: Annotated[
        bool, typer.Option(help="Also run what must be refuted, and what must show nothing.")
    ] = True,
    out: Annotated[
        Path, typer.Option(help="The folder that keeps audit.json; one that is there is replaced.")
    ] = Path("runs/audit"),
    seed: Annotated[
        int | None,
        typer.Option(help="Repeatable noise, which is then what is audited.", show_default="secret noise"),
    ] = None,
    threads: Threads = 0,
) -> None:
    """Try to show that a recipe's plan costs more than it claims, by training it with canaries in the data.

    canary: thousands of runs with and without one unit, on made-up data; the sharpest. one-run: a thousand canaries in
    one training, among the embedded digits. membership: the loss of digits that were trained on against others.

    Nothing of yours is read, and nothing counts on a ledger: canaries and digits belong to nobody. Ends with 0 if the
    claim survives, 1 if it is refuted, 3 if the controls failed, so that nothing was learnt.
    """

    from saltflat.recipes import read
    from saltflat.recipes.build import plan_of, size_of

    if kind not in KINDS:
        raise SettingError(f"--kind is one of {', '.join(KINDS)}; got {kind!r}")
    check_machine("cpu", threads)
    chosen = read(recipe)
    if chosen.clients is not None and kind != "canary":
        raise SettingError(
            f"--kind {kind} plays with examples, and a unit of {recipe} is a client: take --kind canary, which plays "
            "with the plan alone"
        )
    plan, console = plan_of(chosen, size_of(chosen)), screen()
    _announce(recipe, plan, chosen.delta, kind, console)
    _check_place(out)
    given = _Given(chosen, plan, runs, together, canaries, alone, controls, _safeguards(seed))
    with _shown(kind, console) as shown:
        audited = _ADVERSARIES[kind](given, shown)
    _say(audited, console)
    _keep(audited, out, console)
    if audited.failed or audited.refuted:
        raise typer.Exit(CONTROLS if audited.failed else REFUTED)


def _check_place(out: Path) -> None:
    """Refuse a folder that cannot be written, before anything runs; it is made when there is something to keep."""
    there = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SettingError(
            f"--out {out} cannot be made: {there} is no folder that can be written; give another one"
        )


@dataclass(frozen=True)
class _Given:
    """What was asked for."""

    recipe: Recipe
    plan: Plan
    runs: int
    together: int
    canaries: int
    alone: bool
    controls: bool
    safeguards: Safeguards


def _safeguards(seed: int | None) -> Safeguards:
    import numpy as np

    from saltflat import Safeguards
    from saltflat.privacy import SeededNoise

    if seed is None:
        return Safeguards()
    if seed < 0:
        raise SettingError(f"--seed is 0 or more; got {seed}")
    return Safeguards(noise=SeededNoise(seed), sampling=np.random.default_rng(seed))


def _canary(given: _Given, shown: _Shown) -> Audited:
    from saltflat.audit import canary

    return canary(
        given.plan,
        given.recipe.delta,
        runs=given.runs,
        together=given.together,
        control_runs=None if given.controls else 0,
        safeguards=given.safeguards,
        watch=shown.done,
    )


def _one_run(given: _Given, shown: _Shown) -> Audited:
    from saltflat.audit import Company, one_run
    from saltflat.data import digits
    from saltflat.landscape import PUBLIC

    among = given.recipe.data == "digits" and not given.alone
    return one_run(
        given.plan,
        given.recipe.delta,
        canaries=given.canaries,
        company=Company(_contribution(given.recipe), digits().train, PUBLIC) if among else None,
        controls=given.controls,
        safeguards=given.safeguards,
        watch=shown.done,
    )


def _membership(given: _Given, shown: _Shown) -> Audited:
    """Fair coins decide which digits the recipe's network is trained on; then the losses of both sides are compared."""
    import torch

    from saltflat.audit import Claim, membership
    from saltflat.data import Examples, digits
    from saltflat.landscape import PUBLIC

    if given.recipe.data != "digits":
        raise SettingError(
            f"--kind membership needs a recipe on the embedded digits, which are public; got {given.recipe.data!r}; "
            "for data of your own call saltflat.audit.membership, and declare who may see the result"
        )
    began, every = time.monotonic(), digits().train
    sides = _by_coins(every, given)
    trained = _trained(given.plan, given, sides.members, "the claim", shown)
    leaky = None
    if given.controls:
        anything = torch.from_numpy(10 * given.safeguards.sampling.random(every.count)).long()
        wrong = _by_coins(Examples(every.inputs, anything), given)  # such labels can only be learnt by heart
        leaky = _trained(_without_noise(given.plan), given, wrong.members, "a model that leaks", shown), wrong
    claim = Claim(
        epsilon=given.plan.epsilon(given.recipe.delta),
        delta=given.recipe.delta,
        advantage=given.plan.tradeoff().advantage,
    )
    audited = membership(trained, sides, claim=claim, access=PUBLIC, leaky=leaky)
    return dataclasses.replace(audited, seconds=time.monotonic() - began)


def _by_coins(every: Examples, given: _Given) -> Sides:
    """Each example on one side or the other."""
    from saltflat.audit import Sides
    from saltflat.data import Examples

    coins = given.safeguards.sampling.random(every.count) < 0.5
    members, others = (Examples(every.inputs[which], every.targets[which]) for which in (coins, ~coins))
    return Sides(members, others, fair=True)


def _trained(plan: Plan, given: _Given, members: Any, part: str, shown: _Shown) -> Any:
    from saltflat import Running, train
    from saltflat.audit.game import Done

    contribution = _contribution(given.recipe)
    watch = lambda progress: shown.done(Done(part, progress.step, plan.steps))
    train(
        plan, contribution, members, safeguards=given.safeguards, running=Running(physical=512, watch=watch)
    )
    return contribution


def _without_noise(plan: Plan) -> Plan:
    """Plain training on all members at every step, for long enough to learn them by heart."""
    from saltflat import Phase
    from saltflat.methods import DPSGD
    from saltflat.optimizers import Adam

    phase = Phase(
        method=DPSGD(), steps=LEAK, noise_multiplier=0.0, clip_norm=float("inf"), optimizer=Adam(lr=0.01)
    )
    return dataclasses.replace(plan, phases=(phase,), rate=1.0, ema=None)


def _contribution(recipe: Recipe) -> Any:
    """The recipe's network at its first weights, with its loss on single examples."""
    from saltflat import per_example, supervised
    from saltflat.recipes.build import criterion_of, network_of

    return per_example(network_of(recipe), supervised(criterion_of(False)))


_ADVERSARIES = {"canary": _canary, "one-run": _one_run, "membership": _membership}


def _announce(name: str, plan: Plan, delta: float, kind: str, console: Console) -> None:
    noise = ", then ".join(f"{p.steps} steps with noise {p.noise_multiplier:.4g}" for p in plan.phases)
    console.print(
        f"{kind} audit of {name}: {noise}; rate {plan.rate:.4g}; claimed: epsilon {plan.epsilon(delta):.3f} at delta "
        f"{delta:g}\nIt trains on made-up data and the embedded digits only, and counts on no ledger.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@dataclass
class _Shown:
    """What is seen of an audit while it goes: a bar for each part in a terminal, lines elsewhere."""

    kind: str
    bar: Progress
    console: Console
    parts: dict[str, Any] = field(default_factory=dict)
    last: Done | None = None

    def done(self, done: Done) -> None:
        before = _quarter(self.last) if self.last and self.last.part == done.part else 0
        self.last = done
        if done.part not in self.parts:
            self.parts[done.part] = self.bar.add_task(done.part, total=done.total)
        self.bar.update(self.parts[done.part], completed=done.done)
        if self.bar.disable and _quarter(done) > before:
            self.console.print(f"{done.part}: {done.done:,} of {done.total:,} {self._what}", highlight=False)

    @property
    def _what(self) -> str:
        return "runs" if self.kind == "canary" else "steps"

    def told(self) -> str:
        """What was done so far."""
        if self.last is None:
            return "before the first run"
        finished = [part for part in self.parts if part != self.last.part]
        whole = f"{', '.join(finished)} finished, " if finished else ""
        return f"{whole}{self.last.part} after {self.last.done:,} of {self.last.total:,} {self._what}"


def _quarter(done: Done) -> int:
    return 4 * done.done // done.total


@contextmanager
def _shown(kind: str, console: Console) -> Iterator[_Shown]:
    """The bars while it goes; Ctrl-C and SIGTERM say what was done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        _signals_raise(),
        Progress(*columns, console=console, disable=not sys.stdout.isatty()) as bar,
    ):
        shown = _Shown(kind, bar, console)
        try:
            yield shown
        except Interrupted as error:
            _stopped(shown, error.signal)


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Between trainings, which take the signals themselves, they end the audit too; an ignored one stays ignored."""

    def leave(number: int, frame: object) -> NoReturn:
        raise Interrupted("stopped", number)

    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    taken = [number for number, handler in former.items() if handler not in (None, signal.SIG_IGN)]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, former[number])


def _stopped(shown: _Shown, number: int) -> NoReturn:
    raise Interrupted(
        f"stopped by {signal.Signals(number).name}: {shown.told()}; nothing is kept, since part of an audit is none",
        number,
    ) from None


def _say(audited: Audited, console: Console) -> None:
    """The result, its first line loud if it is bad."""
    first, *rest = audited.as_text().splitlines()
    style = "bold red" if audited.refuted or audited.failed else None
    console.print(first, style=style, highlight=False, markup=False, soft_wrap=True)
    console.print("\n".join(rest), highlight=False, markup=False, soft_wrap=True)


def _keep(audited: Audited, out: Path, console: Console) -> None:
    """Write the result, whole or not at all."""
    from saltflat.audit.kept import FILE
    from saltflat.privacy.record.durable import replace

    out.mkdir(parents=True, exist_ok=True)
    replace(out / FILE, audited.as_json())
    console.print(f"kept in {out / FILE}", highlight=False, markup=False, soft_wrap=True)
