"""One call: a model, a loss and data go in, a privately trained model and its privacy statement come out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from saltflat.clipping import Clip
from saltflat.core.contribution import Loss
from saltflat.core.plan import Plan
from saltflat.core.sampling import Batch
from saltflat.core.step import Safeguards
from saltflat.core.train import Running, train
from saltflat.door import AnyMethod
from saltflat.front.given import METHOD, OPTIMIZER, Settings, around, given, stated
from saltflat.optimizers import Optimizer
from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.statement import Statement
from saltflat.tree import Tree


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """What `fit` returns: the model with its new weights, the plan that ran, and what it promises."""

    model: nn.Module
    params: Tree
    plan: Plan
    statement: Statement

    @property
    def epsilon(self) -> float:
        """An upper bound on what the run cost; infinite if its noise was seeded, which anybody can repeat."""
        return math.inf if self.statement.stamp else self.statement.epsilon

    @property
    def delta(self) -> float:
        return self.statement.delta

    def __repr__(self) -> str:
        return told(self.statement, self.plan)


def told(statement: Statement, plan: Plan) -> str:
    """Everything that must be said together with an epsilon, in short; `Statement.as_text` says more."""
    lines = [
        f"epsilon {rounded_up(statement.epsilon)} at delta {statement.delta:g}",
        f"unit: one {statement.unit}; adjacency: {statement.adjacency}",
        f"sampling: {statement.sampling}; accountant: {statement.accountant}",
        *(
            f"{type(phase.method).__name__}: {phase.steps} steps, noise multiplier {phase.noise_multiplier:.3g}"
            for phase in plan.phases
        ),
        *(f"warning: {warning}" for warning in statement.warnings),
    ]
    if statement.stamp:
        lines[0] = f"{statement.stamp}; with fresh secret noise it would be {lines[0]}"
    return "\n".join(lines)


def fit(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    method: AnyMethod = METHOD,
    batch_size: int = 2048,
    epochs: float = 40,
    clip_norm: float | Clip = 0.1,
    size: int | None = None,
    optimizer: Optimizer = OPTIMIZER,
    plan: Plan | None = None,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
    safeguards: Safeguards | None = None,
    running: Running | None = None,
) -> Fitted:
    """Train ``model`` on private ``data`` within (epsilon, delta); its trained weights are replaced in the end.

    ``loss``: a criterion that gives one loss per example, ``nn.CrossEntropyLoss(reduction="none")``, for data made
    of (inputs, targets); or a function ``loss(predict, batch)`` for anything else. Every nn.Module is taken for a
    criterion, every other callable for a function. ``data``: tensors, a tuple or dictionary of tensors, a map-style
    dataset, `saltflat.data.Examples`; batches go to the model's device. Frozen parameters stay as they are.

    The method is DP-SAT at radius 0.03 and the optimizer SGD(lr=2.0, momentum=0.9) unless others are given.
    ``batch_size`` is the expected one: each example joins a step by itself, with probability batch_size / size.
    ``size`` is a public bound on the number of examples; without it that number is read from the data, and the
    statement says so.
    ``views`` and ``augment`` are those of `per_example`. ``plan``, from `sai` or of phases of your own, takes the place
    of method, batch_size, epochs, clip_norm and optimizer; with ``epsilon`` its noise is scaled to fit, without it runs
    as it is. ``safeguards`` holds what the promise rests on beside the plan (sources of noise and sampling, a ledger's
    run as meter), ``running`` what changes no result (the physical batch size, checkpoints, a callback).

    *Guarantee*: the weights, and every weight on the way, cost at most ``epsilon`` at ``delta`` for one example, added
    or removed, under Poisson sampling. The noise is calibrated and the statement worked out before an example is
    looked at. Inputs must not be scaled by statistics of the data.
    Steps that run again after a crash cost more than that. So checkpoints need a ledger's run as the meter, of the
    same name or identity each time, and the statement then counts every step on record for this run.

    >>> import torch, saltflat as sf
    >>> x, y = torch.randn(300, 5), torch.randint(2, (300,))
    >>> criterion = nn.CrossEntropyLoss(reduction="none")
    >>> small = {"method": sf.methods.DPSGD(), "batch_size": 60, "epochs": 2}
    >>> fit(nn.Linear(5, 2), criterion, (x, y), epsilon=3, delta=1e-4, **small)
    epsilon 3 at delta 0.0001
    unit: one example; adjacency: add or remove one unit
    sampling: Poisson sampling at rate 0.2; accountant: PLD
    DPSGD: 10 steps, noise multiplier ...
    """
    safeguards, running = around(safeguards, running)
    settings = Settings(epsilon, delta, method, batch_size, epochs, clip_norm, plan, optimizer, size)
    private = given(model, loss, data, views=views, augment=augment)
    plan = settings.planned(private.count)
    unit = private.contribution.unit
    statement = stated(plan, settings, unit, safeguards, running)
    params = train(plan, private.contribution, private.units, safeguards=safeguards, running=running)
    if running.checkpoints is not None:
        statement = stated(plan, settings, unit, safeguards, running)  # with what ran again
    return Fitted(model=model, params=params, plan=plan, statement=statement)
