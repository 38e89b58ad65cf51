"""Filters: stop in time when noise, rate or number of steps are chosen from earlier results.

"Every list that could have happened is private enough" does not bound an adaptively chosen list. A filter
fixes its measure of cost in advance, adds up what each step costs, and refuses the step that would pass.
"""

from __future__ import annotations

from dp_accounting.dp_event import DpEvent

from saltflat.errors import AccountingError, BudgetError
from saltflat.privacy.accounting import renyi
from saltflat.privacy.accounting.events import ADD_REMOVE, Adjacency, leaves, step_event
from saltflat.privacy.limits import checked_delta, checked_epsilon, real


class RdpFilter:
    """A budget of (epsilon, delta) for steps chosen as you go, at one Renyi order fixed in advance.

    ``sum over steps of rdp(step, order) <= epsilon - conversion(order, delta)``

    *Guarantee*: whatever the rule that picks the next event, everything that ``spend`` let pass is together
    (epsilon, delta)-private. The bound on offer is ``epsilon``; a smaller one may not be read off the list
    of steps afterwards.

    >>> from saltflat.privacy.accounting.events import phase_event
    >>> budget = RdpFilter(epsilon=3.0, delta=1e-5, order=8.0)
    >>> budget.spend(phase_event(0.04, 2.0, 250))
    >>> budget.spend(phase_event(0.04, 0.5, 250))
    Traceback (most recent call last):
    saltflat.errors.BudgetError: this step costs ...

    Feldman & Zrnic, "Individual Privacy Accounting via a Renyi Filter", 2021.
    """

    def __init__(
        self, *, epsilon: float, delta: float, order: float, adjacency: Adjacency = ADD_REMOVE
    ) -> None:
        epsilon, delta = checked_epsilon(epsilon), checked_delta(delta)
        if not 1.1 <= real("the order", order) <= 1024:
            raise AccountingError(
                f"the order is {order}: it must lie in [1.1, 1024]; take planned_order(event, delta)"
            )
        self._order, self._adjacency = float(order), adjacency
        self._budget = epsilon - renyi.conversion(self._order, delta)
        self._spent = 0.0
        if not self._budget > 0:
            raise AccountingError(
                f"epsilon {epsilon:g} at delta {delta:g} leaves nothing to spend at order {order:g}: "
                "take a larger order, epsilon or delta"
            )

    @property
    def order(self) -> float:
        """The Renyi order fixed at the start."""
        return self._order

    @property
    def spent(self) -> float:
        """How much of the budget is gone, from 0 to 1."""
        return self._spent / self._budget

    def cost(self, event: DpEvent) -> float:
        """How much of the budget ``event`` would take, 1 being all; more than ``1 - spent`` will be refused."""
        curve = renyi.rdp_curve(leaves(event), (self._order,), adjacency=self._adjacency)
        return float(curve[0]) / self._budget

    def spend(self, event: DpEvent) -> None:
        """Charge ``event``, or refuse it with a BudgetError and charge nothing; call it before the step."""
        cost = self.cost(event)
        if not self.spent + cost <= 1:
            raise BudgetError(
                f"this step costs {cost:.3g} of the budget and {1 - self.spent:.3g} is left: stop here, or "
                "take more noise"
            )
        self._spent += cost * self._budget

    def step(self, rate: float, noise_multiplier: float) -> None:
        """Charge one step: a filter can be the meter of a run."""
        self.spend(step_event(rate, noise_multiplier))


def planned_order(event: DpEvent, delta: float, *, adjacency: Adjacency = ADD_REMOVE) -> float:
    """The order to fix for an :class:`RdpFilter` if the run is expected to look like ``event``.

    >>> from saltflat.privacy.accounting.events import phase_event
    >>> planned_order(phase_event(0.04, 1.84, 750), 1e-5)
    7.2
    """
    return renyi.best_order(leaves(event), checked_delta(delta), adjacency=adjacency)
