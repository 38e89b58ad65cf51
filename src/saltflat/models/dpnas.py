"""DPNASNet: three networks found by searching architectures under DP-SGD.

Cheng et al., "DPNAS: Neural Architecture Search for Deep Learning with Differential Privacy", AAAI 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from math import sqrt

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]
Operation = Callable[[int], nn.Module]  # from a number of channels to the module on an edge


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels, affine=False)


def _pointwise(channels_in: int, channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels, 1, bias=False), _norm(channels))


def _separable(channels: int, *, activation: Activation) -> nn.Module:
    """Depthwise only: the search space's "separable" convolution has no pointwise half."""
    depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
    return nn.Sequential(depthwise, _norm(channels), activation())


def _pool(channels: int) -> nn.Module:
    return nn.MaxPool2d(3, stride=1, padding=1)


def _skip(channels: int) -> nn.Module:
    return nn.Identity()


_none = None  # an edge that is multiplied by zero is left out
_selu = partial(_separable, activation=nn.SELU)
_tanh = partial(_separable, activation=nn.Tanh)
_relu = partial(_separable, activation=nn.ReLU)

# Row k lists the edges from nodes 0, 1, ..., k into node k + 1.
Genotype = tuple[tuple[Operation | None, ...], ...]
_CIFAR: Genotype = (
    (_selu,),
    (_pool, _selu),
    (_tanh, _pool, _none),
    (_selu, _none, _none, _skip),
    (_selu, _selu, _tanh, _pool, _tanh),
)
_MNIST: Genotype = (
    (_selu,),
    (_tanh, _skip),
    (_none, _selu, _relu),
    (_none, _tanh, _none, _skip),
    (_pool, _none, _pool, _pool, _relu),
)
_FMNIST: Genotype = (
    (_skip,),
    (_none, _selu),
    (_relu, _selu, _skip),
    (_none, _none, _tanh, _skip),
    (_selu, _tanh, _pool, _relu, _pool),
)


class Node(nn.Module):
    """The sum of the edges that arrive, each applied to the state it comes from."""

    def __init__(self, operations: tuple[Operation | None, ...], channels: int) -> None:
        super().__init__()
        present = ((str(source), make) for source, make in enumerate(operations) if make is not None)
        self.edges = nn.ModuleDict({source: make(channels) for source, make in present})

    def forward(self, states: list[Tensor]) -> Tensor:
        return reduce(torch.add, [edge(states[int(source)]) for source, edge in self.edges.items()])


class Cell(nn.Module):
    """state[j] = sum over i < j of edge[i, j](state[i]); the output joins states 1 to 5.

    >>> Cell(8, 16, _CIFAR)(torch.zeros(2, 8, 6, 6)).shape
    torch.Size([2, 80, 6, 6])
    """

    def __init__(self, channels_in: int, channels: int, genotype: Genotype) -> None:
        super().__init__()
        self.enter = _pointwise(channels_in, channels)
        self.nodes = nn.ModuleList(Node(operations, channels) for operations in genotype)

    def forward(self, images: Tensor) -> Tensor:
        states = [self.enter(images)]
        for node in self.nodes:
            states.append(node(states))
        return torch.cat(states[1:], dim=1)


def _initialise(module: nn.Module) -> None:
    """Convolutions start from N(0, 2 / (area * channels out)); linear layers keep PyTorch's default."""
    if isinstance(module, nn.Conv2d):
        area = module.kernel_size[0] * module.kernel_size[1]
        nn.init.normal_(module.weight, std=sqrt(2 / (area * module.out_channels)))


def _network(
    genotype: Genotype, widths: tuple[int, int, int], *, image: tuple[int, int], act: Activation
) -> nn.Module:
    """Stem, three cells with a pool after each, and a classifier; ``image`` is (channels, side)."""
    channels, side = image
    stem = widths[0]
    layers: list[nn.Module] = [nn.Conv2d(channels, stem, 3, padding=1, bias=False), _norm(stem)]
    entering = (stem, 5 * widths[0], 5 * widths[1])
    for channels_in, width in zip(entering, widths, strict=True):
        layers += [Cell(channels_in, width, genotype), nn.MaxPool2d(2)]
    positions = (side // 8) ** 2
    layers += [_pointwise(5 * widths[2], 128), nn.Flatten()]
    layers += [nn.Linear(128 * positions, 128), act(), nn.Linear(128, 10)]
    return nn.Sequential(*layers).apply(_initialise)


def dpnas_cifar() -> nn.Module:
    """DPNASNet for 3x32x32 images (CIFAR-10, SVHN): 529,434 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(dpnas_cifar())
    529434

    Cheng et al., AAAI 2022.
    """
    return _network(_CIFAR, (48, 96, 192), image=(3, 32), act=nn.SELU)


def dpnas_mnist() -> nn.Module:
    """DPNASNet for 1x28x28 images, the genotype found on MNIST: 213,418 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(dpnas_mnist())
    213418

    Cheng et al., AAAI 2022.
    """
    return _network(_MNIST, (32, 32, 64), image=(1, 28), act=nn.Tanh)


def dpnas_fmnist() -> nn.Module:
    """DPNASNet for 1x28x28 images, the genotype found on FashionMNIST: 214,570 parameters.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(dpnas_fmnist())
    214570

    Cheng et al., AAAI 2022.
    """
    return _network(_FMNIST, (32, 32, 64), image=(1, 28), act=nn.Tanh)
