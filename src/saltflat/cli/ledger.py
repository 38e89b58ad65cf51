"""``saltflat budget show`` and ``budget check``: who spent what on a data set, and is the record whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saltflat.cli.screen import screen
from saltflat.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from saltflat.privacy.record.history import History

Place = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger file.")]
Delta = Annotated[
    float | None, typer.Option(help="The delta of (epsilon, delta); if not given, the budget's.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Head = Annotated[
    str | None, typer.Option(metavar="NUMBER:HASH", help="A head seen before; an error if it is not there.")
]


def register(app: typer.Typer) -> None:
    """Add ``show`` and ``check`` to the ``budget`` commands of ``app``."""
    group = _budget_group(app)
    group.command("show")(show)
    group.command("check")(check)


def show(ledger: Place, delta: Delta = None, as_json: AsJson = False) -> None:
    """Who spent what on this data, and how much of the budget is left.

    Example:

        saltflat budget show digits.ledger --delta 1e-5
    """
    from saltflat.privacy.record.history import read

    history = read(ledger)
    facts = _facts(history, _delta(history, delta))
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _print(history, facts)


def check(ledger: Place, head: Head = None) -> None:
    """Verify every line of a ledger: exit code 0 and one line if it is whole, 2 and one line if not.

    Example:

        saltflat budget check digits.ledger
    """
    from saltflat.privacy.record.history import read

    history = read(ledger)
    if head is not None:
        history.expect(head)
    lines, runs = len(history.entries), len(history.runs())
    typer.echo(f"{ledger} is whole: {lines} lines, {runs} runs on {history.dataset}, head {history.head}")


def _budget_group(app: typer.Typer) -> typer.Typer:
    """The ``budget`` commands of ``app``, made if there are none."""
    for group in app.registered_groups:
        if group.name == "budget" and group.typer_instance is not None:
            return group.typer_instance
    made = typer.Typer(help="Privacy budgets.", no_args_is_help=True)
    app.add_typer(made, name="budget")
    return made


def _delta(history: History, given: float | None) -> float:
    if given is not None:
        return given
    if history.budget is None:
        raise SettingError("this ledger has no budget, hence no delta: add --delta, for example --delta 1e-5")
    return history.budget.delta


def _facts(history: History, delta: float) -> dict[str, Any]:
    """All that is shown; epsilons that are infinite are None."""
    unit, adjacency = history.unit or ("", history.adjacency)
    budget = history.budget
    return {
        "dataset": history.dataset,
        "unit": unit,
        "adjacency": adjacency,
        "stamp": history.stamp,
        "delta": delta,
        "epsilon": _finite(history.epsilon(delta)),
        "budget": budget and {"epsilon": budget.epsilon, "delta": budget.delta, "order": budget.order},
        "gone": history.gone(),
        "runs": [_run_facts(history, starts, delta) for starts in history.starts().values()],
        "head": history.head,
    }


def _run_facts(history: History, runs: list[int], delta: float) -> dict[str, Any]:
    """One row: a run and its later starts, under the name that it had last."""
    starts = [run.body for run in history.began(runs)]
    from saltflat.privacy.record.costs import facts as cost_facts

    steps = history.steps(runs).items()
    return {
        "name": starts[-1]["name"],
        "started": starts[0]["time"],
        "starts": len(starts),
        "stamp": max(start["stamp"] for start in starts),
        "steps": [{**cost_facts(cost), "steps": count} for cost, count in steps],
        "epsilon_alone": _finite(history.epsilon(delta, runs)),
    }


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _print(history: History, facts: dict[str, Any]) -> None:
    from rich.markup import escape

    console = screen(highlight=False, soft_wrap=True)
    console.print(_table(history, facts))
    if facts["stamp"]:
        console.print(f"[bold red]{facts['stamp']}[/bold red]: no epsilon holds for this data any more")
    console.print(
        f"all runs together: epsilon [bold]{_epsilon(facts['epsilon'])}[/bold] at delta {facts['delta']:g}"
    )
    if facts["budget"]:
        _print_budget(console, facts["budget"], facts["gone"])
    unit = f"unit: one {escape(facts['unit'])}; " if facts["unit"] else ""
    console.print(
        f"[dim]{unit}adjacency: {facts['adjacency']}; what crashes may have wasted is counted[/dim]"
    )


def _table(history: History, facts: dict[str, Any]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from saltflat.privacy.record.costs import columns

    title = f"spent on {escape(facts['dataset'])}"
    names = ("run", "since", "starts", "steps", "rate", "noise", "epsilon alone")
    table = Table(*names, title=title, title_style="")
    for run, starts in zip(facts["runs"], history.starts().values(), strict=True):
        lines = [(str(steps), *columns(cost)) for cost, steps in history.steps(starts).items()]
        steps, rates, noises = (
            (escape("\n".join(part)) for part in zip(*lines, strict=True)) if lines else [""] * 3
        )
        alone = run["stamp"] or _epsilon(run["epsilon_alone"])
        table.add_row(
            escape(run["name"]), run["started"][:10], str(run["starts"]), steps, rates, noises, alone
        )
    return table


def _print_budget(console: Console, budget: dict[str, Any], gone: float) -> None:
    full = math.ceil(40 * min(gone, 1.0))
    filtered = "" if budget["order"] is None else f", a filter at Renyi order {budget['order']:g}"
    console.print(f"{'█' * full}{'░' * (40 - full)}")
    console.print(
        f"{math.ceil(1000 * min(gone, 1.0)) / 10:g} % of the budget is spent: epsilon {budget['epsilon']:g} "
        f"at delta {budget['delta']:g}{filtered}"
    )


def _epsilon(value: float | None) -> str:
    from saltflat.privacy.limits import rounded_up

    return "infinite" if value is None else rounded_up(value, 4)
