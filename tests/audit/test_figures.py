"""B6 and B7 with their figures: the audits at full size; `-s` prints what they find."""

from __future__ import annotations

import pytest
from games import plan, seeded

from saltflat.audit import Audited, canary, one_run


def came(audited: Audited, name: str) -> float:
    (control,) = (control for control in audited.controls if control.name == name)
    return control.came


@pytest.mark.slow
def test_b6_many_runs() -> None:
    """2 x 2,000 runs, each a training of its own, of 100 steps on all units at noise 10."""
    audited = canary(plan(), 1e-5, runs=2000, together=1, control_runs=500, safeguards=seeded())
    print(audited.as_text())
    assert round(audited.claim.epsilon, 2) == 4.38
    assert all(bound.certain <= audited.claim.epsilon for bound in audited.bounds)  # at 1 - 1e-4 together
    assert audited.lower >= 3.3
    assert came(audited, "half noise") > 4.38
    assert came(audited, "no canary") <= 0.5
    assert audited.failed == ()


@pytest.mark.slow
def test_b6_side_by_side() -> None:
    """The same figures from runs that share their trainings, a hundred in each."""
    audited = canary(plan(), 1e-5, runs=2000, safeguards=seeded())
    print(audited.as_text())
    assert audited.verdict != "refuted"
    assert audited.lower >= 3.3
    assert audited.failed == ()


def test_b7_one_run() -> None:
    """1,000 canaries in one training."""
    audited = one_run(plan(), 1e-5, canaries=1000, safeguards=seeded())
    print(audited.as_text())
    assert audited.lower <= audited.claim.epsilon
    assert came(audited, "no noise") >= 4.5
    assert came(audited, "no canary") <= 0.5
