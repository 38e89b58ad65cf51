"""The papers' networks: sizes as published, shapes, and no path from one example to another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from saltflat import models
from saltflat.errors import SettingError
from saltflat.models.common import parameter_count
from saltflat.models.language import NextWordLSTM
from saltflat.models.vit import Attention
from saltflat.models.wrn import standardised

MNIST = (1, 28, 28)
CIFAR = (3, 32, 32)
EMNIST = (1, 32, 32)

# name: (build, parameters, shape of one input, shape of one output)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, ...], tuple[int, ...]]] = {
    "dpnas_cifar": (models.dpnas_cifar, 529_434, CIFAR, (10,)),
    "dpnas_mnist": (models.dpnas_mnist, 213_418, MNIST, (10,)),
    "dpnas_fmnist": (models.dpnas_fmnist, 214_570, MNIST, (10,)),
    "cnn_tanh": (models.cnn_tanh, 550_570, CIFAR, (10,)),
    "cnn_selu": (lambda: models.cnn_tanh(nn.SELU), 550_570, CIFAR, (10,)),
    "tanh_cnn_mnist": (models.tanh_cnn_mnist, 26_010, MNIST, (10,)),
    "maps_cnn": (models.maps_cnn, 39_050, (81, 7, 7), (10,)),
    "tutorial_cnn": (models.tutorial_cnn, 26_010, MNIST, (10,)),
    "tutorial_cnn_cifar": (lambda: models.tutorial_cnn(3, 32), 37_274, CIFAR, (10,)),
    "gnresnet10": (models.gnresnet10, 4_902_090, MNIST, (10,)),
    "gn_resnet18": (models.gn_resnet18, 11_173_962, CIFAR, (10,)),
    "gn_resnet18_100": (lambda: models.gn_resnet18(100), 11_220_132, CIFAR, (100,)),
    "resnet9_100": (models.resnet9, 6_621_540, CIFAR, (100,)),
    "resnet9_10": (lambda: models.resnet9(10), 6_575_370, CIFAR, (10,)),
    "emnist_cnn": (models.emnist_cnn, 903_614, EMNIST, (62,)),
    "mlp_mnist": (models.mlp_mnist, 468_874, MNIST, (10,)),
    "mlp_cifar": (models.mlp_cifar, 4_918_154, CIFAR, (10,)),
    "head_cifar100": (lambda: models.transfer_head(1280, 256, 256, 100), 419_428, (1280,), (100,)),
    "head_pubfig": (lambda: models.transfer_head(2048, 32, 83), 68_307, (2048,), (83,)),
    "head_celeba": (lambda: models.transfer_head(2048, 32, 1000), 98_568, (2048,), (1000,)),
    "wrn_16_4": (models.wrn_16_4, 2_753_818, CIFAR, (10,)),
    "wrn_16_4_plain": (lambda: models.wrn_16_4(ws_gain_bias=False), 2_748_890, CIFAR, (10,)),
    "wrn_16_4_100": (lambda: models.wrn_16_4(100), 2_776_948, CIFAR, (100,)),
    "wrn_40_4": (models.wrn_40_4, 8_961_306, CIFAR, (10,)),
    "wrn_40_4_plain": (lambda: models.wrn_40_4(ws_gain_bias=False), 8_949_210, CIFAR, (10,)),
    "next_word_lstm": (models.next_word_lstm, 13_106_215, (20,), (20, 36_743)),
    "next_word_mlp": (models.next_word_mlp, 2_022_193, (20,), (36_743,)),
    "next_word_mlp_embedded": (
        lambda: models.next_word_mlp(100, embedding_width=8),
        100 * 8 + 160 * 500 + 500 + 500 * 250 + 250 + 250 * 50 + 50 + 50 * 100 + 100,
        (20,),
        (100,),
    ),
    "small_vit": (models.small_vit, 1_803_850, CIFAR, (10,)),
}
EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)


def examples(shape: tuple[int, ...], units: int, seed: int) -> Tensor:
    """Random token ids for the language models, random features for the rest."""
    generator = torch.Generator().manual_seed(seed)
    if shape == (20,):
        return torch.randint(100, (units, *shape), generator=generator)
    return torch.randn(units, *shape, generator=generator)


def moved_by_the_others(model: nn.Module, shape: tuple[int, ...]) -> float:
    """How far the middle example's output moves when its two neighbours change, relative to its size."""
    batch, others = examples(shape, 3, seed=0), examples(shape, 3, seed=1)
    with torch.no_grad():
        before = model(batch)[1]
        after = model(torch.cat([others[:1], batch[1:2], others[2:]]))[1]
    return float((before - after).abs().max() / before.abs().max())


@EVERY_NETWORK
def test_parameter_count_is_the_published_one(name: str) -> None:
    build, parameters, _, _ = NETWORKS[name]
    assert parameter_count(build()) == parameters


@EVERY_NETWORK
def test_output_shape_and_isolation_of_examples(name: str) -> None:
    build, _, shape, answer = NETWORKS[name]
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        assert model(examples(shape, 2, seed=0)).shape == (2, *answer)
    assert moved_by_the_others(model, shape) < 1e-5
    assert not list(model.buffers()), "a buffer is a path from one batch to the next"


def test_isolation_check_catches_a_batch_norm() -> None:
    mutant = nn.Sequential(nn.BatchNorm2d(3, affine=False), models.cnn_tanh())
    assert moved_by_the_others(mutant, CIFAR) > 1e-3


def test_isolation_check_catches_a_batch_second_lstm() -> None:
    mutant = NextWordLSTM(100)
    mutant.lstm.batch_first = False
    assert moved_by_the_others(mutant, (20,)) > 1e-3


@EVERY_NETWORK
def test_every_weight_has_a_gradient(name: str) -> None:
    build, _, shape, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = build()
    model(examples(shape, 2, seed=0)).square().mean().backward()
    without = [
        key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()
    ]
    assert without == []


def test_tensor_counts_of_the_federated_models() -> None:
    assert len(list(models.gn_resnet18().parameters())) == 62
    assert len(list(models.emnist_cnn().parameters())) == 8


def test_emnist_cnn_answers_with_log_probabilities() -> None:
    answer = models.emnist_cnn()(examples(EMNIST, 2, seed=0))
    torch.testing.assert_close(answer.exp().sum(1), torch.ones(2))


def test_next_word_lstm_does_not_look_ahead() -> None:
    model = models.next_word_lstm(100)
    tokens = examples((20,), 2, seed=0)
    later = torch.cat([tokens[:, :10], (tokens[:, 10:] + 1) % 100], dim=1)
    with torch.no_grad():
        before, after = model(tokens), model(later)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_standardised_weight_is_the_formula() -> None:
    weight, gain = torch.randn(5, 4, 3, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    for channel, answer in enumerate(standardised(weight, gain)):
        w = weight[channel].flatten()
        var = ((w - w.mean()) ** 2).mean()
        expected = gain[channel] * (w - w.mean()) / torch.sqrt(w.numel() * var)
        torch.testing.assert_close(answer.flatten(), expected)


def test_standardised_weight_of_a_constant_filter_is_zero_and_differentiable() -> None:
    weight = torch.ones(2, 3, 3, 3, requires_grad=True)
    answer = standardised(weight, None)
    answer.square().sum().backward()
    assert not answer.any()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_wrn_starts_at_fan_in_scale() -> None:
    torch.manual_seed(0)
    convolution = models.ScaledStdConv2d(64, 64, 3, stride=1, gain_bias=True)
    assert float(convolution.weight.detach().std()) == pytest.approx((64 * 9) ** -0.5, rel=0.02)
    assert convolution.gain is not None
    assert convolution.gain.eq(1).all()
    assert convolution.bias is not None
    assert convolution.bias.eq(0).all()


def test_dpnas_convolutions_start_at_fan_out_scale() -> None:
    torch.manual_seed(0)
    last = [module for module in models.dpnas_cifar().modules() if isinstance(module, nn.Conv2d)][-1]
    assert last.kernel_size == (1, 1)
    assert float(last.weight.detach().std()) == pytest.approx((2 / 128) ** 0.5, rel=0.02)


def test_attention_is_the_formula() -> None:
    torch.manual_seed(0)
    attention = Attention(12, 3).double()
    tokens = torch.randn(2, 5, 12, dtype=torch.float64)
    q, k, v = attention.qkv(tokens).chunk(3, dim=-1)
    heads = []
    for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
        scores = torch.softmax(q[..., part] @ k[..., part].mT / 2, dim=-1)  # sqrt(head width) = 2
        heads.append(scores @ v[..., part])
    torch.testing.assert_close(attention(tokens), attention.mix(torch.cat(heads, dim=-1)))


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: models.cnn_tanh(classes=0), "classes"),
        (lambda: models.gnresnet10(-1), "classes"),
        (lambda: models.resnet9(True), "classes"),
        (lambda: models.wrn_16_4(float("nan")), "classes"),  # type: ignore[arg-type]
        (lambda: models.emnist_cnn(2.5), "classes"),  # type: ignore[arg-type]
        (lambda: models.small_vit(0), "classes"),
        (lambda: models.tutorial_cnn(1, 12), "side"),
        (lambda: models.tutorial_cnn(0), "in_channels"),
        (lambda: models.next_word_lstm(0), "vocabulary"),
        (lambda: models.next_word_mlp(embedding_width=0), "embedding_width"),
        (lambda: models.transfer_head(2048), "widths"),
        (lambda: models.transfer_head(2048, 0), "width 1"),
    ],
)
def test_impossible_sizes_are_refused_by_name(build: Callable[[], nn.Module], field: str) -> None:
    with pytest.raises(SettingError, match=field):
        build()


def test_an_activation_has_a_name_or_is_a_function() -> None:
    by_name, as_function = models.cnn_tanh("SELU"), models.cnn_tanh(nn.SELU)
    assert str(by_name) == str(as_function)
    with pytest.raises(SettingError, match=r"there is no activation 'selu'; known are ELU, .*SELU"):
        models.cnn_tanh("selu")
