"""One training with canaries in it, seen by an adversary who watches the weights after every step.

A canary is a unit whose gradient is the same at every step, far beyond the clip norm and along a coordinate of its own.
After the clip it is what the accountant thinks of: a vector of length C, in every step that samples it. The adversary
knows the plan and all other units; secret are only the coins that decide which canaries are in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from saltflat import Phase, Plan, Running, Safeguards, per_example, train
from saltflat.audit.rates import Scores
from saltflat.data import TensorUnits
from saltflat.errors import SettingError
from saltflat.optimizers import SGD
from saltflat.privacy.limits import SEEDED
from saltflat.tree import Tree

FAR = 1e3  # clip norms that a canary's gradient is long: whatever the rule, hardly anything is lost to it
BYSTANDERS = 3  # units without a gradient, so that there is somebody to check the model on

Inside = np.ndarray  # bool: which canaries are in


class Progress(Protocol):
    """What a run tells after each step."""

    @property
    def phase(self) -> int: ...

    @property
    def params(self) -> Tree: ...


@dataclass(frozen=True)
class Done:
    """How far an audit is: ``done`` of ``total``, in ``part``."""

    part: str
    done: int
    total: int


Watch = Callable[[Done], None]


def bare(plan: Plan) -> Plan:
    """The plan with its releases as the steps themselves: w_t = w_(t-1) - g_t, and no running mean.

    What an optimizer makes of a release is free, so an adversary may look at it before: the claim covers this too.
    The game is that of a canary which is there or not, in Poisson samples; a plan with other ones is refused.
    """
    if plan.adjacency != "add-or-remove":
        raise SettingError(
            f"an audit plays a canary that is added or removed, and {type(plan.draw).__name__}, the plan's draw, "
            "promises something about replaced ones only: audit the plan with draw=Poisson()"
        )
    phases = tuple(replace(phase, optimizer=SGD(lr=1.0)) for phase in plan.phases)
    return replace(plan, phases=phases, ema=None)


def sensitivity(phase: Phase) -> float:
    """The most that a unit moves the sum: the clip norm, or what the clipping rule says."""
    rule = phase.clip_norm
    return float(rule) if isinstance(rule, int | float) else rule.sensitivity


def log_ratio(z: Tensor, rate: float, noise_multiplier: float) -> Tensor:
    """How much better a canary explains one step's release than none: log of the ratio of the two densities.

        log(1 - q + q exp((2 z - 1) / (2 s^2))),   z ~ N(0, s^2) without and N(1, s^2) with it, when sampled

    z: the release along the canary's coordinate, in clip norms; q: the sampling rate; s: the noise multiplier.

    >>> log_ratio(torch.tensor([0.5]), 1.0, 2.0)
    tensor([0.])
    """
    drawn = (2 * z - 1) / (2 * noise_multiplier**2)
    if rate == 1:
        return drawn
    quiet = torch.full_like(drawn, 1 - rate).log()
    return torch.logaddexp(quiet, drawn + np.log(rate))


@dataclass
class Adversary:
    """Adds up, canary by canary, what each step's release says for its being in.

    ``coordinates`` are the canaries' places in the weights, laid out flat. ``expected`` gives the sum that the other
    units are expected to add at some weights; without it they add nothing. Whatever it guesses, a bound made of its
    scores is valid; the better it knows the plan, the nearer the bound comes to epsilon.
    """

    plan: Plan  # as claimed, whatever is played
    coordinates: Tensor
    last: Tree
    expected: Callable[[Tree, Phase], Tree] | None = None
    scores: Tensor = field(init=False)
    _phase: int = field(default=0, init=False)
    _within: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.scores = torch.zeros(len(self.coordinates), dtype=torch.float64)

    def __call__(self, progress: Progress) -> None:
        if progress.phase != self._phase:
            self._phase, self._within = progress.phase, 0
        phase = self.plan.phases[self._phase]
        released = (self._at(self.last) - self._at(progress.params)) * self.plan.expected_units
        if self.expected is not None:
            released = released - self._at(self.expected(self.last, phase))
        noise = phase.noise_at(self._within)[0]
        self.scores += log_ratio(released / sensitivity(phase), self.plan.rate, noise)
        self.last, self._within = progress.params, self._within + 1

    def _at(self, tree: Tree) -> Tensor:
        """The canaries' coordinates of a tree."""
        flat = torch.cat([leaf.reshape(-1) for leaf in tree.values()])
        return flat[self.coordinates.to(flat.device)].double().cpu()


def play(
    played: Plan,
    inside: Inside,
    *,
    claimed: Plan,
    safeguards: Safeguards,
    watch: Callable[[], None] | None = None,
) -> Scores:
    """A score for each canary, from one training on nothing else: higher ones speak for its being in.

    The model is linear, loss_i = <x_i, w>, so that a unit's gradient is its x. There are no other gradients, which is
    the worst case: nothing hides a canary but the noise and the sampling.
    """
    model = nn.Linear(len(inside), 1, bias=False)
    nn.init.zeros_(model.weight)
    adversary = Adversary(claimed, torch.arange(len(inside)), {"weight": torch.zeros(1, len(inside))})

    def seen(progress: Progress) -> None:
        adversary(progress)
        if watch is not None:
            watch()

    contribution = per_example(model, lambda predict, x: predict(x).squeeze(1))
    train(
        bare(played), contribution, _units(inside, played), safeguards=safeguards, running=Running(watch=seen)
    )
    return adversary.scores.numpy()


def _units(inside: Inside, plan: Plan) -> TensorUnits:
    """The canaries that are in, each along its own coordinate, after a few units without a gradient."""
    size = FAR * max(sensitivity(phase) for phase in plan.phases)
    rows = torch.zeros(BYSTANDERS + int(inside.sum()), len(inside))
    rows[torch.arange(BYSTANDERS, len(rows)), torch.from_numpy(np.flatnonzero(inside))] = size
    return TensorUnits(rows)


def checked(safeguards: Safeguards | None) -> Safeguards:
    """The sources to play with; fresh ones unless given, and never somebody's ledger."""
    if safeguards is not None and safeguards.meter is not None:
        raise SettingError(
            "an audit trains on canaries, which belong to nobody, and counts on no ledger: leave the meter out"
        )
    return safeguards or Safeguards()


def stamp_of(safeguards: Safeguards) -> str:
    """What must be said if noise or sampling could be repeated: then that is what was audited."""
    return "" if safeguards.secret else SEEDED
