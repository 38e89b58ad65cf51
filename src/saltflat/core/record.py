"""What is put on record is what runs: one check, passed before the first step wherever steps are charged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from saltflat.core.plan import Plan
from saltflat.core.sampling import is_secret
from saltflat.core.step import Safeguards
from saltflat.errors import PrivacyError
from saltflat.privacy.record.format import ADJACENCIES

ADJACENCY = ADJACENCIES[0]  # what `Plan.epsilon` is about: one unit is added or removed


@runtime_checkable
class Account(Protocol):
    """A meter that says whose privacy its steps cost: a ledger's run."""

    @property
    def stamp(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def adjacency(self) -> str: ...

    def choose(self, planned: Mapping[tuple[float, float], int]) -> None: ...


def check_record(plan: Plan, unit: str, safeguards: Safeguards) -> None:
    """Refuse to charge a ledger's run that says something else than what is about to run; no step is taken before.

    Compared are noise and sampling (private, or stamped as not), the unit and the adjacency. If results decide when
    the noise changes, this is put on record too. A meter that is no ledger's run, such as a filter, says none of it.
    """
    run = safeguards.meter
    if not isinstance(run, Account):
        return
    if not run.stamp:
        _check_secret(safeguards)
    if run.unit != unit:
        raise PrivacyError(
            f"one {unit} is a unit here, and the ledger's run would say one {run.unit}: open it with unit={unit!r}"
        )
    if run.adjacency != ADJACENCY:
        raise PrivacyError(
            f"a plan costs what it does for one unit that is added or removed, and the ledger's run would say "
            f"{run.adjacency!r}: open it with adjacency={ADJACENCY!r}"
        )
    if plan.data_driven:
        run.choose(plan.by_cost())


def _check_secret(safeguards: Safeguards) -> None:
    """Noise and samples that can be repeated protect nobody."""
    sources = {"noise": safeguards.noise.private, "sampling": is_secret(safeguards.sampling)}
    for name, private in sources.items():
        if not private:
            raise PrivacyError(
                f"the {name} says that it is not private, and the ledger's run would not say so: open it with "
                "private=False, or leave the source out, and a secret one is taken"
            )
