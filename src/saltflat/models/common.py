"""What every family of networks shares: the size check and the parameter count."""

from __future__ import annotations

from torch import nn

from saltflat.errors import SettingError


def parameter_count(model: nn.Module) -> int:
    """The number of trainable weights, the figure that papers print.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def check_sizes(**sizes: int) -> None:
    """Refuse any size that is not a whole number of at least 1.

    >>> check_sizes(classes=0)
    Traceback (most recent call last):
    saltflat.errors.SettingError: classes is 0; it must be a whole number of at least 1
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SettingError(f"{name} is {size!r}; it must be a whole number of at least 1")
