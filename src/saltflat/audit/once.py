"""The one-run audit: many canaries, each in or out by a fair coin, in a single training."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat import Plan, Running, Safeguards, train
from saltflat.audit.declared import declared, told_access
from saltflat.audit.game import Adversary, Done, Progress, Watch, bare, checked, play, stamp_of
from saltflat.audit.planted import Among, chosen_places, expected_sum, planted
from saltflat.audit.rates import Scores
from saltflat.audit.repeated import NULL, above, at_most
from saltflat.audit.result import CONFIDENCE, Audited, Bound, Claim, Control
from saltflat.audit.theorem import Guessed, best, guessed
from saltflat.errors import SettingError
from saltflat.landscape import Access

GUESSES = (0.1, 0.3, 1.0)  # shares of the canaries that are guessed at; fixed before anything is seen
SURE = 0.99  # of the verdict: for 1,000 canaries at delta 1e-5 the theorem permits hardly more

ABOUT = (
    "Each canary was in or out by a fair coin, in one training; the adversary guessed the coins of those that it was "
    "surest of, and said nothing about the others. The bound needs no independence of the canaries. It is looser than "
    "that of many runs: what it cannot show in principle, its no-noise control shows.",
    "Nothing was counted on any ledger.",
)
ALONE = "The canaries were alone, in made-up data on a linear model: nothing hid them but the noise and the sampling."
AMONG = (
    "The canaries were planted among examples, in the model itself, each in a weight of its own; the adversary knew "
    "the examples, and took what they were expected to add away from what it saw."
)


@dataclass(frozen=True)
class Company:
    """Real units to plant canaries among: what one contributes, in which model, and the units themselves.

    The model's first weights are where every training of the audit begins; it ends with them, untouched. The adversary
    reads the units without noise, so ``access`` declares whose they are: `PUBLIC`, or `STAYS_PRIVATE` if the result is
    kept as private as they are (both are in `saltflat.landscape`).
    """

    contribution: Any  # Contribution: per_example(...), per_user(...), or one of your own
    units: Any = field(repr=False)  # Units
    access: Access | None = None

    def __post_init__(self) -> None:
        declared(self.access, "an audit among examples")


def one_run(
    plan: Plan,
    delta: float,
    *,
    canaries: int = 1000,
    company: Company | None = None,
    controls: bool = True,
    safeguards: Safeguards | None = None,
    watch: Watch = lambda done: None,
) -> Audited:
    """Train once with ``canaries`` canaries, each in by a fair coin, and bound epsilon by how many coins are guessed.

    If v of r guesses are right, epsilon is at least the largest at which so many have a chance of at most 5 %:
    `saltflat.audit.theorem.Guessed.chance`. Three numbers of guesses are tried, and paid for by a third of that chance
    for each. ``company`` plants the canaries among real units; without it they are alone, which is the worst case.

    ``controls`` train twice more: without noise, which must come out above the claim (if it cannot, there are too few
    canaries to refute such a claim, and the result says so), and without canaries, where at most 0.5 may be shown.

    >>> import numpy as np, saltflat as sf
    >>> phase = sf.Phase(
    ...     method=sf.methods.DPSGD(), steps=4, noise_multiplier=2.0, clip_norm=1.0, optimizer=sf.optimizers.SGD(lr=1)
    ... )
    >>> plan = sf.Plan(phases=(phase,), rate=1.0, size=100)
    >>> repeatable = sf.Safeguards(noise=sf.privacy.SeededNoise(0), sampling=np.random.default_rng(0))
    >>> audited = one_run(plan, 1e-5, canaries=600, safeguards=repeatable)
    >>> audited.verdict, audited.lower > 0.2, audited.failed
    ('survives', True, ())

    Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023.
    """
    began = time.monotonic()
    if not (isinstance(canaries, int) and canaries >= 2):
        raise SettingError(f"canaries is a whole number of at least 2; got {canaries}")
    unit = "example" if company is None else company.contribution.unit
    claim, sources = Claim(epsilon=plan.epsilon(delta), delta=delta, unit=unit), checked(safeguards)
    coins = sources.sampling.random(canaries) < 0.5
    table = _Table(plan, company, sources, watch)
    bound, found = judged(table.scores("the claim", plan, coins), coins, delta)
    told: tuple[Control, ...] = ()
    if controls:
        loud, _ = judged(table.scores("no noise", plan.scaled(0.0), coins), coins, delta)
        null, _ = judged(table.scores("no canary", plan, np.zeros_like(coins)), coins, delta)
        told = (above(claim, (loud,), "no noise"), at_most(NULL, (null,), "no canary"))
    return Audited(
        kind="one-run",
        claim=claim,
        bounds=(bound,),
        counts={"canaries": canaries, "in": int(coins.sum()), "guesses": found.made, "right": found.right},
        controls=told,
        seconds=time.monotonic() - began,
        about=(ALONE if company is None else AMONG, *ABOUT),
        stamp=stamp_of(sources),
        access="" if company is None else told_access(company.access),
    )


def judged(
    scores: Scores, coins: NDArray[np.bool_], delta: float, guesses: Sequence[float] = GUESSES
) -> tuple[Bound, Guessed]:
    """The bound that guesses by these scores give, and the guesses behind it."""
    several = [guessed(scores, coins, max(1, round(share * len(coins)))) for share in guesses]
    found, epsilon = best(several, delta, CONFIDENCE)
    certain = best(several, delta, SURE)[1]
    return Bound(by="guesses", epsilon=epsilon, certain=certain, certainty=SURE), found


@dataclass(frozen=True)
class _Table:
    """Where the game is played, alone or in company."""

    plan: Plan
    company: Company | None
    safeguards: Safeguards
    watch: Watch

    def scores(self, part: str, played: Plan, inside: NDArray[np.bool_]) -> Scores:
        """What one training says for each canary's being in."""
        steps = 0

        def tick() -> None:
            nonlocal steps
            steps += 1
            self.watch(Done(part, steps, played.steps))

        if self.company is None:
            return play(played, inside, claimed=self.plan, safeguards=self.safeguards, watch=tick)
        return self._in_company(self.company, played, inside, tick)

    def _in_company(
        self, company: Company, played: Plan, inside: NDArray[np.bool_], tick: Callable[[], None]
    ) -> Scores:
        model, units = company.contribution.model, company.units
        first = copy.deepcopy(model.state_dict())
        params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        places = chosen_places(params, len(inside), self.safeguards.sampling)
        expected = expected_sum(self.plan, company.contribution, units)
        adversary = Adversary(self.plan, places, params, expected)

        def seen(progress: Progress) -> None:
            adversary(progress)
            tick()

        try:
            train(
                bare(played),
                planted(played, company.contribution, units.count),
                Among(units, places[torch.from_numpy(inside)]),
                safeguards=self.safeguards,
                running=Running(watch=seen),
            )
        finally:
            model.load_state_dict(first)
        return adversary.scores.numpy()
