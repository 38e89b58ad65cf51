"""A federated run over a post, in a folder: the same record, checkpoints, statement and model as any other run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from saltflat.core.plan import Plan
from saltflat.core.resume import Checkpoints
from saltflat.core.step import Safeguards
from saltflat.core.train import Progress, Running, train
from saltflat.errors import SettingError
from saltflat.federated.flower.remote import Remote
from saltflat.privacy.record.ledger import Ledger
from saltflat.privacy.record.statement import Declared, Statement, state
from saltflat.runs.begin import held
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
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Statement:
    """Train over the contribution's fleet, and keep everything in ``folder``; there, a run that was killed goes on.

    Called inside Flower's ``ServerApp``. The folder ends with ledger, statement and model; ``watch`` is called after
    each round.

    *Guarantee*: a round is on record before anything of it is sent, however many clients answer. Killed and called
    again with the same plan, it goes on after the last round that was kept; a round that runs again is charged again,
    with other noise and another draw.
    """
    if plan.size != contribution.fleet.clients:
        raise SettingError(
            f"the plan is for {plan.size} clients, and the fleet has places for {contribution.fleet.clients}; both are "
            "the declared number"
        )
    place = Folder(Path(folder).absolute())
    place.path.mkdir(parents=True, exist_ok=True)
    begin_identity(place.path)
    who = identity_of(place.path)
    with (
        held(place),
        Ledger.open(place.ledger, dataset="clients") as book,
        book.run(
            str(place.path), unit=contribution.unit, adjacency=plan.adjacency, block=1, identity=who
        ) as run,
    ):
        running = Running(
            physical=plan.size, checkpoints=Checkpoints(place.checkpoints, every=1), watch=watch
        )
        train(plan, contribution, contribution.fleet, safeguards=Safeguards(meter=run), running=running)
        event = plan.event_on_record(run.charged())
    declared = Declared(delta=delta, size=plan.size, unit=contribution.unit)
    said = state(event, declared, adjacency=plan.relation)
    statement = replace(said, not_covered=(*said.not_covered, *TRUST))
    finish(place, contribution.model, statement)
    return statement
