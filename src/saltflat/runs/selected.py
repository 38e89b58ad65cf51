"""The best of a random number of trials, and nothing of the others: its one charge, and how the winner is released."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from saltflat.errors import DataError, SettingError
from saltflat.privacy.record import durable
from saltflat.privacy.record.costs import BestOf, event_of
from saltflat.privacy.record.ledger import Claim, Ledger
from saltflat.privacy.record.statement import Declared, from_json, state
from saltflat.runs.identity import begin_identity, identity_of
from saltflat.runs.layout import IDENTITY, Folder
from saltflat.runs.planned import Planned
from saltflat.runs.sweep import WINNER, Sweep, Trial, released_readings, score_of


def best_of(sweep: Sweep, planned: Sequence[Planned]) -> BestOf | None:
    """What releasing the best alone costs, whichever setting it has; None where all trials are charged.

    *Guarantee*: the theorem is about one mechanism that draws a setting and trains with it; so all settings must cost
    the same, and what a trial may take over all its starts, spare steps too, is what is charged.
    """
    if sweep.mean is None:
        return None
    if any(each.most != planned[0].most for each in planned):
        raise SettingError(
            "--select needs settings that all cost the same, and these differ in noise, rate or steps: sweep what "
            "changes no cost, such as lr or clip_norm, or leave --select out"
        )
    pairs = {cost: n for cost, n in planned[0].most.items() if isinstance(cost, tuple)}
    scheduled = any(callable(phase.noise_schedule) for phase in planned[0].plan.phases)
    if len(pairs) < len(planned[0].most) or scheduled:
        raise SettingError("--select is for Poisson draws and noise without a schedule; leave it out")
    return BestOf(sweep.mean, tuple((rate, noise, n) for (rate, noise), n in pairs.items()))


@contextmanager
def claimed(sweep: Sweep, cost: BestOf, first: Planned, out: Path) -> Iterator[Claim]:
    """The whole selection, charged once, before its first trial; a start after a kill finds it charged.

    *Guarantee*: its lines have no time. It comes here before the first trial and after the last one, and the time in
    between, over that of a trial, is about the number of trials.
    """
    begin_identity(out)
    with (
        Ledger.open(sweep.book(out), dataset=first.recipe.data) as book,
        book.run(
            str(out), unit=first.unit, adjacency=first.plan.adjacency, identity=identity_of(out), timed=False
        ) as run,
    ):
        yield run.claim(cost)


def _released_once(claim: Claim, model: Path) -> None:
    """Put on record which model this selection releases: another one, of a copy of its folder, is not paid for."""
    name = f"model {sha256(model.read_bytes()).hexdigest()[:32]}"
    if name not in claim.used:
        claim.draw(lambda used: sum(used.values()) <= 1, **{name: 1})


def release(
    sweep: Sweep, cost: BestOf, planned: Sequence[Planned], trials: Sequence[Trial], out: Path
) -> None:
    """Move the best trial out of the private folder, with the statement of the selection in the place of its own."""
    scored = [
        (score.key, -k, trial) for k, trial in enumerate(trials) if (score := score_of(out / trial.folder))
    ]
    if not scored:
        raise DataError(
            "no trial ended with a score, so nothing is released; what was charged stays charged. Take "
            f"{out.name} away to begin another sweep, which is charged anew"
        )
    best = Folder(out / max(scored)[2].folder)
    own, recipe = from_json(best.statement.read_text(encoding="utf-8")), planned[0].recipe
    declared = Declared(
        delta=recipe.delta,
        size=planned[0].plan.size,
        unit=own.unit,
        released=(
            "the winner's settings, test score, final weights and every intermediate update",
            "nothing of the other trials: not how many there were, nor their settings, scores or weights",
        ),
        public=own.public,
        features=own.features,
    )
    said = state(event_of(cost), declared, adjacency=planned[0].plan.relation)
    durable.replace(best.statement_text, f"{said.as_text()}\n".encode(), mode=durable.RELEASED)
    durable.replace(best.statement, f"{said.as_json()}\n".encode(), mode=durable.RELEASED)
    durable.replace(best.metrics, released_readings(best.metrics, said.epsilon), mode=durable.RELEASED)
    durable.replace(best.path / IDENTITY, (out / IDENTITY).read_bytes(), mode=durable.RELEASED)
    shutil.rmtree(best.checkpoints, ignore_errors=True)
    with claimed(sweep, cost, planned[0], out) as claim:
        _released_once(claim, best.model)
    best.path.rename(out / WINNER)  # from here on it is released
    durable.sync_folder(out)
