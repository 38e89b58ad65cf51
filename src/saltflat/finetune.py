"""Which weights of a pretrained model are trained: all, named parts, the last layers, biases alone, adapters.

Each function changes ``requires_grad`` and nothing else (`lora` adds adapters), and gives the model back. What is
frozen is never clipped, noised or moved, so it costs no privacy; few trained weights take little noise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from saltflat.errors import ModelError, SettingError
from saltflat.settings import is_whole

TOKENS = ("cls_token", "pos_embed", "position_embeddings", "distillation_token", "dist_token")


def whole(model: nn.Module, *, frozen: Sequence[str] = ()) -> nn.Module:
    """Train every parameter but those in whose name one of ``frozen`` stands; `TOKENS` are a vision transformer's.

    >>> model = whole(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), frozen=("0.",))
    >>> trained(model)
    {'1.weight': 2, '1.bias': 1}
    """
    return _only(model, {n for n, _ in model.named_parameters() if not any(part in n for part in frozen)})


def only(model: nn.Module, *parts: str) -> nn.Module:
    """Train the parameters of these parts alone: names as in ``named_modules`` or ``named_parameters``.

    >>> trained(only(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), "1"))
    {'1.weight': 2, '1.bias': 1}
    """
    return _only(model, _under(model, parts))


def last_layers(model: nn.Module, count: int = 1) -> nn.Module:
    """Train the last ``count`` layers alone: modules that hold parameters of their own, in the order of the model.

    >>> trained(last_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), 1))
    {'2.weight': 2, '2.bias': 1}
    """
    own = [
        name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))
    ]
    if not is_whole(count, 1, len(own)):
        raise SettingError(f"count is a whole number of layers, 1 to {len(own)}; got {count!r}")
    last = set(own[-count:])
    return _only(model, {n for n, _ in model.named_parameters() if n.rpartition(".")[0] in last})


def biases(model: nn.Module, *, head: Sequence[str] = ()) -> nn.Module:
    """Train the biases alone, and the parts in ``head`` whole.

    Bu et al., "Differentially Private Bias-Term Fine-tuning of Foundation Models", ICML 2024.

    >>> trained(biases(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), head=["1"]))
    {'0.bias': 2, '1.weight': 2, '1.bias': 1}
    """
    ends = {n for n, _ in model.named_parameters() if n.rpartition(".")[2] == "bias" or n.endswith("_bias")}
    return _only(model, ends | _under(model, head))


def lora(
    model: nn.Module,
    *,
    rank: int = 8,
    alpha: float | None = None,
    targets: Sequence[str] | str | None = None,
    head: Sequence[str] = (),
    **options: Any,
) -> nn.Module:
    """Low-rank adapters of ``peft`` beside the layers in ``targets``, and the parts in ``head`` whole; no other weight.

    ``targets`` are ends of layers' names, or "all-linear"; without them the linear layers inside attention that make
    queries and values are taken. ``options`` are those of ``peft.LoraConfig``; its dropout is off unless it is asked
    for: noise does its work here.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise SettingError("lora needs the peft package: pip install 'saltflat[hf]'") from None
    if not is_whole(rank):
        raise SettingError(f"rank is a whole number, at least 1; got {rank!r}")
    wanted = {
        "r": rank,
        "lora_alpha": rank if alpha is None else alpha,
        "target_modules": targets if isinstance(targets, str) else list(targets or _queries(model)),
        "modules_to_save": list(head) or None,
        "lora_dropout": 0.0,
    }
    _under(model, head)
    try:
        return get_peft_model(model, LoraConfig(**(wanted | options)))
    except (ValueError, TypeError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SettingError(f"peft cannot put adapters into a {type(model).__name__}: {first}") from None


QUERIES = (
    "query",
    "value",
    "q_proj",
    "v_proj",
    "q_lin",
    "v_lin",
    "q",
    "v",
    "qkv",
    "c_attn",
    "query_key_value",
)


def _queries(model: nn.Module) -> list[str]:
    """The names, by their ends, of layers that make queries and values in the models that people have."""
    ends = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    found = [name for name in QUERIES if name in ends]
    if not found:
        raise SettingError(
            f"no layer of this {type(model).__name__} has a name that is known to make queries and values; say which "
            'get adapters, targets=["..."], or targets="all-linear"'
        )
    return found


def trained(model: nn.Module) -> dict[str, int]:
    """The parameters that are trained, and how many numbers each has."""
    return {name: leaf.numel() for name, leaf in model.named_parameters() if leaf.requires_grad}


def load_weights(model: nn.Module, path: str | Path, *, fresh: Sequence[str] = ()) -> nn.Module:
    """Fill the model from a local file of safetensors, or from a folder of them; parts in ``fresh`` keep their own.

    ``fresh`` is for a head with other classes. Every other tensor must be there, in its shape. *Guarantee*: none for
    whoever the weights were made from: they must be public.
    """
    there, own = _found(Path(path)), model.state_dict()
    keep = {name for name in own if any(name == part or name.startswith(f"{part}.") for part in fresh)}
    tied = {own[name].data_ptr() for name in there if name in own}  # one tensor under two names is saved once
    fits = lambda name, leaf: there[name].shape == leaf.shape if name in there else leaf.data_ptr() in tied
    wrong = [name for name, leaf in own.items() if name not in keep and not fits(name, leaf)]
    if wrong:
        raise SettingError(
            f"{path} does not hold the weights of this {type(model).__name__}: {wrong[0]!r} is missing, or of another "
            "shape; parts that shall begin anew go to fresh=[...]"
        )
    model.load_state_dict({name: own[name] if name in keep else there.get(name, own[name]) for name in own})
    return model


def _found(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    try:
        found = {name: leaf for file in files for name, leaf in load_file(file).items()}
    except (OSError, SafetensorError):
        raise SettingError(f"{path} is no file of safetensors that can be read") from None
    if not found:
        raise SettingError(f"{path} holds no file of safetensors")
    return found


def _under(model: nn.Module, parts: Sequence[str]) -> set[str]:
    """The parameters of these parts; each part must have some."""
    found: set[str] = set()
    for part in parts:
        own = {n for n, _ in model.named_parameters() if n == part or n.startswith(f"{part}.")}
        if not own:
            there = ", ".join(name for name, _ in model.named_children())
            raise SettingError(f"the model has no part {part!r} with parameters; its parts are {there}")
        found |= own
    return found


def _only(model: nn.Module, names: Collection[str]) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is an nn.Module; got a {type(model).__name__}")
    if not names:
        raise SettingError(
            "nothing would be trained: no parameter of the model is among those that were asked for"
        )
    for name, leaf in model.named_parameters():
        leaf.requires_grad_(name in names)
    return model
