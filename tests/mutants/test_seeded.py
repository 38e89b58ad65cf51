"""The list of mutants cannot rot: every text is still there, every killer exists, and the page's table is the list."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from run import BROKEN, ROOT, in_page, seeded_text, table
from seeded import HOLES, MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_fits(mutant: Mutant) -> None:
    for file, text in seeded_text(mutant).items():  # ValueError if the text is not there exactly once
        assert text != (ROOT / "src" / "saltflat" / file).read_text()
        ast.parse(text)  # a mutant that cannot be read would die for the wrong reason


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_killer_exists(mutant: Mutant) -> None:
    file, *names = mutant.killed_by.partition("[")[0].split("::")
    inside: list[ast.stmt] = ast.parse((ROOT / file).read_text()).body
    for name in names:
        (found,) = [each for each in inside if getattr(each, "name", None) == name]
        inside = getattr(found, "body", [])


def test_every_hole_has_a_mutant() -> None:
    assert {mutant.hole for mutant in MUTANTS if mutant.hole} == set(HOLES)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_page_has_the_list() -> None:
    assert in_page() == table(), "run: python tests/mutants/run.py --page"


def test_a_mutant_that_no_longer_fits_is_noticed() -> None:
    gone = Mutant("gone", "", "", MUTANTS[0].edits * 2)
    with pytest.raises(ValueError, match="0 times"):
        seeded_text(gone)


def test_a_missing_name_is_no_kill() -> None:
    assert "NameError: name 'x' is not defined".startswith(BROKEN)
