"""A federated run over a post, in a folder: the same record, checkpoints, statement and model as any other run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from saltflat.core.plan import Plan
from saltflat.core.resume import Checkpoints, as_begun
from saltflat.core.step import Safeguards
from saltflat.core.train import Progress, Running, train
from saltflat.errors import BudgetError, SettingError
from saltflat.federated.flower.remote import Remote
from saltflat.privacy.accounting.events import compose
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record import checkpoint
from saltflat.privacy.record.costs import event_of
from saltflat.privacy.record.history import Budget, History, epsilon_of
from saltflat.privacy.record.ledger import Ledger
from saltflat.privacy.record.statement import Declared, Statement, state
from saltflat.runs.begin import Busy, held
from saltflat.runs.execute import finish
from saltflat.runs.identity import begin_identity, identity_of
from saltflat.runs.layout import Folder

TRUST = (
    "what whoever runs the server sees: each clipped update as it arrives, before the noise, and who was drawn",
    "what a client that is asked learns: that it was drawn in that round",
    "the way between the machines, which TLS protects where it is on",
    "one who takes part as several clients: nodes that must be registered keep a client to one",
)


def serve(
    plan: Plan,
    contribution: Remote,
    folder: str | os.PathLike[str],
    *,
    delta: float,
    epsilon: float | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Statement:
    """Train over the contribution's fleet, and keep everything in ``folder``; there, a run that was killed goes on.

    Called inside Flower's ``ServerApp``. Killed and called again with the same arguments, the run goes on after the
    last round that was kept. A round that runs again is charged again, with other noise and another draw. The run ends
    when all planned rounds are taken, or when no further one fits into ``epsilon``: with the weights that it has, and a
    statement that says so.

    Args:
        plan: What runs; its size is the declared number of clients.
        contribution: What `over_flower` gives.
        folder: Where the run is kept. It ends with ledger, statement and model.
        delta: The delta of statement and budget.
        epsilon: The most that the run may cost, with every round that ran again after a kill. Default: what the planned
            rounds cost. To have spare rounds for kills, calibrate the plan with them: ``calibrate(plan, epsilon=8.0,
            delta=0.005, spare=3)``, and give the same epsilon here. Another epsilon than that on record replaces it,
            and the statement says so.
        watch: Called after each round.

    Returns:
        The statement, which is also written into the folder.

    Raises:
        SettingError: The plan costs more than ``epsilon``, or is for another number of clients than the fleet has
            places for; or another process works in the folder.

    Guarantee:
        A round is on record before anything of it is sent, however many clients answer. However often the server is
        killed, no round is taken that would pass ``epsilon``.
    """
    if plan.size != contribution.fleet.clients:
        raise SettingError(
            f"the plan is for {plan.size} clients, and the fleet has places for {contribution.fleet.clients}; both are "
            "the declared number"
        )
    place = Folder(Path(folder).absolute())
    # The budget of the ledger alone says how many rounds may run again.
    checkpoints = Checkpoints(place.checkpoints, every=1, allow_more=True)
    plan = as_begun(checkpoints, plan)
    budget = _budget(plan, epsilon, delta)
    place.path.mkdir(parents=True, exist_ok=True)
    begin_identity(place.path)
    who = identity_of(place.path)
    try:
        hold = held(place)
        with hold, Ledger.open(place.ledger, dataset="clients") as book:
            recorded = book.history.budget
            # A default is worked out anew at every start, and its last digits may differ on another machine.
            if budget is not None and budget != recorded and not (epsilon is None and recorded is not None):
                book.set_budget(budget)
            with book.run(
                str(place.path), unit=contribution.unit, adjacency=plan.adjacency, block=1, identity=who
            ) as run:
                running = Running(physical=plan.size, checkpoints=checkpoints, watch=watch)
                safeguards, whole = Safeguards(meter=run), True
                try:
                    train(plan, contribution, contribution.fleet, safeguards=safeguards, running=running)
                except BudgetError:
                    if (
                        not run.charged()
                    ):  # not even one round fits: that is no end, but a mistake in the settings
                        raise
                    whole = False
                charged, changes = run.charged(), _budgets(book.history)
    except Busy:
        raise SettingError(
            f"another server app works in {place.path}: wait for it, or stop it (flwr list, flwr stop). Another folder "
            "would begin a second record, and what both runs cost adds up"
        ) from None
    if whole or plan.data_driven:
        event = plan.event_on_record(charged)
    else:  # kills, and no results, decided that rounds were left out: what was charged is all that was taken
        event = compose(*(event_of(cost, rounds) for cost, rounds in charged.items()))
    warnings = [] if whole else [_ended_early(place, plan)]
    if len(changes) > 1:
        said = ", then ".join(f"{rounded_up(each.epsilon)} at delta {each.delta:g}" for each in changes)
        warnings.append(f"the most that the run may cost was changed while it went on: epsilon {said}")
    declared = Declared(delta=delta, size=plan.size, unit=contribution.unit)
    found = state(event, declared, adjacency=plan.relation)
    statement = replace(
        found, not_covered=(*found.not_covered, *TRUST), warnings=(*found.warnings, *warnings)
    )
    finish(place, contribution.model, statement)
    return statement


def _budget(plan: Plan, epsilon: float | None, delta: float) -> Budget | None:
    """The most that the run may cost; None for a plan without noise, unless an epsilon is asked for."""
    if any(noise == 0 for phase in plan.phases for noise in phase.noises()):
        cost, order = math.inf, None
    elif plan.data_driven:
        cost, order = plan.epsilon(delta) * (1 + 1e-9), plan.filter(delta).order
    else:
        cost, order = epsilon_of(plan.by_cost(), delta, plan.adjacency), None
    if epsilon is not None and not cost <= epsilon * (1 + 1e-8):
        raise SettingError(
            f"the plan costs epsilon {rounded_up(cost)} at delta {delta:g}, and {epsilon:g} is the most that it may "
            "cost; calibrate it: calibrate(plan, epsilon=..., delta=..., spare=3)"
        )
    if math.isinf(cost):
        return None
    return Budget(epsilon=cost if epsilon is None else epsilon, delta=delta, order=order)


def _budgets(history: History) -> list[Budget]:
    """All budgets that were ever recorded, oldest first."""
    found = [entry.body for entry in history.entries if entry.kind == "budget"]
    return [Budget(each["epsilon"], each["delta"], each["order"]) for each in found]


def _ended_early(place: Folder, plan: Plan) -> str:
    kept = checkpoint.load(place.checkpoints)
    taken = 0 if kept is None else kept.meta["step"]
    return (
        f"the run ended after {taken} of {plan.steps} planned rounds: rounds that were lost when the server stopped "
        "used up the spare ones"
    )
