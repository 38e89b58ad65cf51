"""A contribution is open: a client that trains by itself is one class, and everything else stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, flat
from steps import CRITERION, beside, examples, network, phase, plan
from torch import Tensor, nn
from torch.func import functional_call

from saltflat import Checkpoints, Plan, train
from saltflat.core.contribution import Contribution
from saltflat.errors import ModelError
from saltflat.gradients.chunk import Kept
from saltflat.gradients.parts import Dense
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Gap, Quantile
from saltflat.optimizers import SGD
from saltflat.privacy import Ledger

Client = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Clients:
    """Units that are no rows: each is a data set of its own, of its own length."""

    own: Sequence[Client]

    @property
    def count(self) -> int:
        return len(self.own)

    def take(self, indices: np.ndarray) -> list[Client]:
        return [self.own[int(k)] for k in indices]


@dataclass(frozen=True)
class PerClient:
    """g_i = w - (w after ``steps`` steps of gradient descent on the client's own rows)."""

    model: nn.Module
    lr: float = 0.3
    steps: int = 3
    unit: str = "client"

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: list[Client]) -> Kept:
        if not batch:
            return Kept(0, [], points[0])
        added = [self._added(points, weights, client) for client in batch]
        parts = [Dense(name, torch.stack([each[name] for each in added])) for name in points[0]]
        return Kept(len(batch), parts, points[0])

    def losses(self, points: Sequence[Tree], batch: list[Client]) -> Tensor:
        with torch.no_grad():
            return torch.stack([torch.stack([self._loss(p, client) for client in batch]) for p in points])

    def check(self, params: Tree, take, count: int):
        for client in take(np.arange(min(count, 2))):
            if client[0].ndim != 2:
                raise ModelError("a client's rows are a matrix")
        return Unwatched()

    def _added(self, points: Sequence[Tree], weights: Sequence[float], client: Client) -> Tree:
        ways = [self._trained(point, client) for point in points]
        triples = list(zip(weights, points, ways, strict=True))
        return {n: sum(w * (before[n] - after[n]) for w, before, after in triples) for n in points[0]}

    def _trained(self, point: Tree, client: Client) -> Tree:
        for _ in range(self.steps):
            leaves = {n: p.detach().requires_grad_() for n, p in point.items()}
            grads = torch.autograd.grad(self._loss(leaves, client), list(leaves.values()))
            point = {n: p.detach() - self.lr * g for (n, p), g in zip(leaves.items(), grads, strict=True)}
        return point

    def _loss(self, point: Tree, client: Client) -> Tensor:
        x, y = client
        return CRITERION(functional_call(self.model, point, (x,)), y).mean()


class Unwatched:
    """Nothing more to look at as training goes on."""

    def changed(self) -> bool:
        return False

    def __call__(self, params: Tree, batch: list[Client] | None) -> None: ...


def clients(count: int = 7) -> list[Client]:
    """Each has more rows than the one before."""
    return [examples(2 + k, seed=k) for k in range(count)]


def rounds(the_plan: Plan, own: list[Client], **more) -> Tree:
    given = {"noise": FixedNoise(), "sampling": np.random.default_rng(0), "physical": 3}
    contribution: Contribution = PerClient(network())
    return train(the_plan, contribution, Clients(own), **beside(**given | more))


def test_without_clip_and_noise_it_is_federated_averaging() -> None:
    no = {"noise_multiplier": 0.0, "clip_norm": float("inf"), "optimizer": SGD(lr=1.0)}
    params = rounds(plan(phase(steps=4, **no), rate=1.0, size=7), clients())
    one = PerClient(network())
    server = {n: p.detach() for n, p in network().named_parameters()}
    for _ in range(4):
        models = [one._trained(server, client) for client in clients()]
        server = {n: sum(model[n] for model in models) / 7 for n in server}
    torch.testing.assert_close(flat(params), flat(server), rtol=1e-9, atol=1e-12)


METHODS = [
    DPSGD(),
    SAM(0.1),
    SAT(0.1),
    Quantile(DPLIS(method=SAT(0.1), lr=0.1, copies=2)),
    Gap(method=SAT(0.1), radius=0.1, bound=0.5),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_runs_on_clients(method) -> None:
    params = rounds(plan(phase(steps=3, method=method)), clients())
    assert torch.isfinite(flat(params)).all()


@pytest.mark.parametrize("gone", range(7))
def test_a_client_moves_the_sum_by_at_most_the_clip_norm(gone: int) -> None:
    """One round from the same weights, with and without a client whose rows are huge."""
    own = clients()
    own[gone] = (own[gone][0] * 1e6, own[gone][1])
    quiet = phase(steps=1, noise_multiplier=0.0, clip_norm=0.2, optimizer=SGD(lr=1.0))
    everyone = plan(quiet, rate=1.0, size=7)
    moved = flat(rounds(everyone, own)) - flat(rounds(everyone, own[:gone] + own[gone + 1 :]))
    assert float(moved.norm()) * everyone.expected_units <= 0.2 * (1 + 1e-6)


def test_rounds_are_charged_kept_and_gone_on_with(tmp_path: Path) -> None:
    four = plan(phase(steps=4, method=SAT(0.1)))
    kept = Checkpoints(tmp_path / "kept", every=1)

    class Enough(Exception):
        pass

    def watch(progress) -> None:
        if progress.step == 2:
            raise Enough

    noise = FixedNoise()
    with Ledger.open(tmp_path / "ledger", dataset="clinics") as ledger:
        run = ledger.run("rounds", unit="client", private=False, block=1)
        with pytest.raises(Enough):
            rounds(four, clients(), meter=run, checkpoints=kept, noise=noise, watch=watch)
        went_on = rounds(four, clients(), meter=run, checkpoints=kept, noise=noise)
        assert sum(run.charged().values()) == 5  # the step that was not kept ran again
        assert ledger.history.unit == ("client", "add-or-remove")
    assert went_on.keys() == dict(network().named_parameters()).keys()


def test_its_own_check_is_the_one_that_is_asked() -> None:
    with pytest.raises(ModelError, match="a client's rows are a matrix"):
        rounds(plan(), [(torch.zeros(2, 4, 1), torch.zeros(2, dtype=torch.long))] * 3)


@dataclass(frozen=True)
class Writing(PerClient):
    """Writes into the points that it is asked about, as a model may that changes its weights in place."""

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: list[Client]) -> Kept:
        found = super().__call__(points, weights, batch)
        for leaf in (leaf for point in points for leaf in point.values()):
            leaf.data.fill_(float(batch[0][0].sum()))
        return found

    def losses(self, points: Sequence[Tree], batch: list[Client]) -> Tensor:
        found = super().losses(points, batch)
        for leaf in (leaf for point in points for leaf in point.values()):
            leaf.data.fill_(float(batch[0][0].sum()))
        return found


@pytest.mark.parametrize("method", [DPSGD(), SAT(0.1), Gap(method=DPSGD(), radius=0.1, bound=0.5)], ids=repr)
def test_what_is_written_into_a_point_reaches_neither_the_release_nor_the_next_batch(method: object) -> None:
    """Without a copy, one client's rows would be in the weights: unclipped, and without noise."""
    own = Clients([examples(4, seed=k) for k in range(6)])
    rounds = plan(phase(method=method, steps=3), rate=1.0, size=6)
    found = [
        flat(train(rounds, kind(network()), own, **beside(noise=FixedNoise(), physical=2)))
        for kind in (PerClient, Writing)
    ]
    assert torch.equal(*found)
