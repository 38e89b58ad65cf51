"""What a model must be made of to have per-unit gradients, and how to make it so."""

from __future__ import annotations

import copy
import logging

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from saltflat.errors import ModelError, SettingError
from saltflat.settings import is_whole


def check_model(model: nn.Module) -> None:
    """Refuse layers through which one example's data reaches another's gradient.

    >>> check_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)))
    Traceback (most recent call last):
    saltflat.errors.ModelError: layer '1' is a BatchNorm1d: ...
    """
    check_whole(model)
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise ModelError("the model has lazy layers without a shape yet: run one batch through it first")
    for name, module in model.named_modules():
        _check_layer(name, module)
    for name, weight in model.named_parameters():
        _check_hooks(name, weight)


def check_whole(model: nn.Module) -> None:
    """Refuse what stands between saltflat and a model: a compiler, or copies of it.

    >>> check_whole(nn.DataParallel(nn.Linear(2, 2)))
    Traceback (most recent call last):
    saltflat.errors.ModelError: the model is wrapped in DataParallel: ...
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is an nn.Module; got a {type(model).__name__}")
    for module in model.modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ModelError(
                "the model, or a part of it, is compiled (torch.compile), and a compiled function cannot be followed "
                "layer by layer; hand in the model itself, and compile it after training"
            )
        if type(module).__name__ in _COPIES:
            raise ModelError(
                f"the model is wrapped in {type(module).__name__}: its copies would clip, draw and add noise each for "
                "itself; hand in the model itself (model.module): processes of torchrun share the work by themselves"
            )


_COPIES = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def _check_layer(name: str, module: nn.Module) -> None:
    if isinstance(module, _BatchNorm):
        _check_batch_norm(name, module)
    if isinstance(module, _SpectralNorm) and module.training:
        raise ModelError(
            f"{name!r} is a spectral norm in train mode: its power iteration changes its buffers with every call, so "
            "that the calls of one step would see different models; put it into eval mode, or use "
            "parametrizations.weight_norm"
        )
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm | WeightNorm):
            kind = "spectral_norm" if isinstance(hook, SpectralNorm) else "weight_norm"
            raise ModelError(
                f"layer {name!r} has the old torch.nn.utils.{kind}, which writes a tensor into the layer with every "
                f"call; use torch.nn.utils.parametrizations.{kind}"
                + (" in eval mode" if kind == "spectral_norm" else "")
            )
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        raise ModelError(
            f"layer {name!r} is a {type(module).__name__} with running statistics, which carry data from one "
            "example to the next; build it with track_running_stats=False"
        )


def _check_hooks(name: str, weight: nn.Parameter) -> None:
    """A unit's gradient never passes through its weight, so that a hook there would be left out in silence."""
    if weight.requires_grad and (weight._backward_hooks or weight._post_accumulate_grad_hooks):
        raise ModelError(
            f"parameter {name!r} has a hook (register_hook), which would never run: gradients are clipped and summed "
            "without being formed there; remove it, and change released gradients in the optimizer, or train a part "
            "of a weight as a Parameter of its own"
        )


def _check_batch_norm(name: str, module: _BatchNorm) -> None:
    """With fixed statistics it is an affine map of each example; else the batch's own would take their place."""
    if not module.training and module.running_mean is not None and module.running_var is not None:
        if name not in _fixed:
            _fixed.add(name)
            log.warning(
                "layer %r keeps the statistics it has: what is promised assumes that they are public", name
            )
        return
    raise ModelError(
        f"layer {name!r} is a {type(module).__name__}: it normalises with the whole batch's statistics, so one "
        "example's gradient depends on the others and clipping bounds nothing; replace it with "
        "saltflat.without_batchnorm(model), which puts GroupNorm in its place, or, if its running statistics are "
        "public, put it into eval mode and leave it there"
    )


log = logging.getLogger("saltflat")
_fixed: set[str] = set()  # layers that the log has named already


def without_batchnorm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm in the place of every BatchNorm.

    The number of groups is the largest divisor of the channels that is at most ``groups``; in the place of a
    BatchNorm1d, which may see one number per channel, each group has at least 16 channels, or all of them. Learned
    scales and shifts are kept; running statistics, which came from data, are dropped.

    >>> norm = without_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), groups=4)[1]
    >>> type(norm).__name__, norm.num_groups, norm.num_channels
    ('GroupNorm', 4, 8)
    >>> without_batchnorm(nn.BatchNorm1d(64)).num_groups
    4
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is an nn.Module; got a {type(model).__name__}")
    if not is_whole(groups):
        raise SettingError(f"groups is a whole number, at least 1; got {groups!r}")
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _group_norm(child, groups))
    return model


def _group_norm(batch_norm: _BatchNorm, groups: int) -> nn.Module:
    if isinstance(batch_norm.weight, UninitializedParameter):
        raise ModelError("a lazy BatchNorm has no channels yet: run one batch through the model first")
    channels, least = batch_norm.num_features, 16 if isinstance(batch_norm, nn.BatchNorm1d) else 1
    fitting = [g for g in range(1, min(groups, channels) + 1) if channels % g == 0 and channels // g >= least]
    norm = nn.GroupNorm(max(fitting, default=1), channels, batch_norm.eps, affine=batch_norm.affine)
    if batch_norm.affine:
        norm.weight, norm.bias = batch_norm.weight, batch_norm.bias
    after = list(batch_norm.children())  # an activation inside the norm, as some libraries have it
    return nn.Sequential(norm, *after) if after else norm
