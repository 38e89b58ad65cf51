"""One call: a model, a loss and data go in, a privately trained model and its privacy statement come out."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from saltflat.clipping import Clip
from saltflat.core.contribution import Loss
from saltflat.core.plan import Plan
from saltflat.core.sampling import Batch
from saltflat.core.step import Safeguards
from saltflat.core.train import Progress, Running, Watch, is_true, train
from saltflat.door import AnyMethod
from saltflat.errors import Interrupted
from saltflat.front.answers import answering
from saltflat.front.given import METHOD, OPTIMIZER, Ready, Settings, declared_by, given, stated
from saltflat.front.shown import Shown, shown
from saltflat.optimizers import Optimizer
from saltflat.privacy.accounting.events import compose, phase_event
from saltflat.privacy.limits import SEEDED, rounded_up
from saltflat.privacy.record.statement import Statement, state
from saltflat.tree import Tree

CTRL_C, WATCH = "Ctrl-C", "watch"


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """What `fit` returns: the model with its new weights, the plan that ran, and what it promises.

    ``stopped`` is empty for a run that took all its steps, else what ended it: "watch" or "Ctrl-C". ``steps`` are those
    that were taken. ``spent`` is what they cost if no result chose when to stop; ``epsilon`` holds whatever chose it.
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
            *(
                f"{type(phase.method).__name__}: {phase.steps} steps, noise multiplier {phase.noise_multiplier:.3g}"
                for phase in plan.phases
            ),
            *(f"warning: {warning}" for warning in statement.warnings),
        ]
    )


@answering
def fit(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    method: AnyMethod = METHOD,
    batch_size: int | None = None,
    epochs: float | None = None,
    clip_norm: float | Clip = 0.1,
    size: int | None = None,
    optimizer: Optimizer = OPTIMIZER,
    plan: Plan | None = None,
    private: bool = True,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
    workers: int = 0,
    safeguards: Safeguards | None = None,
    running: Running | None = None,
    quiet: bool = False,
) -> Fitted:
    """Train ``model`` on private ``data`` within (epsilon, delta); its trained weights are replaced in the end.

    ``loss``: a criterion that gives one loss per example, ``nn.CrossEntropyLoss(reduction="none")``, for data made
    of (inputs, targets); or a function ``loss(predict, batch)`` for anything else. Every nn.Module is taken for a
    criterion, every other callable for a function. ``data``: tensors or arrays of numpy, a tuple or dictionary of
    them, a map-style dataset, which ``workers`` processes may read, `saltflat.data.Examples`; batches go to the model's
    device. Frozen parameters stay as they are.

    The method is DP-SAT at radius 0.03 and the optimizer SGD(lr=2.0, momentum=0.9) unless others are given.
    ``batch_size`` is the expected one: each example joins a step by itself, with probability batch_size / size.
    ``size`` is a public bound on the number of examples; without it that number is read from the data, and the
    statement says so. What is left out follows it: batch_size is half of it, at most 2048; epochs are 10 below 1,000
    examples, 20 below 10,000, 40 from there; delta is the largest power of ten that is at most 1 / (10 size), and at
    most 1e-5.
    ``noise_multiplier``, in the place of epsilon, is the noise divided by the clip norm; the statement has the epsilon.
    ``private=False`` is a baseline: the same steps with neither clip nor noise, stamped as not private everywhere. The
    usual learning rate is then times clip_norm, as gradients are not clipped to it.
    ``views`` and ``augment`` are those of `per_example`. ``plan``, from `sai` or of phases of your own, takes the place
    of method, batch_size, epochs, clip_norm and optimizer; with ``epsilon`` its noise is scaled to fit, without it runs
    as it is. ``safeguards`` holds what the promise rests on beside the plan (sources of noise and sampling, a ledger's
    run as meter), ``running`` what changes no step (the physical batch size, checkpoints, a callback).

    A line on stderr says how far the run is, unless ``quiet``. Ctrl-C lets the step end and returns what there is, with
    ``interrupted`` set; a second one breaks off. SIGTERM, which asks the whole program to end, raises `Interrupted`.
    ``running.watch`` sees the model with its current weights after each step, and ends the run by returning True.

    *Guarantee*: the weights, and every weight on the way, cost at most ``epsilon`` at ``delta`` for one example, added
    or removed, under Poisson sampling. The noise is calibrated and the statement worked out before an example is
    looked at. Inputs must not be scaled by statistics of the data.
    A run that ends early states the whole plan's epsilon, since results may have chosen when; `Fitted.spent` is what
    its steps cost if none did. After a Ctrl-C without a ``watch``, where no result was shown, the steps taken are
    stated. A ``watch`` that looks at private data tells of it by when it stops, and no epsilon covers that.
    Steps that run again after a crash cost more than that. So checkpoints need a ledger's run as the meter, of the
    same name or identity each time, and the statement then counts every step on record for this run.

    >>> import torch, saltflat as sf
    >>> x, y = torch.randn(300, 5), torch.randint(2, (300,))
    >>> criterion = nn.CrossEntropyLoss(reduction="none")
    >>> fit(nn.Linear(5, 2), criterion, (x, y), epsilon=3, method=sf.methods.DPSGD(), quiet=True)
    epsilon 3 at delta 1e-05
    unit: one example; adjacency: add or remove one unit
    sampling: Poisson sampling at rate 0.5; accountant: PLD
    DPSGD: 20 steps, noise multiplier ...
    """
    safeguards, running = safeguards or Safeguards(), running or Running()
    settings = Settings(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        method=method,
        batch_size=batch_size,
        epochs=epochs,
        clip_norm=clip_norm,
        plan=plan,
        optimizer=optimizer,
        size=size,
        private=private,
    )
    with shown(quiet=quiet) as screen:
        known = given(model, loss, data, views=views, augment=augment, workers=workers)
        ready, unit = settings.planned(known.count), known.contribution.unit
        statement = stated(ready, unit, safeguards, running)
        seen = _Seen(screen, running.watch, ready.delta)
        try:
            params = train(
                ready.plan,
                known.contribution,
                known.units,
                safeguards=safeguards,
                running=replace(running, watch=seen),
            )
        except Interrupted as error:
            if (
                error.signal != signal.SIGINT
            ):  # the whole program is asked to end, which is not ours to take back
                raise
            params = seen.interrupted(str(error))
        finally:
            known.units.close()
        if running.checkpoints is not None:
            statement = stated(ready, unit, safeguards, running)  # with what ran again
        taken, spent = seen.steps(ready.plan), seen.spent(statement)
        if seen.stopped:
            statement = _stopped(statement, ready, unit, safeguards, running, seen, spent)
    return Fitted(
        model=model,
        params=params,
        plan=ready.plan,
        statement=statement,
        steps=taken,
        spent=spent,
        stopped=seen.stopped,
    )


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
        if enough and progress.step < progress.steps:
            self.stopped = WATCH
        return enough

    def interrupted(self, why: str) -> Tree:
        assert self.last is not None  # a signal is answered after a step
        self.stopped = CTRL_C
        self._screen.say(f"saltflat: {why}")
        return self.last.ending

    def steps(self, plan: Plan) -> int:
        """All of them, for a run that was finished before it was called again."""
        return plan.steps if self.last is None else self.last.step

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
        event = compose(*(phase_event(*cost, count) for cost, count in seen.last.spent.steps.items()))
        own = state(event, declared_by(ready, unit, safeguards))
        note = (
            f"{place}: epsilon is that of the steps taken, as no result was shown that could have chosen when"
        )
        return replace(own, warnings=(*own.warnings, note))
    note = (
        f"{place}: epsilon is that of the whole plan, as results may have chosen when; if none did, the steps taken "
        f"cost epsilon {rounded_up(spent)}"
    )
    return replace(statement, warnings=(*statement.warnings, note))
