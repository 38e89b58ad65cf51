"""``--repeats``: one recipe several times, with other first weights, on one ledger; mean, error and joint cost."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saltflat.cli.machine import check_machine
from saltflat.cli.processes import placed
from saltflat.cli.running import Asked, announce, loaded, score, train_one
from saltflat.cli.screen import screen
from saltflat.errors import DataError, Interrupted, SettingError
from saltflat.privacy.limits import rounded_up

if TYPE_CHECKING:
    from rich.console import Console

    from saltflat.core.plan import Plan
    from saltflat.recipes import Recipe
    from saltflat.runs.execute import Outcome
    from saltflat.runs.repeats import Repeats

Count = Annotated[
    int,
    typer.Option(
        "--repeats",
        help="Train so many runs, with seeds from --seed on, into folders of --out, all charged to one ledger.",
    ),
]


def first_of(asked: Asked) -> Asked:
    """What was asked for, of the first run in a folder of repeats that goes on; itself for any other folder."""
    from saltflat.runs.layout import Folder
    from saltflat.runs.repeats import read

    there = read(asked.out) if asked.resume else None
    if there is None:
        return asked
    begun = [folder for folder in there.folders(asked.out) if Folder(folder).recipe.exists()]
    if not begun:
        raise DataError(
            f"{asked.out} holds no run to go on with; remove it, and begin again without --resume"
        )
    return replace(asked, out=begun[0])


def wanted(asked: Asked, count: int, seed: int) -> Repeats | None:
    """The repeats that are meant: those in the folder where they go on, new ones, or none."""
    from saltflat.runs.repeats import Repeats, read

    there = read(asked.out) if asked.resume else None
    if there is not None and count not in (1, len(there.seeds)):
        raise SettingError(
            f"{asked.out} was begun with --repeats {len(there.seeds)}, not {count}; leave it out to go on"
        )
    if there is None and asked.resume and count > 1:
        raise SettingError(f"{asked.out} holds no repeats to go on with; leave --resume out to begin")
    return there or (Repeats.of(seed, count) if count != 1 else None)


def carry_out_all(chosen: Recipe, asked: Asked, repeats: Repeats) -> None:
    """Every run of the repeats that has not ended, one after the other, and what they say together."""
    from saltflat.core.group import Group
    from saltflat.recipes.build import check_shapes, form_of, plan_of, size_of
    from saltflat.runs import repeats as kept

    group = Group.here()
    console, plan = screen(), group.told(lambda: plan_of(chosen, size_of(chosen)))
    announce(chosen, plan, console)
    ledger = asked.ledger or asked.folder.ledger
    together = (
        f"epsilon {rounded_up(_joint(plan, chosen.delta, len(repeats.seeds)), 4)} at delta {chosen.delta:g}"
    )
    _say(console, f"{len(repeats.seeds)} repeats, seeds {_seeds(repeats)}: together {together}, planned")
    if asked.dry_run:
        check_shapes(chosen, form_of(chosen, asked.data_dir))
        _say(
            console, "The network takes examples of this form, by made-up rows; nothing was read or charged."
        )
        return
    check_machine(placed(asked.device), asked.threads)
    split = loaded(chosen, plan, asked.data_dir)
    if not asked.resume:
        group.told(lambda: kept.begin(asked.out, repeats))
    try:
        if asked.ledger is None:
            group.told(lambda: _begin_ledger(ledger, chosen, plan, len(repeats.seeds)))
        outcomes = []
        for seed, folder in zip(repeats.seeds, repeats.folders(asked.out), strict=True):
            _say(console, f"seed {seed}:")
            begun = group.told((folder / "recipe.toml").exists)
            one = replace(asked, out=folder, ledger=ledger, resume=begun)
            outcomes.append(
                train_one(replace(chosen, seed=seed), plan, split, one, console, again=asked.again)
            )
    except BaseException as error:
        if group.leads:
            _undo(asked.out, ledger if asked.ledger is None else None, repeats)
        if isinstance(error, KeyboardInterrupt) and asked.out.exists():  # between two runs
            said = f"stopped at once; it is kept in {asked.out}: to go on, run {asked.again}"
            raise Interrupted(said, signal.SIGINT) from None
        raise
    _report(outcomes, repeats, asked, console)


def _joint(plan: Plan, delta: float, times: int) -> float:
    """The epsilon of so many runs of a plan, as if planned before any result was seen."""
    from saltflat.privacy.accounting import bounds
    from saltflat.privacy.accounting.events import compose

    return bounds.epsilon(compose(*[plan.event()] * times), delta, adjacency=plan.relation)


def _begin_ledger(ledger: Path, recipe: Recipe, plan: Plan, times: int) -> None:
    """One ledger for all, with a budget that holds every run and its spare steps; it refuses more."""
    from saltflat.core.plan import with_spare
    from saltflat.privacy.record.history import Budget
    from saltflat.privacy.record.ledger import Ledger

    if plan.data_driven:
        raise SettingError(
            "results decide when the noise of this recipe changes, so its repeats need a ledger with a Renyi order: "
            "name one by --ledger"
        )
    budget = None
    if (recipe.epsilon is not None or recipe.advantage is not None) and not ledger.exists():
        generous = with_spare(plan, recipe.spare)
        budget = Budget(epsilon=_joint(generous, recipe.delta, times) * (1 + 1e-6), delta=recipe.delta)
    Ledger.open(ledger, dataset=recipe.data, budget=budget).close()


def _undo(out: Path, ledger: Path | None, repeats: Repeats) -> None:
    """A start that failed before any run was charged leaves the folder as it was."""
    from saltflat.privacy.record.history import read
    from saltflat.runs.layout import Folder, head_of

    if any(folder.exists() for folder in repeats.folders(out)):
        return
    if ledger is not None and ledger.exists():
        if read(ledger).steps():
            return
        for file in (ledger, head_of(ledger)):
            file.unlink(missing_ok=True)
    Folder(out).repeats.unlink(missing_ok=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()


def _report(outcomes: list[Outcome], repeats: Repeats, asked: Asked, console: Console) -> None:
    """The mean over repeats with its standard error, and what all of them cost together."""
    from saltflat.report.sure import standard_error

    for seed, outcome in zip(repeats.seeds, outcomes, strict=True):
        _say(
            console,
            f"seed {seed}: {score(outcome).rstrip(', ') or 'no test examples'}",
        )
    right = [each.accuracy for each in outcomes if each.accuracy is not None]
    if len(right) == len(outcomes) > 1:
        mean, error = sum(right) / len(right), standard_error(right) or 0.0
        _say(
            console,
            f"test accuracy {mean:.2%} ± {error:.2%} (mean and standard error over {len(right)} repeats, last weights)",
        )
    last = outcomes[-1]
    _say(console, last.statement.technical()[0].replace("This run is", "Each run by itself is"))
    _say(
        console,
        f"All {len(outcomes)} together, and whatever else is on record in the ledger: epsilon "
        f"{rounded_up(last.on_record, 4)} at delta {last.statement.delta:g} (unit: one {last.statement.unit}; "
        f"adjacency: {last.statement.adjacency}).",
    )
    _say(console, f"Kept in {asked.out}; saltflat report {asked.out} shows them with bands.")


def _seeds(repeats: Repeats) -> str:
    return f"{repeats.seeds[0]} to {repeats.seeds[-1]}"


def _say(console: Console, words: str) -> None:
    console.print(words, highlight=False, markup=False, soft_wrap=True)
