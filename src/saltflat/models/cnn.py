"""Plain convolutional networks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from saltflat.errors import SettingError
from saltflat.models.common import check_sizes

Activation = str | Callable[[], nn.Module]
ACTIVATIONS = ("ELU", "GELU", "Hardtanh", "LeakyReLU", "ReLU", "SELU", "Sigmoid", "SiLU", "Softplus", "Tanh")
"""The activations of torch.nn that a network takes by name, each without settings."""


def activation_of(activation: Activation) -> Callable[[], nn.Module]:
    """The function that makes an activation layer, of its name or as it is.

    >>> activation_of("SELU")()
    SELU()
    """
    if not isinstance(activation, str):
        return activation
    if activation not in ACTIVATIONS:
        raise SettingError(f"there is no activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
    found: Callable[[], nn.Module] = getattr(nn, activation)
    return found


def cnn_tanh(activation: Activation = nn.Tanh, classes: int = 10) -> nn.Module:
    """Six 3x3 convolutions in three pooled pairs, for 3x32x32 images: 550,570 parameters.

    ``activation="SELU"`` is the variant that DP-SAT trains. A name is one of `ACTIVATIONS`; any function that makes a
    layer will do in Python.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(cnn_tanh())
    550570

    Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", AAAI 2021.
    Park et al., "Differentially Private Sharpness-Aware Training", ICML 2023.
    """
    check_sizes(classes=classes)
    activation, layers = activation_of(activation), list[nn.Module]()
    for channels_in, width in pairwise((3, 32, 64, 128)):
        layers += [nn.Conv2d(channels_in, width, 3, padding=1), activation()]
        layers += [nn.Conv2d(width, width, 3, padding=1), activation(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(2048, 128), activation(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


def digits_cnn(classes: int = 10) -> nn.Module:
    """Two small convolutions and two linear layers, tanh between them, for 1x8x8 images: 9,258 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(digits_cnn())
    9258
    """
    check_sizes(classes=classes)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 32), nn.Tanh(), nn.Linear(32, classes)),
    )


def _two_convolutions(
    activation: Callable[[], nn.Module], classes: int, *, image: tuple[int, int]
) -> nn.Module:
    """The network of the DP-SGD tutorials; ``image`` is (channels, side)."""
    channels, side = image
    check_sizes(in_channels=channels, side=side, classes=classes)
    if side < 16:
        raise SettingError(
            f"side is {side}; both convolutions need images of at least 16x16: resize the images"
        )
    after_first = (side - 4) // 2  # 8x8, stride 2, padding 2, and a pool of 2 with stride 1
    after_second = (after_first - 4) // 2  # 4x4, stride 2, and the same pool
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        activation(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * after_second**2, 32),
        activation(),
        nn.Linear(32, classes),
    )


def tutorial_cnn(in_channels: int = 1, side: int = 28, *, classes: int = 10) -> nn.Module:
    """The two-convolution network of the DP-SGD tutorials, as DPLIS uses it.

    26,010 parameters on 1x28x28 images, 37,274 on 3x32x32.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(tutorial_cnn()), parameter_count(tutorial_cnn(3, 32))
    (26010, 37274)

    Wang et al., "DPlis: Boosting Utility of Differentially Private Deep Learning via Randomized Smoothing",
    PoPETs 2021.
    """
    return _two_convolutions(nn.ReLU, classes, image=(in_channels, side))


def tanh_cnn_mnist(in_channels: int = 1, side: int = 28, *, classes: int = 10) -> nn.Module:
    """The tutorial network with tanh: 26,010 parameters on 1x28x28 images, 37,274 on 3x32x32.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(tanh_cnn_mnist()), parameter_count(tanh_cnn_mnist(3, 32))
    (26010, 37274)

    Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", AAAI 2021.
    """
    return _two_convolutions(nn.Tanh, classes, image=(in_channels, side))


def maps_cnn(in_channels: int = 81, side: int = 7, width: int = 32, *, classes: int = 10) -> nn.Module:
    """One 3x3 convolution and a linear layer, tanh between them, for maps of features: 39,050 parameters on 81x7x7.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(maps_cnn())
    39050
    """
    check_sizes(in_channels=in_channels, side=side, width=width, classes=classes)
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(width * side**2, classes),
    )


def emnist_cnn(classes: int = 62, side: int = 32) -> nn.Module:
    """Two 5x5 convolutions and log-probabilities, for 1x32x32 images: 903,614 parameters in 8 tensors.

    Images of ``side`` 28 or 30 are seen with a margin of zeros around them, as 32x32.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(emnist_cnn())
    903614

    Shi et al., "Make Landscape Flatter in Differentially Private Federated Learning", CVPR 2023.
    """
    check_sizes(classes=classes)
    if side not in (28, 30, 32):
        raise SettingError(f"emnist_cnn takes images of side 28, 30 or 32; got {side!r}")
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=(32 - side) // 2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1600, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
        nn.LogSoftmax(dim=1),
    )
