"""Clients as units: F1, F2 and F3, neighbours, the gate, and the round as a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import FixedNoise, Tree, flat, trained
from steps import CRITERION, beside, examples, network, phase, plan
from torch import Tensor, nn

from saltflat import Checkpoints, supervised, train
from saltflat.clipping import PerLayer
from saltflat.core.contribution import Contribution
from saltflat.core.mechanism import clipped_sum
from saltflat.data import TensorUnits
from saltflat.errors import DataError, ModelError, PrivacyError, SettingError
from saltflat.federated import (
    Blur,
    Client,
    Clients,
    Climb,
    Feedback,
    Local,
    PerClient,
    clipping_of,
    per_client,
    per_tensor,
)
from saltflat.federated.contribution import chunk_of
from saltflat.landscape import PUBLIC
from saltflat.methods import DPLIS, DPSGD, SAM, SAT, Coin, Gap, Masked, Quantile
from saltflat.optimizers import SGD, Adam
from saltflat.privacy import Ledger
from saltflat.privacy.noise import SecureNoise
from saltflat.tree import norm, sub

LOSS = supervised(CRITERION)
LOCAL = Local(batch_size=4, epochs=2, lr=0.3, seed=0)
C = 0.2


def clients(count: int = 10) -> Clients:
    """Each has more rows than the one before; the first has none."""
    parts = np.split(np.arange(count * (count - 1) // 2), np.cumsum(np.arange(count))[:-1])
    return Clients(TensorUnits(examples(count * (count - 1) // 2)), parts)


def federated(local: Local = LOCAL, model: nn.Module | None = None) -> PerClient:
    return per_client(model or network(), LOSS, local=local)


def rounds(the_plan: Any, own: Any, *, local: Local = LOCAL, **more: Any) -> Tree:
    given = {"noise": FixedNoise(), "sampling": np.random.default_rng(0), "physical": 4}
    contribution: Contribution = federated(local)
    return train(the_plan, contribution, own, **beside(**given | more))


def everyone(steps: int = 1, size: int = 10, **changes: Any) -> Any:
    given = {"noise_multiplier": 0.0, "clip_norm": C, "optimizer": SGD(lr=1.0)}
    return plan(phase(steps=steps, **{**given, **changes}), rate=1.0, size=size)


# --- a round is a step ---


def test_without_clip_and_noise_it_is_federated_averaging() -> None:
    params = rounds(everyone(steps=3, clip_norm=math.inf), clients())
    server, one = trained(network()), federated()
    for step in range(3):
        models = [
            sub(server, one.at(step).trainer.alone(server, client))
            for client in clients().take(np.arange(10))
        ]
        server = {name: sum(model[name] for model in models) / 10 for name in server}
    torch.testing.assert_close(flat(params), flat(server), rtol=1e-9, atol=1e-12)


METHODS = [
    DPSGD(),
    SAM(0.1),
    SAT(0.1),
    Quantile(DPLIS(method=SAT(0.1), lr=0.1, copies=2)),
    Quantile(Masked(SAT(0.1), by=Coin())),
    Gap(method=SAT(0.1), radius=0.1, bound=0.5),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("optimizer", [SGD(lr=1.0, momentum=0.9), Adam(lr=0.05)], ids=["momentum", "Adam"])
def test_every_method_and_server_optimizer_runs_on_clients(method: Any, optimizer: Any) -> None:
    params = rounds(plan(phase(steps=3, method=method, optimizer=optimizer), size=10), clients())
    assert torch.isfinite(flat(params)).all()


def test_sat_on_the_server_asks_clients_to_start_uphill() -> None:
    """The second round's clients start from w + climb, and what they add is their way from there."""
    here = rounds(everyone(steps=1, method=SAT(0.3)), clients())
    after = rounds(everyone(steps=2, method=SAT(0.3)), clients())
    first = sub(trained(network()), here)
    start = {name: here[name] + 0.3 * first[name] / norm(first) for name in here}
    chunk = federated().at(1)([start], [1.0], clients().take(np.arange(10)))
    expected = clipped_sum([chunk], C, start).total
    torch.testing.assert_close(flat(sub(here, after)), flat(expected) / 10, rtol=1e-9, atol=1e-12)


def test_the_round_reaches_the_clients() -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Telling(PerClient):
        def __call__(self, points: Any, weights: Any, batch: Any) -> Any:
            seen.append(self.step)
            return super().__call__(points, weights, batch)

    train(
        everyone(steps=3),
        Telling(network(), LOSS, LOCAL),
        clients(),
        **beside(noise=FixedNoise(), physical=100),
    )
    assert sorted(set(seen)) == [0, 1, 2]


def test_the_learning_rate_decays_by_rounds() -> None:
    point, client = trained(network()), clients().take(np.array([5]))
    slow = federated(replace(LOCAL, lr_decay=0.5, epochs=1, batch_size=100))
    norms = [float(slow.at(step)([point], [1.0], client).norms()) for step in (0, 3)]
    assert norms[1] == pytest.approx(norms[0] / 8, rel=1e-9)


def test_rounds_are_charged_to_clients_and_gone_on_with(tmp_path: Path) -> None:
    four, kept = plan(phase(steps=4, method=SAT(0.1)), size=10), Checkpoints(tmp_path / "kept", every=1)

    class Enough(Exception):
        pass

    def watch(progress: Any) -> None:
        if progress.step == 2:
            raise Enough

    noise = FixedNoise()
    with Ledger.open(tmp_path / "ledger", dataset="clinics") as ledger:
        run = ledger.run("rounds", unit="client", private=False, block=1)
        with pytest.raises(Enough):
            rounds(four, clients(), meter=run, checkpoints=kept, noise=noise, watch=watch)
        rounds(four, clients(), meter=run, checkpoints=kept, noise=noise)
        assert sum(run.charged().values()) == 5  # the round that was not kept ran again
        assert ledger.history.unit == ("client", "add-or-remove")


# --- neighbours, and F2: whatever a client says of itself ---

LOCALS = {
    "plain": LOCAL,
    "SAM": replace(LOCAL, climb=Climb(0.5)),
    "ASAM, BLUR": replace(LOCAL, climb=Climb(0.5, True), blur=Blur(C)),
    "LUS": replace(LOCAL, keep=0.3),
    "LUS, feedback": replace(LOCAL, keep=0.3, feedback=Feedback(1.0)),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("clip", [C, PerLayer(C)], ids=["flat", "per layer"])
def test_removing_any_client_moves_the_sum_by_at_most_the_clip_norm(local: Local, clip: Any) -> None:
    """Huge rows, so that everyone is clipped; the others' updates are the same to the last digits."""
    point = trained(network())

    def total(own: Clients) -> Tensor:
        batch = own.take(np.arange(own.count))
        return flat(clipped_sum([federated(local)([point], [1.0], batch)], clip, point).total)

    whole = total(loud())
    some = range(10) if local is LOCAL else (0, 4, 9)
    moved = [float((whole - total(loud().without(k))).norm()) for k in some]
    assert max(moved) <= C * (1 + 1e-6)
    assert moved[-1] > 0.5 * C


def loud() -> Clients:
    x, y = examples(45)
    return Clients(TensorUnits((x * 1e3, y)), clients().parts)


def test_through_the_whole_round_as_well() -> None:
    whole = flat(rounds(everyone(), loud()))
    moved = [float((whole - flat(rounds(everyone(), loud().without(k)))).norm()) * 10 for k in (0, 4, 9)]
    assert max(moved) <= C * (1 + 1e-6)


def test_with_a_mask_too() -> None:
    masked = everyone(method=Masked(DPSGD(), keep=0.3, by=Coin(2)))
    whole = flat(rounds(masked, clients()))
    start = flat(trained(network()))
    for k in (0, 4, 9):
        moved = whole - flat(rounds(masked, clients().without(k)))
        assert float(moved.norm()) * 10 <= C * (1 + 1e-6)
        assert int((moved != 0).sum()) <= -(-3 * len(start) // 10)


@pytest.mark.parametrize("reported", [1, 10**9, -1, math.nan])
def test_f2_counts_that_clients_report_are_never_read(reported: float) -> None:
    @dataclass(frozen=True)
    class Reporting(Client):
        num_examples: float = reported
        weight: float = reported

        def __len__(self) -> int:
            raise AssertionError("a client's size was read")

    own = clients().take(np.arange(10))
    loud = [Reporting(c.number, c.rows) for c in own]
    point = trained(network())
    mine, other = (clipped_sum([federated()([point], [1.0], some)], C, point).total for some in (loud, own))
    assert torch.equal(flat(mine), flat(other))


def test_f2_a_client_with_a_hundred_times_the_rows_moves_no_more_than_any_other() -> None:
    x, y = examples(202)
    units = TensorUnits((x, y))
    few = Clients(units, [np.arange(2), np.arange(2, 4)])
    many = Clients(units, [np.arange(2), np.arange(2, 202)])
    alone = flat(rounds(everyone(size=2), few.without(1)))
    for own in (few, many):
        assert float((flat(rounds(everyone(size=2), own)) - alone).norm()) * 2 <= C * (1 + 1e-6)


# --- F1: drop-outs ---


@dataclass(frozen=True)
class Dropping:
    """Clients of whom some cannot be reached."""

    clients: Clients
    gone: frozenset[int]

    @property
    def count(self) -> int:
        return self.clients.count

    def take(self, indices: np.ndarray) -> list[Client]:
        if any(int(k) in self.gone for k in indices):
            raise ConnectionError("no answer")
        return self.clients.take(indices)


@pytest.mark.parametrize("gone", [0, 1, 5, 9, 10])
def test_f1_noise_stays_the_same_whoever_drops_out(gone: int) -> None:
    """20,610 coordinates: the noise's standard deviation is known to within 0.5 %, and 2.5 % are five of those."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 3)
    ).double()
    own = Dropping(clients(), frozenset(range(gone)))
    before, z = trained(model), 3.0
    contribution, quiet = per_client(model, LOSS, local=LOCAL), everyone(clip_norm=C)
    charged: list[tuple[float, float]] = []

    class Meter:
        def step(self, rate: float, noise_multiplier: float) -> None:
            charged.append((rate, noise_multiplier))

    still = train(quiet, contribution, own, **beside(noise=FixedNoise()))
    with torch.no_grad():
        for name, leaf in model.named_parameters():
            leaf.copy_(before[name])
    noisy = everyone(clip_norm=C, noise_multiplier=z)
    found = train(noisy, contribution, own, **beside(noise=SecureNoise(), meter=Meter()))
    on_the_sum = (flat(found) - flat(still)) * 10  # rate x declared clients, whoever answered
    assert float(on_the_sum.std()) == pytest.approx(z * C, rel=0.025)
    assert charged == [(1.0, z)]


def test_the_sum_is_divided_by_the_declared_number_whoever_answers() -> None:
    own = clients()
    some = rounds(everyone(), Dropping(own, frozenset(range(5))))
    chunk = federated()([trained(network())], [1.0], own.take(np.arange(5, 10)))
    expected = clipped_sum([chunk], C, some).total
    torch.testing.assert_close(
        flat(sub(trained(network()), some)), flat(expected) / 10, rtol=1e-9, atol=1e-12
    )


# --- F3: bad clients ---


def wrong(kind: str, like: Tree) -> Any:
    """An update as a client of another make might send it."""
    some = {name: torch.randn_like(leaf) for name, leaf in like.items()}
    first = next(iter(some))
    spoilt = {
        "nan": {**some, first: torch.full_like(some[first], math.nan)},
        "one nan": {**some, first: some[first].index_fill(0, torch.tensor([0]), math.nan)},
        "inf": {**some, first: some[first] * math.inf},
        "huge": {name: leaf * 1e100 for name, leaf in some.items()},
        "shape": {**some, first: some[first][:1]},
        "keys": {**some, "more": torch.zeros(1)},
        "fewer keys": {name: leaf for name, leaf in some.items() if name != first},
        "whole numbers": {name: leaf.long() for name, leaf in some.items()},
        "no tensors": {name: leaf.tolist() for name, leaf in some.items()},
        "a list": [1, 2, 3],
        "nothing": None,
        "zero": {name: torch.zeros_like(leaf) for name, leaf in some.items()},
    }
    return spoilt[kind]


KINDS = ("nan", "one nan", "inf", "huge", "shape", "keys", "fewer keys", "whole numbers", "no tensors", "a list",
         "nothing", "zero")  # fmt: skip


def test_f3_a_hundred_mixes_of_bad_updates() -> None:
    """Every round ends; who is bad moves the sum by at most C, and the others are what they would have been."""
    point = trained(network())
    chunk = federated()([point], [1.0], clients().take(np.arange(1, 7)))
    sound = [chunk.weighted_sum(torch.eye(6, dtype=torch.float64)[k]) for k in range(6)]
    source = np.random.default_rng(0)
    for _ in range(100):
        kinds = source.choice(KINDS, size=int(source.integers(1, 7)))
        bad = [wrong(kind, point) for kind in kinds]
        mixed = [*sound, *bad]
        order = source.permutation(len(mixed))
        both = clipped_sum([chunk_of([mixed[k] for k in order], point)], C, point).total
        place = [None if k >= 6 else mixed[k] for k in order]
        without = clipped_sum([chunk_of(place, point)], C, point).total
        assert torch.isfinite(flat(both)).all()
        assert torch.equal(flat(both), flat(without)) or float(
            (flat(both) - flat(without)).norm()
        ) <= C * len(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_f3_each_kind_by_itself_adds_at_most_the_clip_norm(kind: str) -> None:
    point = trained(network())
    alone = clipped_sum([chunk_of([wrong(kind, point)], point)], C, point).total
    length = float(flat(alone).norm())
    assert length <= C * (1 + 1e-6)
    assert length == 0 or (kind == "huge" and length == pytest.approx(C))


HUGE = 1e200
ROWS: dict[str, Callable[[Client], Client]] = {
    "nan": lambda c: Client(c.number, (c.rows[0] * math.nan, c.rows[1])),
    "inf": lambda c: Client(c.number, (c.rows[0] * math.inf, c.rows[1])),
    "huge": lambda c: Client(c.number, (c.rows[0] * HUGE, c.rows[1])),
    "label": lambda c: Client(c.number, (c.rows[0], c.rows[1] + 99)),
    "shape": lambda c: Client(c.number, (c.rows[0][:, :2], c.rows[1])),
    "fewer labels": lambda c: Client(c.number, (c.rows[0], c.rows[1][:-1])),
    "more labels": lambda c: Client(c.number, (c.rows[0], torch.cat([c.rows[1], c.rows[1] * 0 + 1]))),
    "no rows": lambda c: Client(c.number, (c.rows[0][:0], c.rows[1][:0])),
    "no tensors": lambda c: Client(c.number, "rows"),
    "nothing": lambda c: Client(c.number, None),
}


@pytest.mark.parametrize("kind", ROWS)
def test_f3_a_client_with_bad_rows_leaves_the_others_bit_identical(kind: str) -> None:
    """Clients of one size, so that whoever is left out leaves every shape as it was."""
    units = TensorUnits(examples(40))
    own = Clients(units, list(np.arange(40).reshape(10, 4))).take(np.arange(10))
    point = trained(network())
    chunk = lambda batch: federated()([point], [1.0], batch)
    only = lambda some, k: flat(some.weighted_sum(torch.eye(10, dtype=torch.float64)[k]))
    there, bad = chunk(own), chunk([*own[:3], ROWS[kind](own[3]), *own[4:]])
    for k in (0, 1, 2, 4, 5, 6, 7, 8, 9):
        tolerance = 0.0 if kind in ("nan", "inf", "huge", "label") else 1e-12  # else the stack is another one
        assert float((only(there, k) - only(bad, k)).abs().max()) <= tolerance
    total = flat(clipped_sum([bad], C, point).total)
    assert float((total - flat(clipped_sum([there], C, point).total)).norm()) <= 2 * C
    assert torch.isfinite(total).all()


def test_a_failing_client_says_nothing(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
) -> None:
    own = clients().take(np.arange(10))
    federated()([trained(network())], [1.0], [*own, ROWS["label"](own[4])])
    assert caplog.text + capsys.readouterr().out + capsys.readouterr().err == ""


def test_losses_of_a_client_that_fails_are_none() -> None:
    own, point = clients().take(np.arange(10)), trained(network())
    losses = federated().losses([point, point], [*own, ROWS["label"](own[4])])
    assert losses.shape == (2, 11)
    assert losses[:, -1].isnan().all()
    assert losses[0, 0] == 0  # no rows, no loss
    expected = CRITERION(network()(own[5].rows[0]), own[5].rows[1]).mean()
    assert float(losses[0, 5]) == pytest.approx(float(expected.detach()))


# --- the gate ---


class Remembering(nn.Module):
    """Adds something of the last rows that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 3).double(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x) * (1 + self.last)
        self.last = float(x.detach().nan_to_num().mean().clamp(-1, 1))
        return out


class Loudest(Remembering):
    """Scales by the largest number that it ever saw, which ordinary clients do not move any more."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = max(self.last, 50.0, float(x.detach().nan_to_num().abs().max()))
        return self.layer(x / self.last)


class Counting(nn.Module):
    """Every call is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3).double(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * (1 + 0.1 * self.calls)


class OwnDraws(nn.Module):
    """Draws from a generator that it holds, so that whoever leaves moves the others' draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.source = nn.Linear(4, 3).double(), np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * float(self.source.uniform(0.5, 1.5))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def normed(**how: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, **how), nn.Linear(8, 3)).double()


HOSTILE = {
    "running statistics": (normed, "running statistics"),
    "running statistics without a scale": (lambda: normed(affine=False), "running statistics"),
    "remembers": (Remembering, "who trained before"),
    "loudest": (Loudest, "who trained before"),
    "counts": (Counting, "who trained before"),
    "draws": (OwnDraws, "who trained before"),
    "unused": (Unused, "takes no part"),
    "copies": (lambda: nn.DataParallel(network()), "DataParallel"),
}


class Known:
    """Clients whose rows know who is drawn beside them, or who was read before."""

    def __init__(self, way: str) -> None:
        self.count, self.way, self.last, (self.x, self.y) = 20, way, 0.0, examples(100)

    def take(self, which: Any) -> list[Client]:
        return [self._client(int(place), len(which)) for place in which]

    def _client(self, place: int, company: int) -> Client:
        own = slice(5 * place, 5 * place + 5)
        rows = self.x[own] / company if self.way == "company" else self.x[own] + self.last
        self.last = self.x[own].mean() if self.way == "memory" else 0.0
        odd = {3: (rows,), 4: (rows[:, :2], self.y[own])}  # which make no other client's check empty
        return Client(place, odd.get(place, (rows, self.y[own])))


@pytest.mark.parametrize("way", ["company", "memory"])
def test_clients_whose_rows_know_of_others(way: str) -> None:
    with pytest.raises(DataError, match="what is read of one client changes"):
        train(plan(phase()), federated(), Known(way))
    train(plan(phase()), federated(), Known("nobody"))


@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_let_clients_mix_is_refused(name: str) -> None:
    make, says = HOSTILE[name]
    with pytest.raises(ModelError, match=says):
        checked(make())


def test_training_that_magnifies_rounding_is_not_taken_for_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With such a learning rate the last digit decides where a client ends; a stack rounds as a stack of one does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    some = [Client(k, (torch.randn(12, 20), torch.randint(3, (12,)))) for k in range(8)]
    own = per_client(model, LOSS, local=Local(epochs=40, batch_size=4, lr=2.0, momentum=0.5))
    look = own.check(trained(model), lambda places: [some[int(k)] for k in places], 8)
    for one in range(8):
        monkeypatch.setattr("saltflat.federated.check.secrets.randbelow", lambda most, one=one: one)
        look(trained(model), some)


class Writing(nn.Module):
    """Writes something of the rows into its own weights."""

    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale, self.drop = nn.Linear(4, 3).double(), scale, nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight.data.add_(self.scale * float(x.mean()))
        return self.drop(self.layer(x))


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_model_that_writes_into_its_weights_writes_into_no_other_clients(at_once: int) -> None:
    """It may: what leaves is clipped. Without a copy the server's own weights would move, without clip and noise."""
    model = Writing()
    own, point = per_client(model, LOSS, local=LOCAL), trained(model)
    before, some = flat(point).clone(), clients().take(np.arange(4))
    together = own.trainer.differences(point, some, at_once)
    alone = [own.trainer.differences(point, [client], at_once)[0] for client in some]
    own.losses([point], some)
    assert torch.equal(flat(point), before)
    for one, other in zip(together, alone, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert torch.equal(flat(one), flat(other))


def checked(model: nn.Module) -> Any:
    """Before the first round: what comes later may look again, and need not."""
    return per_client(model, LOSS, local=LOCAL).check(trained(model), clients().take, 10)


HONEST = {
    "batch norm of a client's own minibatch": lambda: normed(track_running_stats=False),
    "public statistics": lambda: normed().eval(),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)).double(),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)).double(),
    "float32": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_is_honest_trains(name: str) -> None:
    model = HONEST[name]()
    x, y = examples(45)
    units = TensorUnits((x.to(next(model.parameters()).dtype), y))
    own = Clients(units, clients().parts)
    noisy = plan(phase(steps=3, clip_norm=C), size=10)
    found = train(noisy, per_client(model, LOSS, local=replace(LOCAL, seed=None)), own, **beside())
    assert torch.isfinite(flat(found)).all()


def test_a_layer_that_wakes_up_after_the_check_is_looked_at() -> None:
    model = normed().eval()
    contribution = per_client(model, LOSS, local=LOCAL)
    spot = contribution.check(trained(model), clients().take, 10)
    assert not spot.changed()
    model.train()
    assert spot.changed()
    with pytest.raises(ModelError, match="running statistics"):
        spot(trained(model), clients().take(np.arange(10)))


def test_a_model_that_begins_to_mix_is_found_by_a_second_look() -> None:
    class Later(Remembering):
        awake = False

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.awake else self.layer(x)

    model = Later()
    contribution = per_client(model, LOSS, local=LOCAL)
    spot = contribution.check(trained(model), clients().take, 10)
    model.awake = True
    some = clients().take(np.arange(4, 10))
    looks = (spot(trained(model), some) for _ in range(20))  # each at one of them
    with pytest.raises(ModelError, match="who trained before"):
        list(looks)


def test_a_criterion_in_the_place_of_a_loss_is_named() -> None:
    with pytest.raises(ModelError, match="supervised"):
        train(everyone(), per_client(network(), CRITERION), clients(), **beside(noise=FixedNoise()))


def test_a_loss_over_all_rows_at_once_is_refused() -> None:
    mean = supervised(nn.CrossEntropyLoss())
    with pytest.raises(ModelError, match="one loss per example"):
        train(everyone(), per_client(network(), mean), clients(), **beside(noise=FixedNoise()))


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingError, match="local"):
        per_client(network(), LOSS, local={"lr": 1})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="loss"):
        per_client(network(), None)  # type: ignore[arg-type]


def test_wrong_parts_of_clients_are_named() -> None:
    units = TensorUnits(examples(4))
    for parts in ([np.array([4])], [np.array([-1])], [np.array([0.5])], [np.array([[0]])]):
        with pytest.raises(DataError):
            Clients(units, parts)
    with pytest.raises(DataError, match="number"):
        Clients(units, [np.arange(2), np.arange(2, 4)], numbers=[1, 1])


def test_others_keep_their_numbers_when_one_leaves() -> None:
    left = clients().without(3).without(0)
    assert [client.number for client in left.take(np.arange(8))] == [1, 2, 4, 5, 6, 7, 8, 9]


def test_clients_do_not_show_their_rows() -> None:
    assert "tensor" not in repr(clients().take(np.arange(3))) + repr(clients())


# --- memory, legacy clipping, diagnostics ---


def test_looking_again_leaves_memories_alone() -> None:
    contribution = federated(LOCALS["LUS, feedback"])
    spot = contribution.check(trained(network()), clients().take, 10)
    spot(trained(network()), clients().take(np.arange(10)))
    assert contribution.memory.kept == {}


@pytest.mark.parametrize("gone", [5, 9])
def test_a_memory_belongs_to_one_client(gone: int) -> None:
    """With feedback too, removing a client leaves the others' second updates as they were."""

    def second(own: Clients) -> Any:
        contribution, point = federated(LOCALS["LUS, feedback"]), trained(network())
        contribution.at(0)([point], [1.0], own.take(np.arange(own.count)))
        return contribution.at(1)([point], [1.0], own.take(np.arange(own.count)))

    whole, less = second(clients()), second(clients().without(gone))
    only = lambda some, k, n: flat(some.weighted_sum(torch.eye(n, dtype=torch.float64)[k]))
    for k in (1, 4, 6, 8):
        torch.testing.assert_close(only(whole, k, 10), only(less, k - (k > gone), 9), rtol=1e-9, atol=1e-12)


def test_clipping_tensor_by_tensor_is_counted_as_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """The six tensors of this network: noise sigma C on the sum, and the epsilon of sigma / sqrt(6)."""
    like = trained(network())
    found = per_tensor(like, clip_norm=C, noise_multiplier=0.95)
    assert "6 tensors" in caplog.text
    assert "0.3878" in caplog.text
    assert found["noise_multiplier"] * found["clip_norm"].sensitivity == pytest.approx(0.95 * C)
    legacy, flat_clip = (
        plan(phase(steps=200, **some), rate=0.1, size=500)
        for some in (found, {"clip_norm": C, "noise_multiplier": 0.95})
    )
    assert legacy.epsilon(2e-3) > 5 * flat_clip.epsilon(2e-3)
    loud = [{name: 1e3 * torch.ones_like(leaf) for name, leaf in like.items()}]
    total = clipped_sum([chunk_of(loud, like)], found["clip_norm"], like)
    assert float(flat(total.total).norm()) == pytest.approx(C * math.sqrt(6), rel=1e-9)


@pytest.mark.parametrize(("steps", "epsilon"), [(200, 7.30), (300, 9.37)])
def test_two_hundred_rounds_cost_what_the_accountant_says(steps: int, epsilon: float) -> None:
    found = plan(phase(steps=steps, noise_multiplier=0.95, clip_norm=C), rate=0.1, size=500).epsilon(2e-3)
    assert found == pytest.approx(epsilon, rel=0.005)


def test_what_clipping_does_is_told_only_where_it_may_be() -> None:
    own, point = clients(), trained(network())
    with pytest.raises(PrivacyError, match="access"):
        clipping_of(federated(), point, own, clip_norm=C)
    found = clipping_of(federated(), point, own, clip_norm=C, access=PUBLIC)
    norms = torch.stack(
        [norm(federated().trainer.alone(point, client)) for client in own.take(np.arange(10))]
    )
    factors = (C / norms).clamp(max=1)
    torch.testing.assert_close(found.norms, norms)
    assert found.factor == pytest.approx(float(factors.mean()))
    assert found.inconsistency == pytest.approx(float((factors - factors.mean()).abs().mean()))
    assert "tensor" not in repr(found)


@pytest.mark.parametrize("kind", ROWS)
def test_bad_clients_who_come_first_do_not_stop_a_run(kind: str) -> None:
    own = clients()

    @dataclass(frozen=True)
    class Spoilt:
        count: int = 10

        def take(self, indices: np.ndarray) -> list[Client]:
            found = own.take(indices)
            return [ROWS[kind](client) if client.number in (1, 2, 3) else client for client in found]

    contribution = federated()
    train(everyone(steps=2), contribution, Spoilt(), **beside(noise=FixedNoise()))
    assert set(contribution.ways.values()) == {128}  # and the others are still trained together
