"""SAI: sharpness-aware first, plain afterwards, with most of the budget spent on the first phase."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from saltflat.core.plan import Phase, Plan, calibrate
from saltflat.door import AnyMethod
from saltflat.errors import SettingError
from saltflat.methods import DPSGD, SAT
from saltflat.optimizers import SGD
from saltflat.privacy.accounting.calibration import ACCOUNTANTS
from saltflat.privacy.accounting.splits import SPLITS, phases_event
from saltflat.settings import is_fraction, is_number


def sai(
    *,
    steps: tuple[int, int],
    rate: float,
    size: int,
    epsilon: float,
    delta: float,
    methods: tuple[AnyMethod, AnyMethod] = (SAT(0.05), DPSGD()),
    clip_norms: tuple[Any, Any] = (0.1, 0.1),
    optimizers: tuple[Any, Any] = (SGD(lr=2.0, momentum=0.9), SGD(lr=0.1, momentum=0.9)),
    portion: float | None = None,
    budget_split: str = "joint_ratio",
    until: Callable[[Any], bool] | None = None,
) -> Plan:
    """Phase 1: ``steps[0]`` steps of DP-SAT with ``portion`` of epsilon; phase 2: ``steps[1]`` of DP-SGD.

    ``portion`` left out is the paper's: 0.8 up to epsilon 1, and 0.9 above.

    Each pair gives the first and the second phase's setting, so that any two methods, clipping rules and
    optimizers go in: ``methods=(DPLIS(method=SAT(0.05), lr=2.0), DPSGD())`` smooths the first phase. The optimizer
    starts anew in the second.

    ``until`` (S2 to S5: a `Plateau` over a method of `saltflat.methods.switch`) may end the first phase early;
    ``steps[0]`` is then its longest, and the steps that it saves go to the second. Without it the switch is
    fixed (S1).

    *Guarantee*: at most ``epsilon``, by `Plan.event`. With ``until`` by Renyi accounting of the dearest path, which
    costs more noise than a fixed switch.
    Wang et al., sharpness-aware initialization (SAI), USENIX Security 2025. The defaults lie in its search grids.

    >>> plan = sai(steps=(15, 25), rate=0.1, size=1000, epsilon=2.0, delta=1e-5)
    >>> [phase.steps for phase in plan.phases], round(plan.epsilon(1e-5), 1)
    ([15, 25], 2.0)
    >>> plan.phases[0].noise_multiplier < plan.phases[1].noise_multiplier
    True
    """
    pairs = {"steps": steps, "methods": methods, "clip_norms": clip_norms, "optimizers": optimizers}
    for name, pair in pairs.items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise SettingError(f"{name} is a pair, for the first and the second phase; got {pair!r}")
    if portion is None:
        portion = 0.8 if is_number(epsilon) and epsilon <= 1 else 0.9
    if not (is_fraction(portion) and portion > 0):
        raise SettingError(f"portion is the first phase's part of epsilon, between 0 and 1; got {portion!r}")
    phases = tuple(
        Phase(
            method=methods[k],
            steps=steps[k],
            noise_multiplier=1.0,  # the split sets it
            clip_norm=clip_norms[k],
            optimizer=optimizers[k],
            until=until if k == 0 else None,
        )
        for k in (0, 1)
    )
    plan = Plan(phases=phases, rate=rate, size=size)
    portions = (portion, 1 - portion)
    return split_budget(plan, portions=portions, epsilon=epsilon, delta=delta, budget_split=budget_split)


def split_budget(
    plan: Plan,
    *,
    portions: Sequence[float],
    epsilon: float,
    delta: float,
    budget_split: str = "joint_ratio",
    accountant: str = "PLD",
) -> Plan:
    """The plan with noise multipliers that divide (epsilon, delta) over its phases, each with its portion.

    ``budget_split``: "sequential" calibrates each phase to its portion of epsilon alone (the SAI paper's rule, valid
    and wasteful); "joint_ratio" keeps that rule's ratios and spends epsilon jointly; "joint_share" divides the
    cost T_i (exp(1 / sigma_i^2) - 1) itself. See `saltflat.privacy.accounting.splits`. ``accountant`` is `calibrate`'s.

    *Guarantee*: the result costs at most ``epsilon``. The rules know of plain phases only; where a plan holds
    schedules, second samples or a phase that ends early, all noise is scaled so that the whole plan fits.
    """
    if not isinstance(plan, Plan):
        raise SettingError(f"plan is a Plan, whose phases share the budget; got a {type(plan).__name__}")
    if not (isinstance(portions, tuple | list) and all(map(is_fraction, portions))):
        raise SettingError(f"portions are the phases' parts of epsilon, in (0, 1); got {portions!r}")
    if not (isinstance(budget_split, str) and budget_split in SPLITS):
        raise SettingError(f"budget_split is one of {', '.join(SPLITS)}; got {budget_split!r}")
    if not (isinstance(accountant, str) and accountant in ACCOUNTANTS):
        raise SettingError(f"accountant is one of {', '.join(ACCOUNTANTS)}; got {accountant!r}")
    steps = [phase.steps for phase in plan.phases]
    shares = _whole(portions)
    noise = SPLITS[budget_split](
        epsilon=epsilon,
        delta=delta,
        rate=plan.rate,
        steps=steps,
        shares=shares,
        accountant=ACCOUNTANTS[accountant](),
    )
    divided = tuple(replace(p, noise_multiplier=n) for p, n in zip(plan.phases, noise, strict=True))
    result = replace(plan, phases=divided)
    if result.event() == phases_event(plan.rate, noise, steps):
        return result
    if budget_split == "sequential" and result.epsilon(delta) <= epsilon:
        return result  # it wastes by design: less noise than its rule gives is not what was asked for
    return calibrate(result, epsilon=epsilon, delta=delta, accountant=accountant)


def _whole(portions: Sequence[float]) -> tuple[float, ...]:
    """Portions that sum to 1 to the last digit, so that 0.9 and 0.1 are what `sai` makes of 0.9.

    >>> _whole((0.9, 0.1)) == (0.9, 1 - 0.9)
    True
    """
    if len(portions) < 2 or not math.isclose(math.fsum(portions), 1, rel_tol=1e-9):
        return tuple(portions)  # one portion is 1; a wrong sum is for the rule to refuse
    return (*portions[:-1], 1 - math.fsum(portions[:-1]))
