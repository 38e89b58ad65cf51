"""Ready-made plans of several phases. A plan touches no data: it says what will run, and what that costs."""

from saltflat.plans.sai import sai, split_budget

__all__ = ["sai", "split_budget"]
