"""Sharded weights: two processes that hold a half each do what one does that holds all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import sharded
import torch
from reference import FixedNoise, flat
from scipy import stats
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import saltflat as sf
from saltflat.core.shards import Dealt, own_source
from saltflat.data import TensorUnits
from saltflat.errors import ModelError, PrivacyError, SettingError
from saltflat.gradients.away import Away
from saltflat.privacy import DiscreteNoise, SecureNoise, SeededNoise
from saltflat.tree import has_shards, whole

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


class TestAlone:
    """In a group of one, whose weights are sharded all the same: the same way through, in little time."""

    @pytest.fixture(autouse=True)
    def group(self, tmp_path: Path) -> Iterator[None]:
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
        yield
        distributed.destroy_process_group()

    def test_a_run_is_what_it_is_without_shards(self) -> None:
        from torch.distributed.fsdp import fully_shard

        def ended(sharding: bool) -> Any:
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
            if sharding:
                fully_shard(model[0])
                fully_shard(model)
            x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            units = TensorUnits((x, (x[:, 0] > 0).long()))
            unit = sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none")))
            of = sharded.plan(method=sf.methods.SAT(radius=0.1), steps=2)
            sampling = np.random.default_rng(1)
            return sf.train(of, unit, units, safeguards=sf.Safeguards(sampling=sampling))

        plain, parts = ended(False), ended(True)
        assert has_shards(parts)
        assert not has_shards(plain)
        torch.testing.assert_close(
            flat({name: whole(leaf) for name, leaf in parts.items()}), flat(plain), rtol=1e-9, atol=1e-12
        )

    @pytest.mark.parametrize("way", ["checkpointing", "function"])
    def test_what_is_followed_in_another_way_without_shards(self, way: str) -> None:
        """A checkpointed function keeps its activations; a custom function may not take a weight."""
        from torch.distributed.fsdp import fully_shard

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                if way == "function":
                    return self.out(
                        torch.tanh(F.linear(x, Rounded.apply(self.first.weight), self.first.bias))
                    )
                return self.out(checkpoint(lambda z: torch.tanh(self.first(z)), x, use_reentrant=False))

        def norms(sharding: bool) -> Tensor:
            torch.manual_seed(3)
            model = Model().double()
            x = torch.randn(5, 3, dtype=torch.float64)
            if sharding:
                fully_shard(model)
            unit = sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none")))
            at = {name: leaf.detach() for name, leaf in model.named_parameters()}
            return unit([at], [1.0], (x, torch.arange(5) % 2)).norms()

        plain = norms(False)
        if way == "function":
            with pytest.raises(ModelError, match="Rounded takes a trained parameter"):
                norms(True)
        else:
            torch.testing.assert_close(norms(True), plain, rtol=1e-9, atol=0)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round(decimals=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def test_a_weight_is_fetched_when_it_is_met_and_again_on_the_way_back() -> None:
    """Without processes: the leaf is here, and `Away` thinks that it is not."""
    weight, x = torch.randn(3, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    asked: list[int] = []

    def fetch(numbers: Any) -> list[Tensor]:
        asked.extend(numbers)
        return [weight.clone() for _ in numbers]

    away = Away([weight], fetch)
    x.requires_grad_()
    with away.near():
        assert weight.shape == (3, 2)  # this can be known without it
        assert asked == []
        y = F.linear(x, weight).tanh().sum()
    assert asked == [0]
    (grad,) = torch.autograd.grad(y, [x])
    assert asked == [0, 0]
    (plain,) = torch.autograd.grad(F.linear(x, weight).tanh().sum(), [x])
    torch.testing.assert_close(grad, plain)


@pytest.mark.parametrize("noise", [DiscreteNoise(), FixedNoise(3)], ids=["discrete", "one's own"])
def test_noise_that_has_no_parts_is_refused(noise: Any) -> None:
    with pytest.raises(PrivacyError, match="has no parts"):
        own_source(noise, ranks_of(0))


def test_noise_in_parts_differs_from_process_to_process_and_from_step_to_step() -> None:
    """Every process has a source of its own, made alike."""
    like = {"w": torch.zeros(50)}
    for made in (SecureNoise, lambda: SeededNoise(3)):
        sources = [made() for _ in range(2)]
        drawn = [
            own_source(source, ranks_of(rank)).normal(like)["w"]
            for rank, source in enumerate(sources)
            for _ in range(2)
        ]
        assert len({tuple(each.tolist()) for each in drawn}) == 4
    assert not SeededNoise(3).part(1).private


def ranks_of(rank: int) -> Any:
    from saltflat.core.group import Group

    return Group(rank, 2)


def test_a_frame_is_refused_where_units_are_dealt_out() -> None:
    with pytest.raises(SettingError, match="frame"):
        Dealt(None, {}).scaled({})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="frame"):
        Dealt(None, {}).dot({})  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_method_is_what_it_is_with_whole_weights(tmp_path: Path) -> None:
    """With the noise off, on a transformer with tied embeddings: what is left is rounding."""
    first, second = ranks.started(sharded.every_method, tmp_path)
    alone = sharded.every_method(0, tmp_path)
    assert not torch.allclose(flat(alone["DPLIS"]), flat(alone["DP-SGD"]), rtol=1e-3)  # there is jitter
    for name, tree in alone.items():
        assert tree.keys() == first[name].keys()
        assert torch.equal(flat(first[name]), flat(second[name])), name
        torch.testing.assert_close(flat(first[name]), flat(tree), rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.slow
def test_each_process_holds_half_and_a_pass_a_few_layers(tmp_path: Path) -> None:
    for found in ranks.started(sharded.memory, tmp_path):
        assert found["model"] == pytest.approx(found["whole"] / 2, rel=0.05)
        assert found["tree"] == pytest.approx(found["whole"] / 2, rel=0.05)
        assert 0 < found["most"] < found["whole"] / 5  # of six blocks and a table
        assert found["left"] == 0


@cache
def ran(job: Any, folder: Path) -> list[dict[str, Any]]:
    """What each process found; started by the first test that asks, which fails if they do."""
    folder.mkdir()
    return ranks.started(job, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [sharded.one_unit, sharded.an_offender], ids=["an empty process", "a unit that fails in one"]
)
def test_two_processes_are_one(job: Any, folder: Path, tmp_path: Path) -> None:
    first, second = (flat(each[job.__name__]) for each in ran(sharded.alike, folder / "alike"))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, flat(job(0, tmp_path)), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_noise_is_on_every_shard_once_and_no_two_are_alike(folder: Path) -> None:
    """Two steps on nobody in each process: the moves are N(0, (lr sigma C / expected)^2), all of them independent."""
    moves = [
        move / sharded.STD for each in ran(sharded.noises, folder / "noises") for move in each["noise_alone"]
    ]
    assert len(moves) == 4
    assert min(map(len, moves)) > 20_000
    for move in moves:
        count = len(move)
        assert abs(float(move.square().mean()) - 1) < 5 * (2 / count) ** 0.5  # chi^2 of so many
        assert stats.kstest(move.numpy(), "norm").pvalue > 1e-6
        assert int((move == 0).sum()) == 0
    for one in range(4):
        for other in range(one):
            count = min(len(moves[one]), len(moves[other]))
            together = float((moves[one][:count] * moves[other][:count]).mean())
            assert abs(together) < 5 / count**0.5


@pytest.mark.slow
def test_numbers_of_a_tree_are_those_of_the_whole_tree(folder: Path, tmp_path: Path) -> None:
    plain = sharded.numbers(0, tmp_path)
    for each in ran(sharded.noises, folder / "noises"):
        found = each["numbers"]
        assert found["size"] == plain["size"]
        assert found["dot"] == pytest.approx(plain["dot"], rel=1e-12)
        assert found["norm"] == pytest.approx(plain["norm"], rel=1e-12)
        torch.testing.assert_close(flat(found["climbed"]), flat(plain["climbed"]), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_noisy_count_is_the_same_for_all(folder: Path) -> None:
    first, second = (flat(each["counted_noise"]) for each in ran(sharded.noises, folder / "noises"))
    assert torch.equal(first, second)
    assert bool(first.isfinite().all())


@pytest.mark.slow
def test_a_run_goes_on_in_a_group_and_without_one(folder: Path) -> None:
    """From one checkpoint, written by the first process, whole: method, optimizer and running mean come back."""
    first, second = (each["resumed"] for each in ran(sharded.keeps, folder / "keeps"))
    assert torch.equal(flat(first["late"]), flat(second["late"]))
    assert not torch.equal(flat(first["early"]), flat(first["late"]))
    torch.testing.assert_close(flat(first["late"]), flat(first["straight"]), rtol=1e-9, atol=1e-12)
    alone = sharded.run_kept(sf.Checkpoints(folder / "keeps" / "early", every=1), group=False)
    torch.testing.assert_close(flat(alone), flat(first["straight"]), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_what_fit_leaves_loads_without_a_group(folder: Path) -> None:
    first, second = (each["fitted"] for each in ran(sharded.keeps, folder / "keeps"))
    assert second["names"] == []
    assert first["seen"] == second["seen"]
    assert first["statement"] == second["statement"]
    assert 0 < first["epsilon"] < float("inf")
    model = sharded.language(sharded=False, dtype=torch.float32)
    assert first["names"] == list(model.state_dict())
    model.load_state_dict(torch.load(folder / "keeps" / "weights.pt", weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(model(sharded.sentences()[0]), first["outputs"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_loop_of_ones_own(folder: Path, tmp_path: Path) -> None:
    alone = sharded.own_loop(0, tmp_path)
    for each in ran(sharded.keeps, folder / "keeps"):
        for way in ("straight", "in two"):
            torch.testing.assert_close(
                flat(each["own_loop"][way]), flat(alone["straight"]), rtol=1e-6, atol=1e-9
            )


REFUSED = {
    "discrete": "0 charged: PrivacyError: .*DiscreteNoise has no parts",
    "fixed": "0 charged: PrivacyError: .*FixedNoise has no parts",
    "another source": "0 charged: PrivacyError: process 1 draws noise from another source .*not private",
    "another plan": "0 charged: PrivacyError: process 1 was given another plan .*noise_multiplier is 0.5",
    "partly": "0 charged: ModelError: parameter 'places' is not sharded",
    "tied apart": "0 charged: ModelError: a parameter that two layers share .* was sharded twice",
    "narrow": "0 charged: ModelError: .*half precision",
    "masked": "0 charged: SettingError: Masked: .*frame",
    "mixing": "0 charged: ModelError: one example's gradient changes when another",
    "idle": "0 charged: ModelError: parameter 'norm.weight' takes no part in the loss",
    "framed": "1 charged: SettingError: .*frame",
    "another schedule": "1 charged: PrivacyError: process 1 would release with noise multiplier 2",
    "one gave up": "1 charged: ModelError: (another process gave up|this will not do)",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", list(REFUSED))
def test_what_cannot_be_done_is_refused_in_all(what: str, folder: Path) -> None:
    for rank, each in enumerate(ran(sharded.refusals, folder / "refusals")):
        words = REFUSED[what] if rank == 0 else REFUSED[what].partition(": ")[2]
        assert re.search(words, each[what]), each[what]
