"""Votes stay inside; one unit has one vote; whatever a teacher does, it is at most that."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import random
import traceback
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from saltflat import models
from saltflat.core.mechanism import noised
from saltflat.data import Examples, digits
from saltflat.errors import CopyError, DataError, ModelError, PrivacyError, SettingError
from saltflat.pate import SGD, Layout, TeacherVotes, Teaching, by_example, by_user, votes_of
from saltflat.pate.layout import Indices
from saltflat.pate.teachers import Desk
from saltflat.pate.votes import private_counts
from saltflat.privacy import SeededNoise

SECRET = 7919  # a number of teachers that nothing else here has


def secret_votes() -> TeacherVotes:
    return TeacherVotes([[SECRET, 3], [1, SECRET]], teachers=2 * SECRET)


class TestNothingShows:
    def test_in_repr_text_or_log(self, caplog: pytest.LogCaptureFixture) -> None:
        votes = secret_votes()
        logging.getLogger("any").warning("votes %s %r %s", votes, votes.counts(0), [votes.largest(1)])
        said = f"{votes!r} {votes} {votes.counts(0)} {votes.largest(1)} {caplog.text} {dir(votes)} "
        assert str(SECRET) not in said.replace(str(2 * SECRET), "")
        assert not hasattr(votes, "__dict__")

    @pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_in_copies_or_pickles(self, way) -> None:
        with pytest.raises(CopyError, match="votes are private"):
            way(secret_votes())

    @pytest.mark.parametrize(
        "counts",
        [
            [[SECRET, -SECRET]],
            [[SECRET, math.nan]],
            [[SECRET, math.inf]],
            [[SECRET, 0.5]],
            [[SECRET, SECRET]],
            [SECRET, SECRET],
            [["7919", "x"]],
            [[SECRET], [SECRET, SECRET]],
            None,
        ],
    )
    def test_in_messages(self, counts) -> None:
        with pytest.raises(DataError) as caught:
            TeacherVotes(counts, teachers=SECRET + 1)
        assert str(SECRET) not in str(caught.value)

    def test_in_what_a_report_of_an_error_shows(self) -> None:
        try:
            secret_votes().counts(5)
        except IndexError:
            assert str(SECRET) not in traceback.format_exc()


def test_votes_that_are_no_class_are_no_votes() -> None:
    found = TeacherVotes.of([[0, 1, math.nan], [-1, 1, 2], [9, 1.5, math.inf]], classes=3)
    assert private_counts(found, np.arange(3)).tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 1]]
    assert (found.teachers, found.queries, found.classes) == (3, 3, 3)


@pytest.mark.parametrize("wrong", [{"classes": 1}, {"classes": True}, {"classes": 2.0}])
def test_settings_of_votes(wrong: dict) -> None:
    with pytest.raises(SettingError):
        TeacherVotes.of([[0, 1]] * 3, **wrong)
    with pytest.raises(SettingError, match="teachers"):
        TeacherVotes([[1, 0]], teachers=wrong["classes"])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_one_changed_vote_is_within_both_sensitivities(data: st.DataObject) -> None:
    """A teacher that changes its mind in every query, to a class, to none, or out of range."""
    teachers, queries, classes = (data.draw(st.integers(2, most)) for most in (9, 4, 5))
    choice = st.integers(-2, classes + 1)
    rows = [data.draw(st.lists(choice, min_size=queries, max_size=queries)) for _ in range(teachers + 1)]
    before, after = rows[:-1], [rows[-1], *rows[1:-1]]
    one, other = (TeacherVotes.of(table, classes=classes) for table in (before, after))
    for query in range(queries):
        a, b = one.counts(query), other.counts(query)
        assert float((a.total["votes"] - b.total["votes"]).norm()) <= a.sensitivity + 1e-12
        a, b = one.largest(query), other.largest(query)
        assert abs(float(a.total["largest"] - b.total["largest"])) <= a.sensitivity


def test_the_noise_is_as_wide_as_was_asked() -> None:
    votes, noise = TeacherVotes(np.zeros((1, 4)), teachers=2), SeededNoise(3)
    tests = [float(noised(votes.largest(0), 5.0 / 1.0, noise)["largest"]) for _ in range(4000)]
    answers = torch.stack([noised(votes.counts(0), 5.0 / math.sqrt(2), noise)["votes"] for _ in range(1000)])
    assert np.std(tests) == pytest.approx(5.0, rel=0.05)
    assert float(answers.std()) == pytest.approx(5.0, rel=0.05)


class TestLayouts:
    def test_one_user_changes_one_part_over_100_random_layouts(self) -> None:
        """Rows of all others stay with their teacher, whoever leaves and wherever the rows stood."""
        random = np.random.default_rng(11)
        for _ in range(100):
            people = int(random.integers(2, 30))
            users = random.integers(0, people, int(random.integers(1, 200)))
            teachers, seed = int(random.integers(2, 40)), int(random.integers(1000))
            gone = int(random.choice(users))
            stay = np.flatnonzero(users != gone)
            stay = stay[random.permutation(len(stay))]
            before, after = (by_user(who, teachers, seed=seed) for who in (users, users[stay]))
            assert before.teacher[stay].tolist() == after.teacher.tolist()
            assert len({*before.teacher[users == gone]}) == 1
            parts = before.parts()
            assert sorted(np.concatenate(parts).tolist()) == [*range(len(users))]

    def test_one_user_changes_at_most_one_vote_over_100_random_layouts(self) -> None:
        """With teachers that are any function of their rows: here, a hash of them."""
        random = np.random.default_rng(12)

        def chosen(layout: Layout, rows: Indices) -> list[list[int]]:
            return [
                [hash((number, query, *rows[part].tolist())) % 4 for query in range(6)]
                for number, part in enumerate(layout.parts())
            ]

        for _ in range(100):
            rows = random.integers(0, 1000, 60)
            users = random.integers(0, 12, 60)
            stay = users != random.choice(users)
            teachers = int(random.integers(2, 20))
            one = chosen(by_user(users, teachers), rows)
            other = chosen(by_user(users[stay], teachers), rows[stay])
            assert sum(a != b for a, b in zip(one, other, strict=True)) <= 1

    def test_examples_go_by_what_they_hold(self) -> None:
        split = digits().train
        whole = by_example(split, 20, seed=4)
        less = Examples(split.inputs[1:], split.targets[1:])
        assert by_example(less, 20, seed=4).teacher.tolist() == whole.teacher[1:].tolist()
        assert by_example(split, 20, seed=5).teacher.tolist() != whole.teacher.tolist()
        assert min(map(len, whole.parts())) > 40  # 72 expected
        assert whole.unit == "example"

    def test_names_and_numbers(self) -> None:
        assert (
            by_user([1, 2, 1], 9).teacher.tolist() == by_user(np.array([1.0, 2.0, 1.0]), 9).teacher.tolist()
        )
        assert (
            by_user(np.array(["a", "b"]), 999).teacher.tolist() == by_user(["a", "b"], 999).teacher.tolist()
        )
        for wrong in ([None], [True], [1.5], [[1]], [math.nan]):
            with pytest.raises(DataError, match="users"):
                by_user(wrong, 3)
        for teachers in (1, 0, 2.0, True, 10**9):
            with pytest.raises(SettingError, match="teachers"):
                by_user([1, 2], teachers)  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="seed"):
            by_user([1, 2], 3, seed=-1)

    def test_a_layout_that_loses_a_row_is_refused(self) -> None:
        with pytest.raises(PrivacyError, match="no part"):
            Layout(np.array([0, 5]), 3, "user").parts()


def part_of_digits(count: int = 120) -> tuple[Examples, Examples]:
    split = digits()
    pool = Examples(split.test.inputs[:12], split.test.targets[:12])
    return Examples(split.train.inputs[:count], split.train.targets[:count]), pool


class Moody(nn.Module):
    """Fails, gives NaN, or gives too many classes once its part holds a bright corner; is as sound as any elsewhere."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.body = how, nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bad = bool((x[:, 0, 0, 0] > 5).any()) or getattr(self, "seen", False)
        self.seen = bad
        if bad and self.how == "raises":
            raise RuntimeError("the corner is 7919")
        out = self.body(x)
        if bad and self.how == "nan":
            return out * math.nan
        return torch.cat([out, out + 9], 1) if bad and self.how == "range" else out


def dense(*before: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *before, nn.Linear(64, 10))


class Sure(nn.Module):
    """Divides by the largest number that any of them ever saw."""

    largest: ClassVar[list[float]] = [1.0]

    def __init__(self) -> None:
        super().__init__()
        self.body = dense()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest[0] = max(self.largest[0], float(x.abs().max()))
        return self.body(x / self.largest[0])


class Drawing(nn.Module):
    """Draws whenever it is called, in eval mode, too; fails on a part with a bright corner, before it has drawn."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source, self.body = source, dense()
        self.own = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and bool((x[:, 0, 0, 0] > 5).any()):
            raise RuntimeError("the corner is 7919")
        draws = {
            "torch": lambda: torch.randn(len(x)),
            "numpy": lambda: torch.from_numpy(np.random.normal(size=len(x))),  # noqa: NPY002
            "Python": lambda: torch.tensor([random.gauss(0, 1) for _ in range(len(x))]),
            "a generator of its own": lambda: torch.from_numpy(self.own.normal(size=len(x))),
            "a generator of the module": lambda: torch.from_numpy(COMMON.normal(size=len(x))),
        }
        return self.body(x) * (1 + draws[self.source]().float()[:, None])


COMMON = np.random.default_rng(0)
SOURCES = ("torch", "numpy", "Python", "a generator of its own", "a generator of the module")
ONE, LAYER = dense(), nn.Linear(64, 64)
SHARED = {"a network": lambda: ONE, "a layer": lambda: dense(LAYER), "a memory": Sure}


class TestTeachers:
    how = SGD(epochs=2, batch_size=8)

    @pytest.mark.parametrize("what", SHARED)
    def test_what_several_teachers_share_is_refused(self, what: str) -> None:
        """One example would change the choices of every teacher that is trained after its own."""
        private, pool = part_of_digits()
        with pytest.raises(ModelError, match="changes with what others were trained on"):
            votes_of(Teaching(SHARED[what], self.how, pool, 10), private, by_example(private, 4))

    def test_what_random_layers_draw_is_a_teachers_own(self) -> None:
        """However many batches the teachers before it had, and whatever was seeded."""
        private, pool = part_of_digits()
        teaching = Teaching(lambda: dense(nn.Dropout(0.5)), self.how, pool, 10)
        torch.manual_seed(0)
        first = teaching.teach(3, private)
        torch.rand(7)
        assert (teaching.teach(3, private) == first).all()
        votes_of(teaching, private, by_example(private, 4))

    @pytest.mark.parametrize("change", ["leaves", "makes its teacher fail"])
    @pytest.mark.parametrize("source", SOURCES)
    def test_one_example_changes_no_draws_of_other_teachers(self, source: str, change: str) -> None:
        """Networks that draw in training and when they answer: from streams that all teachers would share."""
        private, pool = part_of_digits()
        teaching = Teaching(lambda: Drawing(source), self.how, pool, 10)
        teaching.check()
        layout = by_example(private, 6)
        other = Examples(private.inputs.clone(), private.targets)
        if change == "leaves":
            other = Examples(private.inputs[1:], private.targets[1:])
        else:
            other.inputs[0, 0, 0, 0] = 9.0

        def chosen(examples: Examples) -> list[np.ndarray]:
            teacher = layout.teacher[-examples.count :]
            torch.manual_seed(42)
            np.random.seed(42)  # noqa: NPY002
            random.seed(42)
            parts = Layout(teacher, 6, "example").parts()
            return [
                teaching.teach(n, Examples(examples.inputs[p], examples.targets[p]))
                for n, p in enumerate(parts)
            ]

        differ = [
            n for n, (a, b) in enumerate(zip(chosen(private), chosen(other), strict=True)) if (a != b).any()
        ]
        assert differ in ([], [int(layout.teacher[0])])

    def test_one_example_changes_one_teacher_to_the_bit(self) -> None:
        private, pool = part_of_digits()
        teaching = Teaching(models.digits_cnn, self.how, pool, 10)
        layout, less = by_example(private, 6), Examples(private.inputs[1:], private.targets[1:])
        before, after = (
            [
                teaching.teach(n, Examples(e.inputs[p], e.targets[p]))
                for n, p in enumerate(by_example(e, 6).parts())
            ]
            for e in (private, less)
        )
        differ = [n for n, (a, b) in enumerate(zip(before, after, strict=True)) if (a != b).any()]
        assert differ in ([], [int(layout.teacher[0])])

    @pytest.mark.parametrize("how", ["raises", "nan", "range"])
    def test_a_teacher_that_fails_abstains_and_nobody_is_told(
        self, how: str, capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
    ) -> None:
        private, pool = part_of_digits()
        layout = by_example(private, 6)
        spoilt = Examples(private.inputs.clone(), private.targets)
        good, bad = (
            votes_of(Teaching(lambda: Moody(how), self.how, pool, 10), e, layout) for e in (private, spoilt)
        )
        spoilt.inputs[0, 0, 0, 0] = 9.0
        bad = votes_of(Teaching(lambda: Moody(how), self.how, pool, 10), spoilt, layout)
        counts = [private_counts(votes, np.arange(12)) for votes in (good, bad)]
        assert np.linalg.norm(counts[0] - counts[1], axis=1).max() <= math.sqrt(2) + 1e-12
        assert (counts[0].sum(1) == 6).all()
        assert "7919" not in "".join([*capfd.readouterr(), caplog.text])

    def test_a_part_without_rows_has_a_teacher_too(self) -> None:
        private, pool = part_of_digits(3)
        votes = votes_of(Teaching(models.digits_cnn, self.how, pool, 10), private, by_example(private, 9))
        assert (private_counts(votes, np.arange(12)).sum(1) == 9).all()

    def test_a_network_that_does_not_fit_is_told_before_private_rows_are_read(self) -> None:
        private, pool = part_of_digits()
        for make in (models.tutorial_cnn, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3))):
            with pytest.raises(ModelError, match="network"):
                votes_of(Teaching(make, self.how, pool, 10), private, by_example(private, 4))
        with pytest.raises(DataError, match="layout is of other data"):
            votes_of(Teaching(models.digits_cnn, self.how, pool, 10), pool, by_example(private, 4))

    def test_they_are_kept_for_their_owner_and_gone_on_with(self, tmp_path) -> None:
        private, pool = part_of_digits()
        teaching, layout, desk = (
            Teaching(models.digits_cnn, self.how, pool, 10),
            by_example(private, 4),
            Desk(tmp_path / "private"),
        )
        first = votes_of(teaching, private, layout, desk=desk)
        assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
        assert "PRIVATE" in (tmp_path / "private" / "README.txt").read_text()
        (tmp_path / "private" / "teacher-000001.npy").unlink()
        (tmp_path / "private" / "teacher-000002.npy").write_bytes(b"half")
        told: list[int] = []
        again = votes_of(teaching, private, layout, desk=desk, watch=lambda done, total: told.append(done))
        assert told == [2, 3, 4]
        modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "private").glob("teacher-*")}
        assert modes == {0o600}
        assert (private_counts(first, np.arange(12)) == private_counts(again, np.arange(12))).all()
        desk.clear()
        assert not (tmp_path / "private").exists()

    @pytest.mark.parametrize(
        "changed",
        ["run", "rows", "labels", "number", "training", "queries", "seed", "network", "choices", "link"],
    )
    def test_what_is_kept_of_anything_else_is_not_believed(self, changed: str, tmp_path) -> None:
        """A teacher that was kept counts for the same run, rows and settings alone."""
        private, pool = part_of_digits(40)
        teaching, layout = Teaching(models.digits_cnn, SGD(epochs=1), pool, 10), by_example(private, 2)
        place = tmp_path / "private"
        Desk(place, "run").open()
        of, parts = teaching.settings(), layout.parts()
        part = lambda number: replace(
            private, inputs=private.inputs[parts[number]], targets=private.targets[parts[number]]
        )
        planted = np.full(pool.count, 3, np.int16)
        for number in (0, 1):
            Desk(place, "run").keep(number, planted, of, part(number))
        assert (Desk(place, "run").kept(0, pool.count, of, lambda: part(0)) == planted).all()
        file, other = place / "teacher-000000.npy", part(0)
        identity = "another run" if changed == "run" else "run"
        if changed == "rows":
            other = replace(other, inputs=other.inputs.flip(0))
        elif changed == "labels":
            other = replace(other, targets=other.targets.flip(0))
        elif changed == "number":
            file.write_bytes((place / "teacher-000001.npy").read_bytes())
        elif changed == "choices":
            file.write_bytes(file.read_bytes()[:-2] + b"\x04\x00")
        elif changed == "link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        of = {
            "training": replace(teaching, how=SGD(epochs=2)),
            "queries": replace(teaching, queries=replace(pool, inputs=pool.inputs.flip(0))),
            "seed": replace(teaching, seed=1),
            "network": replace(
                teaching, make=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
            ),
        }.get(changed, teaching).settings()
        assert Desk(place, identity).kept(0, pool.count, of, lambda: other) is None

    def test_several_processes_choose_as_one_does(self) -> None:
        private, pool = part_of_digits(60)
        teaching, layout = Teaching(models.digits_cnn, self.how, pool, 10), by_example(private, 3)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            here, there = (votes_of(teaching, private, layout, workers=w) for w in (0, 1))
        finally:
            torch.set_num_threads(threads)
        assert (private_counts(here, np.arange(12)) == private_counts(there, np.arange(12))).all()

    def test_workers_out_of_range(self) -> None:
        private, pool = part_of_digits(60)
        for workers in (-1, True, 2.0, 10**6):
            with pytest.raises(SettingError, match="workers"):
                votes_of(
                    Teaching(models.digits_cnn, self.how, pool, 10),
                    private,
                    by_example(private, 3),
                    workers=workers,
                )
