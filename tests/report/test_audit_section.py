"""The report's word on audits: verdict first, what a bound may be taken for, whose claim it was, who may see it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from folders import write_run

from saltflat.audit import MEANING, Audited, Bound, Claim, Control
from saltflat.audit.declared import told_access
from saltflat.audit.kept import FILE
from saltflat.audit.result import OF_PUBLIC
from saltflat.landscape import PUBLIC, STAYS_PRIVATE
from saltflat.report.folder import gather
from saltflat.report.page import KEEP, page


def audit(epsilon: float, *, bound: float = 0.5, passed: bool = True, access: str = "") -> Audited:
    return Audited(
        kind="canary",
        claim=Claim(epsilon=epsilon, delta=1e-5),
        bounds=(Bound(by="counts", epsilon=bound, certain=bound),),
        counts={"runs": 4000},
        controls=(Control(name="half noise", must="come out above", came=9.1, passed=passed),),
        seconds=12.3,
        about=("Made-up <data>.",),
        access=access,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def written(run: Path, audited: Audited) -> str:
    (run / FILE).write_text(audited.as_json())
    return page(gather([run]))


def cost(run: Path) -> float:
    (kept,) = gather([run])
    assert kept.spent.epsilon is not None
    return kept.spent.epsilon


def test_a_claim_that_survives(run: Path) -> None:
    text = written(run, audit(cost(run)))
    assert "The claim survives" in text
    assert "epsilon is at least 0.50" in text
    assert "Made-up &lt;data&gt;." in text
    assert all(sentence in text for sentence in MEANING)
    for absent in ("claim refuted", "Another claim", "No audit", KEEP):
        assert absent not in text


def test_a_refuted_claim_is_said_at_the_top(run: Path) -> None:
    text = written(run, audit(cost(run), bound=50.0))
    assert "run: claim refuted." in text[: text.index("<nav")]
    assert "CLAIM REFUTED" in text


def test_failed_controls_come_before_any_number(run: Path) -> None:
    section = written(run, audit(cost(run), passed=False)).split('id="audit"')[1]
    assert section.index("CONTROLS FAILED") < section.index("Lower bound")
    assert "The claim survives" not in section


def test_an_audit_of_another_claim_is_told_apart(run: Path) -> None:
    assert "Another claim was audited:" in written(run, audit(2 * cost(run)))


def test_what_was_read_from_private_examples_makes_the_page_private(run: Path) -> None:
    assert told_access(PUBLIC) == OF_PUBLIC
    assert KEEP not in written(run, audit(cost(run), access=told_access(PUBLIC)))
    assert KEEP in written(run, audit(cost(run), access=told_access(STAYS_PRIVATE)))


def test_a_damaged_audit_costs_its_section_only(run: Path) -> None:
    forged = audit(cost(run), bound=50.0).as_json().replace('"verdict": "refuted"', '"verdict": "survives"')
    (run / FILE).write_text(forged)
    text = page(gather([run]))
    assert "audit.json is damaged: its verdict does not follow from its numbers" in text
    assert "The claim survives" not in text


def test_an_audit_is_not_a_run(tmp_path: Path) -> None:
    from saltflat.errors import DataError

    tmp_path.joinpath(FILE).write_text(replace(audit(1.0)).as_json())
    with pytest.raises(DataError, match="no run is here"):
        gather([tmp_path])
