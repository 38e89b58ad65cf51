"""Asking: never more than was claimed, always on record first, whatever is repeated, copied, killed or gone on with."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from saltflat.data import Examples
from saltflat.errors import BudgetError, CopyError, LedgerError, PrivacyError, SettingError
from saltflat.pate import (
    SGD,
    Cap,
    ConfidentGNMax,
    Counted,
    Filter,
    SmoothedStudent,
    TeacherVotes,
    fitted,
    label,
)
from saltflat.privacy import Budget, Ledger, SecureNoise, SeededNoise, read
from saltflat.tree import Tree

UNANIMOUS = TeacherVotes.of(np.tile(np.arange(50) % 5, (100, 1)), classes=5)


def gnmax(queries: int = 40, answers: int = 30, threshold: float = 50.0) -> ConfidentGNMax:
    return ConfidentGNMax(
        threshold=threshold, sigma1=5.0, sigma2=5.0, limit=Cap(queries=queries, answers=answers)
    )


class Watched:
    """Secure noise that asks, each time before it draws, whether what is about to be known was drawn."""

    private = True

    def __init__(self, spent: Callable[[], Mapping[str, int]]) -> None:
        self.spent, self.tests, self.answers = spent, 0, 0

    def normal(self, like: Tree) -> Tree:
        self.tests += "largest" in like
        self.answers += "votes" in like
        used = self.spent()
        assert self.tests <= used["queries"]
        assert self.answers <= used["answers"]
        return SecureNoise().normal(like)


def test_strong_votes_are_answered_rightly_until_the_cap() -> None:
    spent = Counted()
    found = label(UNANIMOUS, gnmax(), spent)
    assert found.labels.tolist() == (found.queries % 5).tolist()
    assert found.answered == 30 == spent.used["answers"]
    assert (
        found.asked == 30 == spent.used["queries"]
    )  # the answers ran out first, and then nothing more is asked
    assert label(UNANIMOUS, gnmax(), spent).asked == 0


def test_weak_votes_are_asked_until_the_cap_and_not_answered() -> None:
    found = label(UNANIMOUS, gnmax(threshold=200.0), Counted(), block=7)
    assert (found.asked, found.answered) == (40, 0)


@pytest.mark.parametrize("block", [1, 3, 64])
def test_everything_is_drawn_before_its_noise(tmp_path: Path, block: int) -> None:
    path = tmp_path / "a.ledger"
    with Ledger.open(path, dataset="x") as book:
        claim = book.run("one").claim(gnmax().cost)
        on_disk = lambda: read(path).drawn(claim._number)
        noise = Watched(on_disk)
        found = label(UNANIMOUS, gnmax(), claim, noise=noise, block=block)
        assert (noise.tests, noise.answers) == (found.asked, found.answered)
        assert claim.used == {"queries": found.asked, "answers": found.answered}
        assert book.epsilon(1e-5) == pytest.approx(
            gnmax().epsilon(1e-5)
        )  # all of the cap, however little was asked


def test_a_query_that_is_asked_twice_is_paid_twice() -> None:
    spent = Counted()
    label(UNANIMOUS, gnmax(), spent, queries=[3] * 25)
    assert spent.used == {"queries": 25, "answers": 25}
    assert label(UNANIMOUS, gnmax(), spent, queries=[3] * 25).answered == 5


@pytest.mark.parametrize("queries", [[-1], [50], [0.5], [[1]], ["1"], [True, False, None]])
def test_queries_that_are_not_there(queries: list) -> None:
    spent = Counted()
    with pytest.raises(SettingError, match="queries"):
        label(UNANIMOUS, gnmax(), spent, queries=queries)
    assert spent.used == {}


def test_a_copy_of_what_counts_is_refused(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.ledger", dataset="x") as book:
        for each in (Counted(), book.run("one").claim((1.0, 3.0))):
            for way in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(CopyError):
                    way(each)


class TestClaims:
    def test_a_start_that_goes_on_has_what_is_left_and_pays_once(self, tmp_path: Path) -> None:
        path = tmp_path / "a.ledger"
        mechanism = gnmax()
        asked = []
        for start in range(4):
            with Ledger.open(path, dataset="x") as book, book.run(f"start {start}", identity="me") as run:
                claim = run.claim(mechanism.cost)
                asked.append(label(UNANIMOUS, mechanism, claim, queries=range(12)).answered)
        assert asked == [12, 12, 6, 0]
        assert read(path).steps() == {mechanism.cost: 1}

    def test_a_kill_in_the_middle_of_a_block_loses_no_charge(self, tmp_path: Path) -> None:
        class Killed(SecureNoise):
            left = 9

            def normal(self, like: Tree) -> Tree:
                Killed.left -= 1
                if Killed.left < 0:
                    raise KeyboardInterrupt
                return super().normal(like)

        path = tmp_path / "a.ledger"
        book = Ledger.open(path, dataset="x")
        with pytest.raises(KeyboardInterrupt):
            label(
                UNANIMOUS,
                gnmax(),
                book.run("one", identity="me").claim(gnmax().cost),
                noise=Killed(),
                block=20,
            )
        book._drop()  # the process is gone: nothing is settled
        with Ledger.open(path, dataset="x") as again, again.run("two", identity="me") as run:
            claim = run.claim(gnmax().cost)
            assert claim.used == {"queries": 20, "answers": 20}
            assert label(UNANIMOUS, gnmax(), claim).answered == 10

    def test_another_cost_is_another_claim(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "a.ledger", dataset="x") as book, book.run("one") as run:
            first, other = run.claim((1.0, 3.0)), run.claim((1.0, 4.0))
            first.draw(lambda used: True, queries=3)
            assert (first.used, other.used) == ({"queries": 3}, {})
            assert run.charged() == {(1.0, 3.0): 1, (1.0, 4.0): 1}

    def test_the_budget_is_asked_before_anything(self, tmp_path: Path) -> None:
        budget = Budget(epsilon=0.9 * gnmax().epsilon(1e-5), delta=1e-5)
        with Ledger.open(tmp_path / "a.ledger", dataset="x", budget=budget) as book:
            with pytest.raises(BudgetError, match="nothing was charged"):
                book.run("one").claim(gnmax().cost)
            assert book.epsilon(1e-5) == 0

    def test_no_more_is_given_back_than_was_drawn(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "a.ledger", dataset="x") as book:
            claim = book.run("one").claim((1.0, 3.0))
            claim.draw(lambda used: True, queries=2)
            for wrong in (3, True, 1.0, -1):
                with pytest.raises(SettingError):
                    claim.give_back(queries=wrong)
            with pytest.raises(SettingError, match="0 or more"):
                claim.draw(lambda used: True, queries=-1)
            with pytest.raises(BudgetError, match="nothing was drawn"):
                claim.draw(lambda used: used["queries"] <= 2, queries=1)
            assert claim.used == {"queries": 2}

    def test_a_ledger_that_was_changed_meanwhile_allows_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "a.ledger"
        book = Ledger.open(path, dataset="x")
        claim = book.run("one").claim(gnmax().cost)
        path.write_bytes(path.read_bytes() + b"more\n")
        with pytest.raises(LedgerError, match="no further step"):
            label(UNANIMOUS, gnmax(), claim, noise=Watched(lambda: {"queries": 0, "answers": 0}))

    def test_noise_that_can_be_repeated_is_refused_or_stamped(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "a.ledger", dataset="x") as book:
            claim = book.run("one").claim(gnmax().cost)
            with pytest.raises(PrivacyError, match="not private"):
                label(UNANIMOUS, gnmax(), claim, noise=SeededNoise(1))
        with Ledger.open(tmp_path / "b.ledger", dataset="x") as book:
            claim = book.run("one", private=False).claim(gnmax().cost)
            assert label(UNANIMOUS, gnmax(), claim, noise=SeededNoise(1)).answered == 30


def test_noise_is_fresh() -> None:
    tied = TeacherVotes(np.tile([50, 50], (60, 1)), teachers=100)
    mechanism = ConfidentGNMax(threshold=0, sigma1=5, sigma2=5, limit=Filter(epsilon=100, delta=1e-5))
    first, second = (label(tied, mechanism, Counted()).labels.tolist() for _ in range(2))
    assert first != second
    assert 5 < sum(first) < 55


class TestStudents:
    def lessons(self) -> Examples:
        source = torch.Generator().manual_seed(0)
        inputs = torch.randn(50, 6, generator=source, dtype=torch.float64)
        return Examples(inputs, (inputs[:, 0] > 0).long())

    def model(self) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    def test_without_jitter_it_is_plain_sgd(self) -> None:
        """Against torch's own optimizer, in a loop written here."""
        from saltflat.methods.draws import public_draws

        how = SmoothedStudent(epochs=6, batch_size=16, lr=0.1, momentum=0.9, copies=7, sigma=0.0)
        examples, mine, other = self.lessons(), self.model(), self.model()
        fitted(mine, examples, how, seed=5)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(6):
            optimizer.param_groups[0]["lr"] = 0.1 if epoch < 3 else 0.01
            order = torch.randperm(50, generator=public_draws(5, epoch))
            for part in order.split(16):
                optimizer.zero_grad()
                F.cross_entropy(other(examples.inputs[part]), examples.targets[part]).backward()
                optimizer.step()
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
        plain = fitted(self.model(), examples, SGD(epochs=6, batch_size=16, lr=0.1), seed=5)
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), plain.parameters(), strict=True))

    def test_the_gradient_is_the_mean_over_jittered_copies(self) -> None:
        """Of a quadratic loss: many copies give its gradient, and each alone is off by the jitter."""
        model, examples = self.model(), self.lessons()
        params = {name: p.detach() for name, p in model.named_parameters()}
        batch = examples.whole()
        exact = SGD().gradient(model, params, batch, (0,))
        few, many = (
            SmoothedStudent(copies=copies, sigma=0.01).gradient(model, params, batch, (0,))
            for copies in (1, 1000)
        )
        off = lambda found: float(sum((found[name] - exact[name]).norm() ** 2 for name in exact)) ** 0.5
        assert 0 < 5 * off(many) < off(few)

    def test_the_same_seed_gives_the_same_student(self) -> None:
        how = SmoothedStudent(epochs=2, batch_size=16, copies=3, sigma=0.1)
        one, two, three = (fitted(self.model(), self.lessons(), how, seed=s) for s in (1, 1, 2))
        assert torch.equal(one[0].weight, two[0].weight)
        assert not torch.equal(one[0].weight, three[0].weight)

    def test_without_lessons_it_stays_as_it_is(self) -> None:
        none = Examples(torch.zeros(0, 6, dtype=torch.float64), torch.zeros(0, dtype=torch.long))
        assert torch.equal(fitted(self.model(), none, SmoothedStudent())[0].weight, self.model()[0].weight)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"copies": 0},
            {"sigma": -1.0},
            {"sigma": float("nan")},
            {"lr": 0},
            {"epochs": 1.5},
            {"momentum": 1},
        ],
    )
    def test_wrong_settings(self, wrong: dict) -> None:
        with pytest.raises(SettingError, match=next(iter(wrong))):
            SmoothedStudent(**wrong)
