"""What is put on record is what runs: one check, passed before the first step wherever steps are charged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from saltflat.core.plan import Plan
from saltflat.core.step import Safeguards
from saltflat.errors import PrivacyError, SettingError
from saltflat.privacy.noise import is_secret
from saltflat.privacy.record.costs import ADJACENCIES, Cost


@runtime_checkable
class Account(Protocol):
    """A meter that says whose privacy its steps cost: a ledger's run."""

    @property
    def stamp(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def adjacency(self) -> str: ...

    def choose(self, planned: Mapping[Cost, int]) -> None: ...


def check_draws(plan: Plan, contribution: object) -> None:
    """Refuse draws of a fixed number for units that remember earlier steps (``remembers``): error memories of clients.

    A memory tells who was drawn before. Under `Poisson` a unit's draws are its own, and the cost of a step is that of a
    unit without one; under draws without replacement they hang together, and no bound is known.
    """
    if plan.adjacency != ADJACENCIES[0] and getattr(contribution, "remembers", False):
        raise PrivacyError(
            "units that remember what they left out (feedback) have a known cost with draw=Poisson() only, and the "
            f"plan draws by {type(plan.draw).__name__}: drop feedback, or draw so"
        )


def check_size(plan: Plan, count: int) -> None:
    """Refuse more units than the plan declares where a fixed number is drawn: the rest would never be drawn.

    `Poisson` draws every unit, however many there are; the declared size only divides the sum. A refusal there would
    depend on whether one unit more is in the data.

    Args:
        plan: Declares its size. The message says it, and not the number of units.
        count: The number of units in the data.

    Raises:
        SettingError: Units would never be drawn.
    """
    if plan.adjacency != ADJACENCIES[0] and count > plan.size:
        raise SettingError(
            f"the data holds more than the {plan.size} units that the plan declares, and the rest would never be "
            "drawn; set its size to a public bound"
        )


def check_record(plan: Plan, unit: str, safeguards: Safeguards) -> None:
    """Refuse to charge a ledger's run that says something else than what is about to run; no step is taken before.

    Compared are noise and sampling (private, or stamped as not), the unit and the adjacency. If results decide when
    the noise changes, this is put on record too. A meter that is no ledger's run, such as a filter, says none of it.
    """
    if type(plan) is not Plan:
        raise SettingError(
            f"a plan is a Plan; got a {type(plan).__name__}: a class of its own could cost something else than it runs"
        )
    run = safeguards.meter
    if not isinstance(run, Account):
        return
    if not run.stamp:
        _check_secret(safeguards)
    if run.unit != unit:
        raise PrivacyError(
            f"one {unit} is a unit here, and the ledger's run would say one {run.unit}: open it with unit={unit!r}"
        )
    if run.adjacency != plan.adjacency:
        raise PrivacyError(
            f"the plan draws by {type(plan.draw).__name__}, and costs what it does under adjacency "
            f"{plan.adjacency!r}; the ledger's run would say {run.adjacency!r}: open it with "
            f"adjacency={plan.adjacency!r}"
        )
    if plan.data_driven:
        run.choose(plan.by_cost())


def _check_secret(safeguards: Safeguards) -> None:
    """Noise and samples that can be repeated protect nobody."""
    for name in ("noise", "sampling"):
        if not is_secret(getattr(safeguards, name)):
            raise PrivacyError(
                f"the {name} says that it is not private, and the ledger's run would not say so: open it with "
                "private=False, or leave the source out, and a secret one is taken"
            )
