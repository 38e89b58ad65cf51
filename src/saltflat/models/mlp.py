"""Multilayer perceptrons."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from saltflat.errors import SettingError
from saltflat.models.common import check_sizes


def _perceptron(widths: tuple[int, ...]) -> nn.Module:
    """Flatten, then linear layers with a ReLU between each two."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width in pairwise(widths):
        layers += [nn.Linear(width_in, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # no ReLU after the last


def mlp_mnist() -> nn.Module:
    """784-512-128-10 with ReLU, for 1x28x28 images: 468,874 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(mlp_mnist())
    468874

    Wang et al., "DPlis: Boosting Utility of Differentially Private Deep Learning via Randomized Smoothing",
    PoPETs 2021.
    """
    return _perceptron((784, 512, 128, 10))


def mlp_cifar() -> nn.Module:
    """3072-1536-128-10 with ReLU, for 3x32x32 images: 4,918,154 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(mlp_cifar())
    4918154

    Wang et al., DPlis, PoPETs 2021.
    """
    return _perceptron((3072, 1536, 128, 10))


def mlp(
    features: int | None = None, outputs: int | None = None, width: int = 32, depth: int = 1
) -> nn.Module:
    """A perceptron for any table: ``depth`` hidden layers of ``width`` with tanh; depth 0 is a linear model.

    Small on purpose: noise grows with the number of weights, and a table's signal does not. Tanh keeps activations,
    and so gradients, from growing, which suits clipping. Inputs of any shape are flattened. A recipe may leave
    ``features`` and ``outputs`` to the data that it names.

    >>> from saltflat.models import parameter_count
    >>> [parameter_count(mlp(20, 2, depth=depth)) for depth in (0, 1, 2)]
    [42, 738, 1794]
    """
    if features is None or outputs is None:
        raise SettingError("mlp needs features and outputs: how many numbers an example has, and is to give")
    check_sizes(features=features, outputs=outputs, width=width)
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= 16:
        raise SettingError(f"depth is {depth!r}; it must be a whole number from 0 to 16")
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width_out in pairwise((features, *[width] * depth)):
        layers += [nn.Linear(width_in, width_out), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width if depth else features, outputs))


def linear(features: int | None = None, outputs: int | None = None) -> nn.Module:
    """A linear model that begins at zero, so that there are no first weights to unlearn under noise.

    Inputs of any shape are flattened. A recipe may leave ``features`` and ``outputs`` to the data that it names.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(linear(3969, 10))
    39700
    """
    if features is None or outputs is None:
        raise SettingError(
            "linear needs features and outputs: how many numbers an example has, and is to give"
        )
    check_sizes(features=features, outputs=outputs)
    layer = nn.Linear(features, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def transfer_head(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them, for the frozen features of a public network.

    The papers' heads: 1280-256-256-100 on EfficientNet-b0 (CIFAR-100), 2048-32-83 and 2048-32-1000 on
    ResNet-50 (faces).

    >>> from saltflat.models import parameter_count
    >>> [parameter_count(transfer_head(*widths)) for widths in ((1280, 256, 256, 100), (2048, 32, 83))]
    [419428, 68307]
    >>> parameter_count(transfer_head(2048, 32, 1000))
    98568

    Wang et al., DPlis, PoPETs 2021.
    """
    if len(widths) < 2:
        raise SettingError(f"widths are {widths}; give at least two: the features' width and the classes")
    check_sizes(**{f"width {i}": width for i, width in enumerate(widths)})
    return _perceptron(widths)
