"""Features of a pretrained model: any nn.Module, one of timm, one of Hugging Face; frozen, and computed once.

*Guarantee*: an example's features depend on that example alone, and on weights that private data never touched. That
those weights were made from public data is declared by whoever takes the model, and the statement says so.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.data.examples import IMAGENET, Examples, Scale, Split
from saltflat.errors import ModelError, SettingError
from saltflat.features.computed import Watch, kept_or_made
from saltflat.features.stages import AT_ONCE, Seen, Shape, check_apart, check_image
from saltflat.settings import is_whole

Pick = Callable[[Any], Tensor]
SOURCES = ("timm", "transformers")


def transferred(
    split: Split,
    model: nn.Module,
    *,
    name: str,
    pick: Pick | None = None,
    cache: str | Path | None = None,
    watch: Watch | None = None,
) -> Split:
    """The split with a public model's features in the place of its examples; a private head is trained on those.

    ``name`` is how the statement calls the model. ``pick`` takes features out of what the model gives; without it they
    are a tensor as it is, ``pooler_output``, the mean of ``last_hidden_state``, or ``logits``. With ``cache``, or the
    variable SALTFLAT_CACHE, they are kept under a hash of weights and examples, in files as private as the data; with
    a ``pick`` of your own they are not kept.

    *Guarantee*: the model is copied, in eval mode, in float32, and sees no gradient. One that lets examples of a batch
    reach each other, or that keeps something of them, is refused.

    >>> some = Examples(torch.rand(5, 4), torch.arange(5) % 2)
    >>> found = transferred(Split(some, some, 2), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), name="a random layer")
    >>> found.shape, found.train.features
    ((3,), 'a random layer, a model declared to be made from public data alone')
    """
    if not (isinstance(name, str) and name.strip()):
        raise SettingError("name is empty: say which public model it is, as the privacy statement prints it")
    fixed, parts = Frozen(model, pick), {"train": split.train, "test": split.test}
    made_up = 2 * torch.rand(4, *split.shape) - 1
    check_apart(fixed, torch.randint(max(1, split.words), (4, *split.shape)) if split.words else made_up)
    total, done, own = sum(part.count for part in parts.values()), 0, digest(fixed)
    for key, part in parts.items():
        told = None if watch is None else partial(_told, watch, done, total)
        way = f"{own} {part.scale}" if pick is None else None
        found = kept_or_made(part.inputs, way, partial(_through, fixed, part), cache, told)
        parts[key] = Examples(found, part.targets, features=declared(name))
        done += part.count
    if digest(fixed) != own:
        raise ModelError("the extractor keeps something of what it sees in its own tensors; take another one")
    return replace(split, train=parts["train"], test=parts["test"])


def declared(name: str) -> str:
    """What the statement says of a pretrained model."""
    return f"{name}, a model declared to be made from public data alone"


def _told(watch: Watch, before: int, total: int, count: int) -> None:
    watch(before + count, total)


def _through(fixed: nn.Module, part: Examples, watch: Callable[[int], None] | None) -> Tensor:
    """All examples, as a model is given them."""
    found = []
    with torch.no_grad():
        for inputs, _ in part.batches(AT_ONCE):
            found.append(fixed(inputs))
            if watch is not None:
                watch(sum(map(len, found)))
        if not found:
            return fixed(part.take(torch.zeros(0, dtype=torch.long).numpy())[0])
    return torch.cat(found)


class Frozen(nn.Module):
    """A copy of a model that only looks: eval mode, float32, no gradient; what it gives as one tensor of features."""

    def __init__(self, model: nn.Module, pick: Pick | None = None) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ModelError(f"an extractor is an nn.Module; got a {type(model).__name__}")
        self.model = copy.deepcopy(model).float().requires_grad_(False).eval()
        self.pick = pick or usual

    def train(self, mode: bool = True) -> Frozen:
        """It stays in eval mode, whoever asks: a norm over the batch would mix examples."""
        return super().train(False)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, enabled=False):
            found = self.pick(self.model(inputs))
        if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != len(inputs):
            raise ModelError(
                "the extractor does not give one row of features for each example; give pick=, a function that takes "
                "them out of what the model returns"
            )
        return found.detach().float()


def usual(answer: Any) -> Tensor:
    """The features in a model's answer.

    >>> usual({"last_hidden_state": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])})
    tensor([[2., 3.]])
    """
    if isinstance(answer, Tensor):
        return answer
    found = answer if isinstance(answer, dict) else vars(answer) if hasattr(answer, "__dict__") else {}
    for name in ("pooler_output", "last_hidden_state", "logits"):
        if isinstance(found.get(name), Tensor):
            return (
                found[name].flatten(1, -2).mean(1) if name == "last_hidden_state" else found[name].flatten(1)
            )
    if isinstance(answer, Sequence) and answer and isinstance(answer[0], Tensor):
        return answer[0]
    raise ModelError(
        f"no features are known in a {type(answer).__name__}; give pick=, a function that takes them"
    )


def digest(model: nn.Module) -> str:
    """A hash of a model's kind and of every tensor that it holds."""
    found = hashlib.blake2b(repr(model).encode(), digest_size=16)
    for name, leaf in model.state_dict().items():
        found.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        found.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


@dataclass(frozen=True)
class Pretrained:
    """A model of timm or Hugging Face as a stage of features: images in [0, 1] -> (width, 1, 1).

    ``source`` is "timm" or "transformers", ``name`` a model of timm, or a folder or hub name of transformers.
    ``weights`` is a local file of safetensors for timm; "hub" lets timm fetch its own. Images are resized to
    ``side`` pixels, one channel becomes three, and ImageNet's constants scale them unless ``imagenet`` is false.

    *Guarantee*: see `transferred`.
    """

    source: str
    name: str
    width: int
    side: int = 224
    weights: str = ""
    imagenet: bool = True

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise SettingError(f"source is one of {', '.join(SOURCES)}; got {self.source!r}")
        if not self.name:
            raise SettingError("name is empty: which model of the source is it?")
        for key in ("width", "side"):
            if not is_whole(getattr(self, key)):
                raise SettingError(f"{key} is a whole number, at least 1; got {getattr(self, key)!r}")
        if self.source == "timm" and not self.weights:
            raise SettingError(
                'weights are missing: a file of safetensors, or "hub"; random ones are no features'
            )

    @property
    def public_model(self) -> bool:
        """That it is to be declared in the statement."""
        return True

    def after(self, shape: Shape) -> Shape:
        channels, _, _ = check_image(shape, "Pretrained")
        if channels not in (1, 3):
            raise SettingError(f"Pretrained takes images of 1 channel or 3, and these have {channels}")
        return (self.width, 1, 1)

    def made(self, shape: Shape, seen: Seen) -> nn.Module:
        self.after(shape)
        whole = Sighted(Frozen(self._loaded()), self.side, IMAGENET if self.imagenet else None)
        check_apart(whole, torch.rand(4, *shape))
        with torch.no_grad():
            found = tuple(whole(torch.rand(1, *shape)).shape[1:])
        if found != (self.width, 1, 1):
            raise SettingError(
                f"{self.name} gives {found[0]} features, and width = {self.width} was declared"
            )
        return whole

    def _loaded(self) -> nn.Module:
        try:
            return _of_timm(self.name, self.weights) if self.source == "timm" else _of_transformers(self.name)
        except ImportError:
            raise SettingError(f"{self.source} cannot be imported: pip install 'saltflat[models]'") from None
        except SettingError:
            raise
        except Exception as error:  # whatever the packages raise: no such name, no such file, no network
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SettingError(f"{self.name} cannot be loaded from {self.source}: {first}") from None


class Sighted(nn.Module):
    """Images in [0, 1], as a pretrained model wants them; its features as one column of channels."""

    def __init__(self, model: nn.Module, side: int, scale: Scale | None) -> None:
        super().__init__()
        self.model, self.side, self.scale = model, side, scale

    def forward(self, images: Tensor) -> Tensor:
        rows = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        if rows.shape[2:] != (self.side, self.side):
            rows = F.interpolate(rows, (self.side, self.side), mode="bilinear", align_corners=False)
        if self.scale is not None:
            mean, std = (torch.tensor(v).view(-1, 1, 1).to(rows) for v in (self.scale.mean, self.scale.std))
            rows = (rows - mean) / std
        return self.model(rows).flatten(1).unsqueeze(-1).unsqueeze(-1)


def _of_timm(name: str, weights: str) -> nn.Module:
    import timm

    if weights == "hub":
        return timm.create_model(name, pretrained=True, num_classes=0)
    from safetensors.torch import load_file

    model = timm.create_model(name, pretrained=False, num_classes=0)
    there, own = load_file(weights), model.state_dict()
    if missing := sorted(key for key in own if key not in there or there[key].shape != own[key].shape):
        raise SettingError(
            f"{weights} does not hold the weights of {name}: {missing[0]!r} is missing, or of another shape"
        )
    model.load_state_dict({key: there[key] for key in own})
    return model


def _of_transformers(name: str) -> nn.Module:
    from transformers import AutoModel

    return AutoModel.from_pretrained(name)
