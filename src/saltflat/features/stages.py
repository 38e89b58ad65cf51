"""A feature map as a list of stages, each a value that says how it is made; and the module that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from saltflat.errors import ModelError, SettingError
from saltflat.synthesis import Images, Process

Shape = tuple[int, ...]  # of one image or of one example's features: channels, height, width
Seen = Callable[
    [Process, int, int], Tensor
]  # a process, how many of its images, its seed -> their features so far
DECLARED = "declared by its maker to hold nothing of private data"
AT_ONCE = 64  # images in memory, with all that a map makes of them on the way


class Stage(Protocol):
    """One step of a feature map: ``after`` says what shape it gives, ``made`` builds it.

    *Guarantee*: ``made`` is given shapes, and features of images that a program makes; never an example.
    """

    def after(self, shape: Shape) -> Shape: ...

    def made(self, shape: Shape, seen: Seen) -> nn.Module: ...


def shape_after(stages: Sequence[Stage], shape: Shape) -> Shape:
    """The shape of one example's features; quick, as nothing is made.

    >>> from saltflat.features import Scattering
    >>> shape_after([Scattering()], (1, 28, 28))
    (81, 7, 7)
    """
    for stage in stages:
        shape = stage.after(check_image(shape, type(stage).__name__))
    return shape


def built(stages: Sequence[Stage], shape: Shape) -> nn.Sequential:
    """The module for images of this shape with values in [0, 1]: fixed, without a parameter.

    >>> from saltflat.features import Grouped, Scattering
    >>> built([Scattering(), Grouped(27)], (1, 28, 28))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """
    return chained(stages, shape, _painted(shape)).eval()


def chained(stages: Sequence[Stage], shape: Shape, seen: Seen) -> nn.Sequential:
    """The module of these stages, where ``seen`` gives what made-up images are before the first of them."""
    modules: list[nn.Module] = []
    for stage in stages:
        modules.append(
            stage.made(check_image(shape, type(stage).__name__), _through(nn.Sequential(*modules), seen))
        )
        shape = stage.after(shape)
    return nn.Sequential(*modules)


def foreign(value: object) -> list[str]:
    """The kinds in a stage that are not saltflat's own: what those hold, and of whom, nobody here knows.

    >>> from saltflat.features import Whitened
    >>> foreign(Whitened()), foreign(Whitened(process=type("Mine", (), {"painted": print})()))
    ([], ['Mine'])
    """
    if value is None or isinstance(value, bool | int | float | str):
        return []
    if isinstance(value, tuple | list):
        return [kind for each in value for kind in foreign(each)]
    if is_dataclass(value) and type(value).__module__.partition(".")[0] == "saltflat":
        return [kind for part in fields(value) for kind in foreign(getattr(value, part.name))]
    return [type(value).__name__]


def described(stages: Sequence[Stage]) -> str:
    """The map in words, for the privacy statement. Of kinds that are not saltflat's own it has the names alone.

    >>> from saltflat.features import RowScaled, Scattering
    >>> described([Scattering(), RowScaled()])
    'Scattering(scales=2, angles=8), then RowScaled(norm=63.0)'
    """
    return ", then ".join(map(_described, stages))


def _described(stage: Stage) -> str:
    kinds = foreign(stage)
    if kinds:
        by = "" if kinds == [type(stage).__name__] else f" with {', '.join(kinds)}"
        return f"{type(stage).__name__}{by}, {DECLARED}"
    said = {True: ", a model declared to be made from public data alone", False: ""}
    return repr(stage) + said[getattr(stage, "public_model", False)]


def check_apart(fixed: nn.Module, rows: Tensor) -> None:
    """Refuse a map in which one made-up example changes another's features, beside it or after it."""
    try:
        with torch.no_grad():
            together = fixed(rows)
            others = torch.cat([fixed(torch.cat([row.unsqueeze(0), rows.flip(0)[:2]]))[:1] for row in rows])
            after = _after_others(fixed, rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"the extractor does not take examples of shape {tuple(rows.shape[1:])}: {first}"
        ) from None
    gaps = [(together - found).abs().max() / (together.abs().max() + 1e-12) for found in (others, after)]
    if not all(float(gap) < 1e-3 for gap in gaps):
        raise ModelError(
            "the extractor mixes examples: one's features change with who is beside it or was before, or by chance; "
            "take one that looks at each example alone, and keeps nothing of it"
        )


def _after_others(fixed: nn.Module, rows: Tensor) -> Tensor:
    """The features of these rows once far larger and smaller ones were seen, which a running statistic remembers."""
    if rows.is_floating_point():
        for size in (1e3, 1e-3):
            with suppress(Exception):  # what it makes of such numbers is nobody's matter
                fixed(size * rows)
    return fixed(rows)


def check_image(shape: Shape, who: str) -> tuple[int, int, int]:
    """Refuse shapes that are no image's."""
    if len(shape) != 3 or not all(n >= 1 for n in shape):
        raise SettingError(
            f"{who} takes images (channels, height, width), and these examples have shape {tuple(shape)}"
        )
    return shape[0], shape[1], shape[2]


def _painted(shape: Shape) -> Seen:
    """Made-up images of this shape."""

    def seen(process: Process, count: int, seed: int) -> Tensor:
        channels, height, width = shape
        if channels not in (1, 3):
            raise SettingError(f"images are made with 1 channel or 3, and these have {channels}")
        made = Images(process=process, channels=channels, side=max(height, width), seed=seed).first(count)
        return made[..., :height, :width]  # processes paint squares

    return seen


def _through(module: nn.Module, before: Seen) -> Seen:
    """Features of made-up images, by the stages so far."""
    return lambda process, count, seed: mapped(module, before(process, count, seed))


def mapped(
    module: nn.Module, images: Tensor, keep: Any = None, watch: Callable[[int], None] | None = None
) -> Tensor:
    """The features of images, uint8 ones from [0, 255] to [0, 1] first; into ``keep``, if there is one."""
    whole = keep
    with torch.no_grad():
        for start in range(0, len(images), AT_ONCE):
            rows = images[start : start + AT_ONCE]
            found = module(rows.float() / 255 if rows.dtype == torch.uint8 else rows)
            if whole is None:
                whole = found.new_empty(len(images), *found.shape[1:])
            whole[start : start + len(rows)] = found
            if watch is not None:
                watch(start + len(rows))
    return whole
