"""A5: units never mix. BatchNorm is refused by name, everything else by its behaviour."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from reference import FixedNoise, Tree
from steps import CRITERION, beside, examples, network, phase, plan, point_of
from torch import Tensor, nn

from saltflat import check_model, make_private, per_example, supervised, train, without_batchnorm
from saltflat.core import layers
from saltflat.core.check import check_step
from saltflat.core.spot import check_answer
from saltflat.data import TensorUnits
from saltflat.errors import ModelError
from saltflat.optimizers import SGD, Torch


class OwnBatchNorm(nn.BatchNorm1d):
    pass


VARIANTS = {
    "plain": lambda: nn.BatchNorm1d(8),
    "no affine": lambda: nn.BatchNorm1d(8, affine=False),
    "frozen parameters": lambda: nn.BatchNorm1d(8).requires_grad_(False),
    "subclass": lambda: OwnBatchNorm(8),
    "no statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "no statistics, eval": lambda: nn.BatchNorm1d(8, track_running_stats=False).eval(),
    "synchronised": lambda: nn.SyncBatchNorm(8),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_batchnorm_is_refused(variant: str) -> None:
    with pytest.raises(ModelError, match="without_batchnorm"):
        check_model(nn.Sequential(nn.Linear(4, 8), VARIANTS[variant]()))


def with_fixed_norm(*, trained: bool) -> nn.Module:
    norm = nn.BatchNorm1d(8).requires_grad_(trained).eval()
    norm.running_mean.normal_(generator=torch.Generator().manual_seed(0))
    return nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh(), nn.Linear(8, 3)).double()


@pytest.mark.parametrize("trained", [True, False])
def test_fixed_statistics_are_an_affine_map(trained: bool, caplog: pytest.LogCaptureFixture) -> None:
    layers._fixed.clear()
    model = with_fixed_norm(trained=trained)
    model.train()
    model[1].eval()
    learn(model)
    assert caplog.text.count("layer '1' keeps the statistics it has") == 1
    model.train()
    with pytest.raises(ModelError, match="leave it there"):
        learn(model)


def test_fixed_statistics_that_begin_to_follow_the_data_are_refused() -> None:
    """A callback's change of mode is undone; in a loop of one's own the next step meets it, and ends the run."""
    model = with_fixed_norm(trained=False)
    before = model[1].running_mean.clone()
    learn(model, watch=lambda progress: model.train() and None)
    assert not model[1].training
    assert torch.equal(model[1].running_mean, before)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    own = make_private(model, CRITERION, examples(), optimizer=sgd, plan=plan(phase(steps=3)), delta=1e-3)
    batches = iter(own)
    own.step(next(batches))
    model.train()
    with pytest.raises(ModelError, match=r"buffer '1\.running_mean' changes|layer '1' is a BatchNorm1d"):
        own.step(next(batches))


def test_statistics_of_the_batch_meet_a_rule_that_refuses_them() -> None:
    """Should the check by name ever miss a layer that trains its scale, the layer's own rule does not."""
    model = with_fixed_norm(trained=True).train()
    with pytest.raises(ModelError, match="BatchNorm normalises"):
        per_example(model, supervised(CRITERION))([point_of(model)], [1.0], examples())


def test_running_instance_norm_is_refused() -> None:
    with pytest.raises(ModelError, match="track_running_stats=False"):
        check_model(nn.InstanceNorm2d(4, track_running_stats=True))


def test_conversion() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.Sequential(nn.BatchNorm2d(12, affine=False))
    )
    with torch.no_grad():
        model[1].weight.uniform_()
    fixed = without_batchnorm(model, groups=8)
    check_model(fixed)
    assert isinstance(model[1], nn.BatchNorm2d)  # the original is left alone
    assert fixed[1].num_groups == 6
    assert torch.equal(fixed[1].weight, model[1].weight)
    assert not fixed[2][0].affine
    assert fixed(torch.randn(2, 3, 5, 5)).shape == (2, 12, 3, 3)
    assert isinstance(without_batchnorm(nn.BatchNorm1d(7)), nn.GroupNorm)


@pytest.mark.parametrize("width", [8, 7, 2, 64])
def test_a_linear_layer_with_batch_norm_is_converted_and_trains(width: int) -> None:
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)).double()
    fixed = without_batchnorm(model)
    hidden = fixed[1](fixed[0](examples()[0][:1]))  # one example: each group has something to compare
    assert float(hidden.detach().abs().max()) > 0.1
    learn(fixed)


class WithActivation(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


def test_an_activation_inside_the_norm_is_kept() -> None:
    fixed = without_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 1), WithActivation(4)))
    assert float(fixed(torch.randn(2, 3, 5, 5)).detach().min()) == 0


WRAPPED = {
    "compiled": (lambda: torch.compile(network()), "compiled"),
    "a compiled part": (lambda: nn.Sequential(torch.compile(nn.Linear(4, 3).double())), "compiled"),
    "compiled in place": (lambda: compiled(network()), "compiled"),
    "copies": (lambda: nn.DataParallel(network()), "wrapped in DataParallel"),
    "spectral norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))).double(),
        "power iteration",
    ),
    "old spectral norm": (
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 3))).double(),
        "parametrizations.spectral_norm in eval mode",
    ),
    "old weight norm": (
        lambda: nn.Sequential(old_weight_norm(nn.Linear(4, 3))).double(),
        "parametrizations.weight_norm",
    ),
    "a hook on a weight": (lambda: hooked("register_hook"), "'0.weight' has a hook"),
    "a hook on its gradient": (lambda: hooked("register_post_accumulate_grad_hook"), "'0.weight' has a hook"),
}


def hooked(register: str) -> nn.Module:
    """A network in whose first weight only some rows are to be trained, as a hook would have it."""
    model = nn.Sequential(nn.Linear(4, 3)).double()
    getattr(model[0].weight, register)(lambda seen: None)
    return model


def compiled(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize("name", WRAPPED)
def test_what_stands_between_is_refused_at_once(name: str) -> None:
    build, says = WRAPPED[name]
    model = build()
    with pytest.raises(ModelError, match=says) as caught:
        check_model(model)
    assert "\n" not in str(caught.value)
    if says in ("compiled", "wrapped in DataParallel"):
        with pytest.raises(ModelError, match=says):
            per_example(model, supervised(CRITERION))


def test_a_hook_on_a_frozen_weight_is_no_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].weight.register_hook(lambda grad: grad)
    model[0].requires_grad_(False)
    check_model(model)


def test_copies_in_other_processes_are_refused(tmp_path: Path) -> None:
    address = {"backend": "gloo", "init_method": f"file://{tmp_path}/meet", "rank": 0, "world_size": 1}
    torch.distributed.init_process_group(**address)
    try:
        check_model(network())  # a world of one is no reason
        wrapped = nn.parallel.DistributedDataParallel(network())
        with pytest.raises(ModelError, match="wrapped in DistributedDataParallel"):
            per_example(wrapped, supervised(CRITERION))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["spectral_norm", "weight_norm", "orthogonal"])
def test_parametrizations_that_hold_still_train(kind: str) -> None:
    layer = getattr(nn.utils.parametrizations, kind)(nn.Linear(4, 4))
    learn(nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 3)).double().eval())


class Mixing(nn.Module):
    """Batch statistics by hand, no BatchNorm in sight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x - x.mean(0)


class Remembering(nn.Module):
    """A buffer that follows the data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()
        self.register_buffer("seen", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach().mean(0))
        return self.linear(x)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def try_step(model: nn.Module, loss=None, data=None) -> None:
    units = TensorUnits(data or examples())
    contribution = per_example(model, loss or supervised(CRITERION))
    check_step(contribution, point_of(model), units.take, units.count)


@pytest.mark.parametrize("model", [network(), Dropping()])
def test_sound_models_pass(model: nn.Module) -> None:
    before = copy.deepcopy(model.state_dict())
    try_step(model)
    assert all(torch.equal(before[n], p) for n, p in model.state_dict().items())


def test_hand_made_batch_statistics_are_refused() -> None:
    with pytest.raises(ModelError, match=r"mixes|match plain"):
        try_step(Mixing())


def test_contrastive_losses_are_refused() -> None:
    def contrastive(predict, batch) -> Tensor:
        z = F.normalize(predict(batch[0]), dim=1)
        return F.cross_entropy(z @ z.mT, torch.arange(len(z)), reduction="none")

    with pytest.raises(ModelError):
        try_step(network(), contrastive)


def test_changing_buffers_are_refused() -> None:
    with pytest.raises(ModelError, match="buffer 'seen'"):
        try_step(Remembering())


def test_losses_over_the_batch_are_refused() -> None:
    with pytest.raises(ModelError, match="reduction='none'"):
        try_step(network(), supervised(nn.CrossEntropyLoss()))


class TimeFirst(nn.Module):
    """Reads time first inside; ``turns`` says whether it turns its batch-first input before that."""

    def __init__(self, layer: nn.Module, *, turns: bool) -> None:
        super().__init__()
        self.layer, self.turns, self.out = layer.double(), turns, nn.Linear(2, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x.transpose(0, 1) if self.turns else x)
        found = found[0] if isinstance(found, tuple) else found
        return self.out(found.mean(0) if self.turns else found.mean(1))


TIME_FIRST = {
    "linear": lambda: nn.Linear(2, 2),
    "lstm": lambda: nn.LSTM(2, 2),
    "gru": lambda: nn.GRU(2, 2),
    "rnn": lambda: nn.RNN(2, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(2, 1, 4),
}


@pytest.mark.parametrize("time", [2, 3, 5, 8, 12, 16, 17])  # some are as long as a batch that is tried
@pytest.mark.parametrize("layer", TIME_FIRST)
def test_time_first_inside_is_followed(layer: str, time: int) -> None:
    x = torch.randn(6, time, 2, dtype=torch.float64)
    try_step(TimeFirst(TIME_FIRST[layer](), turns=True), data=(x, torch.zeros(6, dtype=torch.long)))


@pytest.mark.parametrize("time", [2, 3, 5, 17])
@pytest.mark.parametrize("layer", [name for name in TIME_FIRST if name != "linear"])
def test_layers_that_take_the_batch_for_time_are_refused(layer: str, time: int) -> None:
    x = torch.randn(6, time, 2, dtype=torch.float64)
    with pytest.raises(ModelError, match=r"batch_first=True"):
        try_step(TimeFirst(TIME_FIRST[layer](), turns=False), data=(x, torch.zeros(6, dtype=torch.long)))


def test_a_loss_that_always_fails_shows_its_error() -> None:
    def broken(predict, batch) -> Tensor:
        raise KeyError("labels")

    with pytest.raises(ModelError, match="labels"):
        try_step(network(), broken)


def test_a_hostile_first_record_does_not_stop_training() -> None:
    x, y = examples()
    y[0] = 99
    params = train(plan(phase(steps=1)), per_example(network(), supervised(CRITERION)), TensorUnits((x, y)))
    assert all(torch.isfinite(leaf).all() for leaf in params.values())


def test_others_are_bit_identical_when_one_changes() -> None:
    model, (x, y) = network(), examples()
    contribution = per_example(model, supervised(CRITERION))
    before = contribution([point_of(model)], [1.0], (x, y)).norms()
    x = x.clone()
    x[4] = 100.0
    after = contribution([point_of(model)], [1.0], (x, y)).norms()
    others = torch.arange(12) != 4
    assert torch.equal(before[others], after[others])
    assert before[4] != after[4]


def test_mutant_affine_free_batchnorm_allowed_is_still_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the name check to let BatchNorm(affine=False) through, its behaviour would give it away."""
    monkeypatch.setattr(layers, "_BatchNorm", type(None))
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)).double()
    check_model(model)
    with pytest.raises(ModelError):
        try_step(model)


# the check at the first step: clipped, noised, moved


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter beside it, which may be wired wrongly."""

    def __init__(self, wiring: str) -> None:
        super().__init__()
        self.base, self.wiring = nn.Linear(4, 3).double().requires_grad_(False), wiring
        self.down = nn.Parameter(torch.randn(2, 4, dtype=torch.float64))
        self.up = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
        self.head = nn.Linear(3, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        adapter = x @ self.down.mT @ self.up.mT
        if self.wiring == "off":
            return self.head(self.base(x))
        return self.head(self.base(x) + (adapter.detach() if self.wiring == "detached" else adapter))


def learn(model: nn.Module, **changes) -> Tree:
    steps = phase(**{"steps": 2, **changes.pop("phase", {})})
    around = beside(**changes)
    return train(plan(steps), per_example(model, supervised(CRITERION)), TensorUnits(examples()), **around)


def test_an_adapter_that_is_wired_in_trains() -> None:
    """At first the gradient of one half is exactly zero: that is no reason to refuse it."""
    learn(Adapted("right"))


@pytest.mark.parametrize("wiring", ["off", "detached"])
def test_an_adapter_that_would_never_train_is_refused(wiring: str) -> None:
    with pytest.raises(ModelError, match="parameter 'down' takes no part in the loss") as caught:
        learn(Adapted(wiring))
    assert "\n" not in str(caught.value)


def test_a_loss_that_depends_on_no_parameter_is_refused() -> None:
    with pytest.raises(ModelError, match="detached"):
        try_step(network(), lambda predict, batch: CRITERION(predict(batch[0]).detach(), batch[1]))


class Patchy(FixedNoise):
    """Noise that leaves a leaf, or most of its rows, out."""

    def __init__(self, spoil) -> None:
        super().__init__()
        self.spoil = spoil

    def normal(self, like: Tree) -> Tree:
        noise = super().normal(like)
        self.spoil(noise["2.weight"])
        return noise


@pytest.mark.parametrize(
    "spoil", [lambda leaf: leaf.zero_(), lambda leaf: leaf[2:].zero_(), lambda leaf: leaf.fill_(float("nan"))]
)
def test_a_parameter_without_noise_is_refused(spoil) -> None:
    far = torch.zeros(12, 4, dtype=torch.float64), examples()[1]  # so that most gradients are zero
    with pytest.raises(ModelError, match=r"parameter '2\.weight' got no noise"):
        train(
            plan(phase(steps=1), rate=1e-9),
            per_example(network(), supervised(CRITERION)),
            TensorUnits(far),
            **beside(noise=Patchy(spoil)),
        )


class Forgetful(SGD):
    """An optimizer that leaves one parameter where it is."""

    def step(self, params: Tree, direction: Tree, state):
        moved, state = super().step(params, direction, state)
        return {**moved, "4.bias": params["4.bias"]}, state


def two_groups(leaves):
    first, *rest = leaves
    return torch.optim.SGD([{"params": [first], "lr": 0.0}, {"params": rest, "lr": 0.1}])


@pytest.mark.parametrize(
    ("optimizer", "name"), [(Forgetful(lr=0.1), "4.bias"), (Torch(two_groups), "0.weight")]
)
def test_a_parameter_that_does_not_move_is_refused(optimizer, name: str) -> None:
    with pytest.raises(ModelError, match=f"parameter '{name}' was not moved") as caught:
        learn(network(), phase={"optimizer": optimizer})
    assert "\n" not in str(caught.value)


def test_a_schedule_may_begin_at_zero() -> None:
    learn(network(), phase={"optimizer": SGD(lr=lambda step: 0.1 * step)})
    with pytest.raises(ModelError, match="was not moved"):
        learn(network(), phase={"optimizer": Forgetful(lr=lambda step: 0.1 * step)})


def test_a_parameter_left_out_of_the_answer_is_refused() -> None:
    point = point_of(network())
    short = {name: leaf for name, leaf in point.items() if name != "0.bias"}
    with pytest.raises(ModelError, match=r"parameter '0\.bias' was left out"):
        check_answer(short, point)
