"""F1, F2, F3: whatever clients do, the round ends, it is charged, its noise is whole, and each moves the sum by C."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import posts
import pytest
import torch
from posts import BAD, FIRST, FakePost, data, fixed, fleet, gone, honest, nodes, own_contribution, remote
from reference import FixedNoise, flat, trained
from steps import beside, network, phase, plan
from torch import nn

from saltflat import train
from saltflat.errors import DataError, SettingError
from saltflat.federated import Blur, Climb, Local
from saltflat.federated.flower.remote import Fleet, over_flower
from saltflat.federated.flower.wire import Question
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Gap, Quantile
from saltflat.optimizers import SGD
from saltflat.privacy import Ledger

C = 0.2
QUIET = {"noise_multiplier": 0.0, "optimizer": SGD(lr=1.0), "clip_norm": C}


def rounds(the_plan, post, clients: int = 10, model=None, **more):
    """Train over a post, with noise and draws that can be repeated unless others are given."""
    given = {"noise": FixedNoise(), "sampling": np.random.default_rng(0)}
    the_fleet = fleet(post, clients)
    return train(the_plan, remote(the_fleet, model), the_fleet, **beside(**given | more))


def vector(k: int) -> dict[str, torch.Tensor]:
    """What client k always sends: some are longer than the clip norm."""
    source = torch.Generator().manual_seed(k)
    raw = {n: torch.randn(p.shape, generator=source, dtype=p.dtype) for n, p in trained(network()).items()}
    return {name: leaf * (0.08 + 0.1 * k) / flat(raw).norm() for name, leaf in raw.items()}


def summed(behave, steps: int = 1, size: int | None = None) -> torch.Tensor:
    """What the last of some quiet rounds over everybody adds up to: (w before - w after) x expected."""
    size = size or len(behave)
    seen = [flat(trained(network()))]
    everyone = plan(phase(steps=steps, **QUIET), rate=1.0, size=size)
    post = FakePost(fixed(k, vector(k), how) for k, how in enumerate(behave))
    rounds(everyone, post, size, watch=lambda progress: seen.append(flat(progress.params)))
    assert len(seen) == steps + 1  # every round came to its end
    return (seen[-2] - seen[-1]) * size


class TestDropOuts:
    """F1"""

    @pytest.mark.parametrize("missing", [0, 1, 5, 9, 10])
    def test_noise_and_charge_are_whole_whoever_is_missing(self, missing: int, tmp_path: Path) -> None:
        model, z, bound = nn.Linear(1000, 1000, bias=False), 1.5, 0.3
        before = model.weight.detach().clone()
        sent = {"weight": torch.full((1000, 1000), 1e-4)}  # norm 0.1: nobody is clipped
        post = FakePost(fixed(k, sent, gone if k < missing else honest) for k in range(10))
        once = phase(steps=1, noise_multiplier=z, clip_norm=bound, optimizer=SGD(lr=1.0))
        with Ledger.open(tmp_path / "ledger", dataset="ten") as ledger:
            run = ledger.run("rounds", unit="client", block=1)
            the_fleet = fleet(post, 10)
            guards = beside(meter=run)
            params = train(plan(once, rate=1.0, size=10), over_flower(model, the_fleet), the_fleet, **guards)
            assert run.charged() == {(1.0, z): 1}
        noise = (before - params["weight"]).double() * 10 - (10 - missing) * 1e-4
        assert float(noise.square().mean()) == pytest.approx(
            (z * bound) ** 2, rel=0.0071
        )  # of a million draws
        assert abs(float(noise.mean())) < 5 * z * bound / 1e3

    def test_the_denominator_is_the_declared_number(self) -> None:
        """Nodes that were never there are as those that fall silent; and both as few among few, on another scale."""
        silent, absent = summed([honest] * 3 + [gone] * 7), summed([honest] * 3, size=10)
        assert torch.equal(silent, absent)
        torch.testing.assert_close(absent, summed([honest] * 3))

    def test_nodes_beyond_the_declared_number_are_never_asked(self) -> None:
        post = FakePost(nodes(data(10), [honest] * 10))
        rounds(plan(phase(steps=3, **QUIET), rate=1.0, size=4), post, 4)
        assert {node - FIRST for _, node in post.asked} == {0, 1, 2, 3}

    def test_a_node_that_comes_back_is_asked_again(self) -> None:
        post = FakePost(nodes(data(4), [honest] * 4))

        def watch(progress) -> None:
            post.away = {FIRST + 1} if progress.step in (2, 3) else set()

        rounds(plan(phase(steps=8, **QUIET), rate=1.0, size=4), post, 4, watch=watch)
        at = {round_ for round_, node in post.asked if node == FIRST + 1}
        assert {0, 1, 5, 6, 7} <= at
        assert not at & {2, 3}  # counted from 0: away after two rounds, and again known two later

    def test_nobody_at_all_is_refused_before_anything_is_charged(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "ledger", dataset="ten") as ledger:
            run = ledger.run("rounds", unit="client", private=False, block=1)
            with pytest.raises(
                DataError, match="no client reported within 5 seconds, and nothing was charged"
            ):
                rounds(plan(), FakePost([]), meter=run)
            assert not run.charged()


class TestCounts:
    """F2"""

    @pytest.mark.parametrize("count", [1, 1e9, -1, math.nan, "1e9"])
    def test_what_clients_report_is_never_read(self, count) -> None:
        plain = summed([honest] * 4)
        assert torch.equal(summed([posts.reports(count), honest, honest, posts.reports(count)]), plain)


class TestBadClients:
    """F3"""

    @pytest.mark.parametrize("name", BAD)
    @pytest.mark.parametrize("steps", [1, 2])
    def test_each_kind_moves_the_sum_by_at_most_the_clip_norm(self, name: str, steps: int) -> None:
        """Updates are always the same here, so that the second round's sum does not depend on the first one's."""
        moved, without = (summed([how, honest, honest, honest], steps) for how in (BAD[name], gone))
        assert float((moved - without).norm()) <= C * (1 + 1e-9)

    @pytest.mark.parametrize("name", sorted(set(BAD) - {"huge", "zero", "twice", "flooding", "replayed"}))
    def test_what_is_no_update_adds_nothing(self, name: str) -> None:
        assert torch.equal(summed([BAD[name], honest, honest]), summed([gone, honest, honest]))

    def test_two_replies_count_once(self) -> None:
        assert torch.equal(summed([BAD["twice"], honest]), summed([honest, honest]))
        assert torch.equal(summed([BAD["flooding"], honest]), summed([honest, honest]))

    def test_a_replayed_round_adds_nothing(self) -> None:
        """In the second round a client sends what it sent in the first: the others alone are added."""
        torch.testing.assert_close(
            summed([BAD["replayed"], honest, honest], steps=2), summed([gone, honest, honest], steps=2)
        )
        assert torch.equal(summed([BAD["replayed"], honest]), summed([honest, honest]))  # it was honest once

    def test_a_hundred_mixes_end_and_move_the_sum_by_at_most_c_each(self) -> None:
        chance = random.Random(0)
        ended = 0
        for _ in range(100):
            behave = [BAD[chance.choice(sorted(BAD))] if chance.random() < 0.6 else honest for _ in range(6)]
            total = summed(behave)
            ended += 1
            k = chance.randrange(6)
            without = summed([*behave[:k], gone, *behave[k + 1 :]])
            assert float((total - without).norm()) <= C * (1 + 1e-9)
        assert ended == 100


class TestWhoIsWho:
    def test_a_number_that_two_nodes_give_belongs_to_neither(self) -> None:
        """So leaving out one of the two moves the sum by one clipped update, and not by two."""
        clients = data(4)
        both = nodes(clients, [honest] * 4)
        both[3].client = 0
        post = FakePost(both)
        rounds(plan(phase(steps=1, **QUIET), rate=1.0, size=4), post, 4)
        assert {node - FIRST for _, node in post.asked} == {1, 2}
        alone = FakePost(both[1:])
        rounds(plan(phase(steps=1, **QUIET), rate=1.0, size=4), alone, 4)
        assert {node - FIRST for _, node in alone.asked} == {1, 2, 3}

    @pytest.mark.parametrize("claim", [-1, 4, None, "0", 1.0, True, math.nan, 2**80])
    def test_what_is_no_place_is_not_asked(self, claim) -> None:
        known = nodes(data(4), [honest] * 4)
        known[3].client = claim
        post = FakePost(known)
        rounds(plan(phase(steps=2, **QUIET), rate=1.0, size=4), post, 4)
        assert {node - FIRST for _, node in post.asked} == {0, 1, 2}

    def test_a_node_cannot_become_another_client_later(self) -> None:
        known = nodes(data(3), [honest, honest, posts.reports(0)])
        post = FakePost(known)
        rounds(plan(phase(steps=3, **QUIET), rate=1.0, size=3), post, 3)
        assert [node - FIRST for _, node in post.asked] == [0, 1, 2] * 3

    def test_who_is_drawn_follows_the_coins_of_places_alone(self) -> None:
        """Client 0 is away or there: everybody else is drawn in the same rounds."""
        half = plan(phase(steps=20, **QUIET), rate=0.5, size=6)
        asked = []
        for missing in (set(), {FIRST}):
            post = FakePost(nodes(data(6), [honest] * 6))
            post.away = missing
            rounds(half, post, 6)
            asked.append({pair for pair in post.asked if pair[1] != FIRST})
        assert asked[0] == asked[1]

    @pytest.mark.parametrize(
        "wrong", [{"clients": 0}, {"seconds": 0.0}, {"patience": -1.0}, {"pause": math.nan}]
    )
    def test_settings_are_checked(self, wrong) -> None:
        with pytest.raises(SettingError):
            Fleet(FakePost([]), **({"clients": 3} | wrong))


LOCALS = {
    "plain": Local(batch_size=4, seed=3),
    "decay and momentum": Local(
        batch_size=3, epochs=2, momentum=0.5, weight_decay=0.01, lr_decay=0.9, seed=1
    ),
    "climb": Local(batch_size=4, climb=Climb(0.1), seed=3),
    "blur": Local(batch_size=4, blur=Blur(0.05), seed=3),
    "largest": Local(batch_size=4, keep=0.3, seed=3),
}
METHODS = [SAM(0.1), SAT(0.1), DPLIS(method=SAT(0.1), lr=0.1, copies=2)]


class TestTheSameAsInProcess:
    """With noise off, one seed gives one model on both engines."""

    @pytest.mark.parametrize(
        ("name", "method"),
        [*((name, DPSGD()) for name in LOCALS), *(("decay and momentum", method) for method in METHODS)],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_same_model(self, name: str, method) -> None:
        local, clients = LOCALS[name], data()
        quiet = phase(steps=4, noise_multiplier=0.0, clip_norm=C, optimizer=SGD(lr=1.0), method=method)
        half = plan(quiet, rate=0.5, size=10)
        given = {"noise": FixedNoise(), "sampling": np.random.default_rng(5)}
        here = train(half, own_contribution(local), clients, **beside(**given))
        post = FakePost(nodes(clients, [honest] * 10, local, clip_norm=C))
        there = rounds(half, post, sampling=np.random.default_rng(5))
        torch.testing.assert_close(flat(there), flat(here), rtol=0, atol=1e-6)
        assert float((flat(here) - flat(trained(network()))).norm()) > 1e-3

    def test_losses_and_an_adaptive_clip(self) -> None:
        method = Gap(method=Quantile(SAT(0.1)), radius=0.1, bound=0.5)
        noisy = plan(phase(steps=3, method=method, clip_norm=C), rate=0.5, size=10)
        given = {"noise": FixedNoise(), "sampling": np.random.default_rng(5)}
        here = train(noisy, own_contribution(), data(), **beside(**given))
        post = FakePost(nodes(data(), [honest] * 10))
        there = rounds(noisy, post, sampling=np.random.default_rng(5))
        torch.testing.assert_close(flat(there), flat(here), rtol=0, atol=1e-6)

    def test_nobody_there_tells_no_loss(self) -> None:
        method = Gap(method=SAT(0.1), radius=0.1, bound=0.5)
        silent = FakePost(nodes(data(), [gone] * 10))
        params = rounds(plan(phase(steps=2, method=method, clip_norm=C), rate=1.0, size=10), silent)
        assert torch.isfinite(flat(params)).all()


class TestWhatLeavesAClient:
    def test_no_update_is_longer_than_the_bound(self) -> None:
        model = own_contribution(Local(lr=5.0, seed=0))
        (client,) = data().take(np.array([5]))
        point = trained(network())
        question = Question("train", 0, "n", (posts.packed(point),), (1.0,))
        free = posts.unpacked(posts.Answering(model, math.inf)(question, client), point)
        held = posts.unpacked(posts.Answering(model, C)(question, client), point)
        assert float(flat(free).norm()) > 2 * C
        assert (
            C < float(flat(held).norm()) <= 1.001 * C * (1 + 1e-9)
        )  # a little above: the server sees who was clipped
        torch.testing.assert_close(flat(held) / flat(held).norm(), flat(free) / flat(free).norm())

    @pytest.mark.parametrize(
        "wrong", ["no points", "another model", "nan", "another kind", "rows", "no weights"]
    )
    def test_whatever_fails_an_empty_answer_is_sent(self, wrong: str) -> None:
        model = own_contribution()
        (client,) = data().take(np.array([5]))
        point = trained(network())
        question = Question("train", 0, "n", (posts.packed(point),), (1.0,))
        changed = {
            "no points": replace(question, points=()),
            "another model": replace(question, points=(posts.packed({"w": torch.zeros(2)}),)),
            "nan": replace(question, points=(posts.packed({n: p * math.nan for n, p in point.items()}),)),
            "another kind": replace(question, kind="rows"),
            "no weights": replace(question, weights=()),
        }.get(wrong, question)
        if wrong == "rows":
            client = posts.as_client(
                5, (torch.full((4, 4), math.nan, dtype=torch.float64), client.rows[1][:4])
            )
        assert posts.Answering(model, C)(changed, client) == {}

    def test_a_bound_is_positive(self) -> None:
        for wrong in (0.0, -1.0, math.nan, "1"):
            with pytest.raises(SettingError, match="clip_norm"):
                posts.Answering(own_contribution(), wrong)


def test_bytes_on_the_wire_are_read_back_exactly() -> None:
    for dtype, shape in itertools.product(
        (torch.float64, torch.float32, torch.bfloat16, torch.float16), ((), (0,), (3,), (2, 3))
    ):
        tree = {"a.b": torch.randn(shape).to(dtype), "c": torch.randn(2, 2).T.to(dtype)}
        back = posts.unpacked(posts.packed(tree), tree)
        assert back is not None
        assert all(torch.equal(back[name], leaf) and back[name].dtype == dtype for name, leaf in tree.items())
