"""What listed runs cost together: composed once, named in full, and refused where it cannot be known."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from folders import DELTA, NOISE, RATE, STEPS, write_run, write_statement

from saltflat.privacy.limits import rounded_up
from saltflat.privacy.record.history import epsilon_of
from saltflat.privacy.record.ledger import Ledger
from saltflat.report.card import card
from saltflat.report.folder import gather
from saltflat.report.joint import Joint, joint
from saltflat.report.page import page


def bare(path: Path) -> Path:
    """A run without a ledger, quick to draw."""
    write_run(path)
    for file in ("ledger.jsonl", "ledger.jsonl.head", "metrics.jsonl"):
        (path / file).unlink()
    return path


def charged(path: Path, **settings: str | bool) -> Path:
    """The same with a ledger whose run is of another kind."""
    bare(path)
    with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
        book.run("a run", **settings).charge(RATE, NOISE, steps=STEPS)  # type: ignore[arg-type]
    return path


def on_other_data(path: Path) -> Path:
    text = (charged(path) / "recipe.toml").read_text()
    (path / "recipe.toml").write_text(text.replace('data = "digits"', 'data = "mnist"'))
    return path


def only(*paths: Path, shared: Path | None = None) -> Joint:
    (found,) = joint(gather(paths, shared=shared))
    return found


def test_a_run_on_other_data_takes_nothing_away(tmp_path: Path) -> None:
    paths = [charged(tmp_path / "one"), charged(tmp_path / "two"), on_other_data(tmp_path / "other")]
    expected = epsilon_of({(RATE, NOISE): 2 * STEPS}, DELTA, "add-or-remove")
    assert only(*paths).epsilon == pytest.approx(expected)
    assert only(*paths).names == ("one", "two")
    said = f"together epsilon {rounded_up(expected, 4)} at delta 10⁻⁵ (unit: one example; adjacency: add or remove one"
    runs = gather(paths)
    header, _, rest = page(runs).partition("<main")
    assert f"Epsilon {rounded_up(expected, 4)} at delta 10⁻⁵ for both runs on digits" in header
    for text in (rest.partition("<table")[0], card(runs)):
        assert said in text
        assert "one, two, all on digits" in text
    assert "all on digits" not in card([runs[2], *runs[:2]])  # the card of the run on other data
    assert joint(runs[1:]) == []


def test_steps_that_results_chose_are_not_added_up(tmp_path: Path) -> None:
    """What was charged is less than what may have been chosen, and a list that was chosen has no such sum."""
    path = bare(tmp_path / "two")
    with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
        run = book.run("a run")
        run.choose({(RATE, NOISE): STEPS, (RATE, 2 * NOISE): STEPS})
        run.charge(RATE, 2 * NOISE, steps=3)
    found = only(charged(tmp_path / "one"), path)
    assert found.epsilon is None
    assert "results chose the steps of two" in found.why


def test_a_shared_ledger_is_not_counted_twice(tmp_path: Path) -> None:
    paths = [bare(tmp_path / "one"), bare(tmp_path / "two")]
    with Ledger.open(tmp_path / "all.ledger", dataset="digits") as book:
        for path, steps in zip(paths, (40, 30), strict=True):
            book.run(str(path)).charge(RATE, NOISE, steps=steps)
        book.run(str(paths[0])).charge(RATE, 2.0, steps=3)  # went on after a crash
        book.run("not listed").charge(RATE, 1.0, steps=9)
    for path in paths:
        (path / "statement.json").unlink()
    found = only(*paths, shared=tmp_path / "all.ledger")
    assert found.epsilon == pytest.approx(
        epsilon_of({(RATE, NOISE): 70, (RATE, 2.0): 3}, DELTA, "add-or-remove")
    )


def test_copies_of_a_ledger_are_not_counted_twice(tmp_path: Path) -> None:
    path = charged(tmp_path / "one")
    shutil.copytree(path, tmp_path / "copy")
    with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
        book.run("again").charge(RATE, NOISE, steps=5)
    expected = epsilon_of({(RATE, NOISE): STEPS + 5}, DELTA, "add-or-remove")
    assert only(path, tmp_path / "copy").epsilon == pytest.approx(expected)


def test_the_largest_delta_counts(tmp_path: Path) -> None:
    paths = [charged(tmp_path / "one"), charged(tmp_path / "two")]
    write_statement(paths[1], delta=1e-4, epsilon=0.8)
    found = only(*paths)
    assert found.delta == 1e-4
    assert found.epsilon == pytest.approx(epsilon_of({(RATE, NOISE): 2 * STEPS}, 1e-4, "add-or-remove"))


def test_why_there_is_no_number(tmp_path: Path) -> None:
    good, bad = charged(tmp_path / "one"), charged(tmp_path / "damaged")
    (bad / "ledger.jsonl").write_bytes(b"{}\n")
    more = charged(tmp_path / "more")
    write_statement(more, epsilon=2.5)
    for other, why in (
        (bad, "the ledger of damaged is damaged or unusable"),
        (bare(tmp_path / "bare"), "bare has no ledger, and a statement does not tell the steps"),
        (charged(tmp_path / "seeded", private=False), "seeded is NOT PRIVATE: seeded"),
        (charged(tmp_path / "users", unit="user"), "their units differ (example, user)"),
        (
            charged(tmp_path / "swap", adjacency="replace"),
            "their adjacencies differ (add or remove, replace)",
        ),
        (more, "more has a statement of more than its ledger has on record"),
    ):
        found = only(good, other)
        assert (found.epsilon, found.why) == (None, why)
        assert f"no joint epsilon can be given, because {why}" in found.as_text()
