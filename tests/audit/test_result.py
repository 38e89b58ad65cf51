"""The value of an audit: what it says first, and that a damaged file is never taken for a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from saltflat import fit, methods
from saltflat.audit import MEANING, Audited, Bound, Claim, Control, Interval, read
from saltflat.audit.kept import FILE
from saltflat.errors import SettingError

PASSED = Control(name="half noise", must="come out above the claim, 4.38", came=9.1, passed=True)
GOOD = Audited(
    kind="canary",
    claim=Claim(epsilon=4.377, delta=1e-5),
    bounds=(Bound(by="counts", epsilon=1.6, certain=1.1), Bound(by="noise level", epsilon=3.9, certain=3.2)),
    counts={"runs": 4000, "false positives": 7},
    controls=(PASSED,),
    seconds=12.34,
    about=("Made-up data.",),
    intervals=(Interval(name="AUC", value=0.5, low=0.4, high=0.6),),
)


def with_bound(epsilon: float, certain: float) -> Audited:
    return replace(GOOD, bounds=(Bound(by="counts", epsilon=epsilon, certain=certain),))


@pytest.mark.parametrize(
    ("epsilon", "certain", "verdict"),
    [(4.3, 4.3, "survives"), (4.377, 4.377, "survives"), (4.5, 4.1, "in doubt"), (5.0, 4.4, "refuted")],
)
def test_verdicts(epsilon: float, certain: float, verdict: str) -> None:
    found = with_bound(epsilon, certain)
    assert found.verdict == verdict
    assert found.refuted == (verdict == "refuted")


def test_one_bound_is_enough() -> None:
    low, high = with_bound(1.0, 0.5).bounds[0], with_bound(9.0, 8.0).bounds[0]
    assert replace(GOOD, bounds=(low, high)).refuted
    assert replace(GOOD, bounds=(low, high)).lower == 9.0


def test_the_text_says_everything_that_goes_with_an_epsilon() -> None:
    text = GOOD.as_text()
    assert text.startswith("The claim survives")
    assert "epsilon 4.38 at delta 1e-05; unit: one example; adjacency: add or remove one unit" in text
    assert "by noise level: epsilon is at least 3.90 (confidence 95 %), at least 3.20 (99.99 %)" in text
    assert "Control half noise: 9.10, had to come out above the claim, 4.38: as it must." in text
    assert "4,000 runs, 7 false positives; 12.3 seconds." in text
    for sentence in MEANING:
        assert sentence in text
    assert "does not prove privacy" in text
    assert "disproves the claim, up to the stated confidence" in text


def test_what_makes_a_result_worthless_comes_first() -> None:
    failed = replace(GOOD, controls=(PASSED, replace(PASSED, name="no canary", passed=False)))
    assert failed.as_text().startswith("CONTROLS FAILED (no canary): ")
    assert "survives" not in failed.as_text()
    assert replace(GOOD, controls=()).as_text().startswith("No controls were run")
    assert with_bound(9, 9).as_text().startswith("CLAIM REFUTED")


def test_a_claim_is_read_off_a_statement() -> None:
    import torch
    from torch import nn

    x, y = torch.randn(100, 3), torch.randint(2, (100,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    settings = {"method": methods.DPSGD(), "batch_size": 50, "epochs": 1, "delta": 1e-3}
    fitted = fit(nn.Linear(3, 2), criterion, (x, y), epsilon=2, **settings)
    claim = Claim.of(fitted.statement)
    assert (claim.epsilon, claim.delta, claim.unit) == (fitted.epsilon, 1e-3, "example")


@pytest.mark.parametrize(
    "wrong", [{"epsilon": float("inf")}, {"epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.0}]
)
def test_what_is_no_claim_is_refused(wrong: dict) -> None:
    with pytest.raises(SettingError, match="a claim is"):
        Claim(**{"epsilon": 1.0, "delta": 1e-5, **wrong})


@pytest.mark.parametrize("audited", [GOOD, with_bound(9, 9), replace(GOOD, bounds=(), stamp="x", access="y")])
def test_what_is_written_is_read_again(audited: Audited, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(audited.as_json())
    assert read(tmp_path).value == audited
    assert read(tmp_path / FILE).value == audited


def test_a_missing_file_is_no_trouble(tmp_path: Path) -> None:
    assert read(tmp_path).missing
    assert read(tmp_path / "none.json").missing


def test_damage_is_said_and_never_a_verdict(tmp_path: Path) -> None:
    """Every cut and 3,000 flipped bytes: an audit that says the same, or a trouble; no exception."""
    place, whole = tmp_path / FILE, with_bound(9, 9).as_json().encode()
    source = np.random.default_rng(0)
    damaged = [whole[:cut] for cut in range(0, len(whole) - 2, 7)]
    for _ in range(3000):
        flipped = bytearray(whole)
        flipped[source.integers(len(whole))] ^= 1 << int(source.integers(8))
        damaged.append(bytes(flipped))
    for data in damaged:
        place.write_bytes(data)
        found = read(place)
        assert not found.missing
        assert found.value is None or found.value.refuted or "verdict" not in found.trouble
        if found.value is not None:
            assert found.value.verdict == json.loads(data)["verdict"]
    assert read(place) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "survives"},
        {"controls_failed": True},
        {"kind": "wish"},
        {"claim": None},
        {"claim": {"epsilon": "4"}},
        {"bounds": {}},
        {"bounds": [3]},
        {"seconds": float("nan")},
        {"counts": [1]},
        {"controls": [{"name": "x", "must": "y", "came": 1.0, "passed": 1}]},
        {"meaning": "words"},
    ],
    ids=str,
)
def test_a_file_that_says_something_else_is_damaged(change: dict, tmp_path: Path) -> None:
    told = {**json.loads(with_bound(9, 9).as_json()), **change}
    (tmp_path / FILE).write_text(json.dumps(told))
    found = read(tmp_path)
    assert found.value is None
    assert found.trouble.startswith(f"{FILE} is damaged: ")


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b" " * (1 << 21)])
def test_other_files(data: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert "damaged" in read(tmp_path).trouble


def test_a_later_version_may_say_more(tmp_path: Path) -> None:
    told = json.loads(GOOD.as_json())
    told |= {"version": 2, "news": 1, "claim": {**told["claim"], "more": "x"}}
    (tmp_path / FILE).write_text(json.dumps(told))
    assert read(tmp_path).value == GOOD


def test_a_kept_result_is_read_without_torch() -> None:
    code = "import sys, saltflat.audit.kept; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
