"""What happens in `fit`: plan, promise, train, and say how it ended."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from saltflat.core.contribution import Loss
from saltflat.core.group import Group
from saltflat.core.plan import Plan
from saltflat.core.shards import kept_whole, settle
from saltflat.core.step import Safeguards
from saltflat.core.train import Ended, Progress, Running, Watch, is_true, trainable, trained
from saltflat.errors import Interrupted
from saltflat.front.given import Ready, Settings, around, declared_by, given, is_table, stated
from saltflat.front.shown import Shown
from saltflat.front.usual import CLIP, OPTIMIZER, TABLE_CLIP, table_optimizer
from saltflat.privacy.accounting.events import REPLACE, adjacency_words, compose
from saltflat.privacy.limits import SEEDED, rounded_up
from saltflat.privacy.record.costs import event_of
from saltflat.privacy.record.statement import Statement, state
from saltflat.tree import Tree, has_shards

SWAPPED = adjacency_words(REPLACE)
CTRL_C, WATCH = "Ctrl-C", "watch"


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """What `fit` returns: the model with its new weights, the plan that ran, and what it promises.

    ``stopped`` is empty for a run that came to its end, else what ended it: "watch" or "Ctrl-C". ``steps`` are those
    that were taken on the way to these weights; a run that went on after a crash may have fewer than planned, which the
    statement's warnings say. ``spent`` is what they cost if no result chose when to stop; ``epsilon`` holds whatever
    chose it.
    """

    model: nn.Module
    params: Tree
    plan: Plan
    statement: Statement
    steps: int
    spent: float
    stopped: str = ""

    @property
    def epsilon(self) -> float:
        """An upper bound on what the run cost; infinite if it is not private: seeded noise, or none."""
        return math.inf if self.statement.stamp else self.statement.epsilon

    @property
    def delta(self) -> float:
        return self.statement.delta

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run."""
        return self.stopped == CTRL_C

    def state_dict(self) -> Tree:
        """The model's ``state_dict()``; if its weights are sharded, whole ones on the CPU, which load without a group.

        Then all processes call it; the first one gets the tensors, the others an empty dictionary.
        """
        settle(self.model)
        state = self.model.state_dict()
        return kept_whole(state, Group.here()) if has_shards(state) else state

    def __repr__(self) -> str:
        return told(self.statement, self.plan)


def told(statement: Statement, plan: Plan) -> str:
    """Everything that must be said together with an epsilon, in short; `Statement.as_text` says more."""
    cost = f"epsilon {rounded_up(statement.epsilon)} at delta {statement.delta:g}"
    if statement.stamp == SEEDED:
        cost = f"{statement.stamp}; with fresh secret noise it would be {cost}"
    elif statement.stamp:
        cost = statement.stamp
    return "\n".join(
        [
            cost,
            f"unit: one {statement.unit}; adjacency: {statement.adjacency}",
            f"sampling: {statement.sampling}; accountant: {statement.accountant}",
            *_guesses(statement),
            *(
                f"{type(phase.method).__name__}: {phase.steps} steps, noise multiplier {phase.noise_multiplier:.3g}"
                for phase in plan.phases
            ),
            *(f"warning: {warning}" for warning in statement.warnings),
        ]
    )


def _guesses(statement: Statement) -> list[str]:
    """What an attacker may guess; nothing where the stamp says that nothing is promised, or that would be no limit."""
    said = rounded_up(100 * statement.membership_accuracy)
    if statement.stamp or float(said) >= 100:
        return []
    asked = (
        f"which of two {statement.unit}s"
        if statement.adjacency == SWAPPED
        else f"whether one {statement.unit}"
    )
    return [
        f"an attacker guesses {asked} was used right in at most {said} % of cases (advantage at most "
        f"{rounded_up(statement.membership_advantage)})"
    ]


def fitted(
    screen: Shown,
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    settings: Mapping[str, Any],
    reading: Mapping[str, Any],
    *,
    safeguards: Safeguards | None,
    running: Running | None,
) -> Fitted:
    """See `fit`: ``settings`` are those of `Settings`, ``reading`` those of `given`."""
    safeguards, running = around(safeguards, running)
    # by identity: whoever writes the same optimizer down has chosen its learning rate
    left_out = settings["clip_norm"] is None and settings["optimizer"] is OPTIMIZER
    asked = Settings(**{**settings, "clip_norm": CLIP} if settings["clip_norm"] is None else settings)
    known = given(model, loss, data, **reading)
    # a pair: a clip norm without its learning rate, or the other way round, was never measured
    if left_out and asked.plan is None and asked.private and is_table(loss, data, asked.method):
        sgd = table_optimizer(asked.size or known.count, asked.epsilon)
        asked = replace(asked, clip_norm=TABLE_CLIP, optimizer=sgd)
    ready, unit = known.planned(asked), known.contribution.unit
    statement = stated(ready, unit, safeguards, running)
    seen, group = _Seen(screen, running.watch, ready.delta), Group.here()
    ended: Ended | None = None
    try:
        ended = trained(
            ready.plan,
            known.contribution,
            known.units,
            safeguards=safeguards,
            running=replace(running, watch=seen),
        )
    except Interrupted as error:
        if error.signal != signal.SIGINT or not group.told(lambda: seen.last is not None):
            raise  # the whole program is asked to end, which is not ours to take back; or no step was taken
        seen.interrupted(str(error))
        params = trainable(model)  # the weights of the last whole step, in whichever process
    else:
        params = ended.at.ending
        if ended.why and group.leads:
            screen.say(f"saltflat: {ended.why}")
    finally:
        known.units.close()

    def ending() -> dict[str, Any]:
        """How it ended: what the first of several processes saw is what all of them return."""
        last = statement
        if running.checkpoints is not None:
            last = stated(ready, unit, safeguards, running)  # with what ran again
        if ended is not None and ended.why:
            last = replace(last, warnings=(*last.warnings, ended.why))
        spent = seen.spent(last)
        taken = seen.last_step if ended is None else ended.at.step - ended.at.dropped
        if seen.stopped:
            last = _stopped(last, ready, unit, safeguards, running, seen, spent)
        return {"statement": last, "steps": taken, "spent": spent, "stopped": seen.stopped}

    return Fitted(model=model, params=params, plan=ready.plan, **group.told(ending))


class _Seen:
    """Watches a run for the screen and for whoever called, and remembers how far it came."""

    def __init__(self, screen: Shown, watch: Watch | None, delta: float) -> None:
        self._screen, self._watch, self._delta = screen, watch, delta
        self.last: Progress | None = None
        self.stopped = ""

    def __call__(self, progress: Progress) -> bool:
        self.last = progress = replace(progress, delta=self._delta)
        self._screen.step(progress)
        enough = self._watch is not None and is_true(self._watch(progress))
        if enough and not progress.is_last:
            self.stopped = WATCH
        return enough

    def interrupted(self, why: str) -> None:
        self.stopped = CTRL_C
        self._screen.say(f"saltflat: {why}")

    @property
    def last_step(self) -> int:
        return 0 if self.last is None else self.last.step

    def spent(self, statement: Statement) -> float:
        if statement.stamp:
            return math.inf
        if self.last is None or not self.stopped:
            return statement.epsilon
        return min(self.last.epsilon(), statement.epsilon)


def _stopped(
    statement: Statement,
    ready: Ready,
    unit: str,
    safeguards: Safeguards,
    running: Running,
    seen: _Seen,
    spent: float,
) -> Statement:
    """The statement of a run that ended early: of the whole plan, if results may have chosen when.

    *Guarantee*: what a run of fewer steps releases is part of what the whole plan releases, whatever chose when.
    The steps taken alone are stated where nothing that was released could be seen before Ctrl-C was pressed.
    """
    assert seen.last is not None
    plan = ready.plan
    place = f"stopped by {seen.stopped} after step {seen.last.step} of {plan.steps}"
    unseen = seen.stopped == CTRL_C and running.watch is None and running.checkpoints is None
    if statement.stamp:
        return replace(statement, warnings=(*statement.warnings, place))
    if unseen and not plan.data_driven:
        event = compose(*(event_of(cost, count) for cost, count in seen.last.spent.steps.items()))
        own = state(event, declared_by(ready, unit, safeguards), adjacency=plan.relation)
        note = (
            f"{place}: epsilon is that of the steps taken, as no result was shown that could have chosen when"
        )
        return replace(own, warnings=(*own.warnings, note))
    note = (
        f"{place}: epsilon is that of the whole plan, as results may have chosen when; if none did, the steps taken "
        f"cost epsilon {rounded_up(spent)}"
    )
    return replace(statement, warnings=(*statement.warnings, note))
