"""`nn.MultiheadAttention`: linear layers around a softmax, on a batch that torch keeps on the second axis."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import ModelError
from saltflat.gradients.tape import Tape, rule


@rule(F.multi_head_attention_forward)
def attention(
    tape: Tape, func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """softmax(q k^T / sqrt(d)) v with its input and output projections; (time, rows, width) in and out."""
    call = _named(args, kwargs)
    if query.ndim != 3:
        raise ModelError("MultiheadAttention needs a batch: pass (rows, time, width) with batch_first=True")
    q, k, v = _projected(tape, query, key, value, call)
    mask = _mask(call, q.dtype)
    if call["bias_k"] is not None:
        k, v = (_appended(tape, x, call[name]) for x, name in ((k, "bias_k"), (v, "bias_v")))
    if call["add_zero_attn"]:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    q, k, v = (_heads(x, call["num_heads"]) for x in (q, k, v))
    if mask is not None:
        mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]))
    dropout = call["dropout_p"] if call["training"] else 0.0
    mixed, weights = _mix(q, k, v, mask, dropout, call["need_weights"])
    joined = mixed.transpose(1, 2).flatten(2)  # (rows, time, width)
    out = tape.again(F.linear, joined, call["out_proj_weight"], call["out_proj_bias"]).transpose(0, 1)
    if weights is not None and call["average_attn_weights"]:
        weights = weights.mean(1)
    return out, weights


NAMES = [
    "embed_dim_to_check",
    "num_heads",
    "in_proj_weight",
    "in_proj_bias",
    "bias_k",
    "bias_v",
    "add_zero_attn",
    "dropout_p",
    "out_proj_weight",
    "out_proj_bias",
    "training",
    "key_padding_mask",
    "need_weights",
    "attn_mask",
    "use_separate_proj_weight",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "static_k",
    "static_v",
    "average_attn_weights",
    "is_causal",
]
DEFAULTS = {"training": True, "need_weights": True, "average_attn_weights": True}


def _named(args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by name, with torch's defaults."""
    call = dict.fromkeys(NAMES) | DEFAULTS | dict(zip(NAMES, args, strict=False)) | kwargs
    if call["static_k"] is not None or call["static_v"] is not None:
        raise ModelError("multi-head attention with static keys or values has no rule; project them outside")
    return call


def _projected(tape: Tape, query: Tensor, key: Tensor, value: Tensor, call: dict[str, Any]) -> list[Tensor]:
    """q, k, v as (rows, time, width): one product where all three come from one sequence."""
    weight, bias = call["in_proj_weight"], call["in_proj_bias"]
    if not call["use_separate_proj_weight"] and query is key and key is value:
        return list(tape.again(F.linear, query.transpose(0, 1), weight, bias).chunk(3, -1))
    if call["use_separate_proj_weight"]:
        weights = [call[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = tape.again(torch.chunk, weight, 3)
    biases = [None] * 3 if bias is None else tape.again(torch.chunk, bias, 3)
    inputs = (x.transpose(0, 1) for x in (query, key, value))
    return [tape.again(F.linear, x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _appended(tape: Tape, x: Tensor, extra: Tensor) -> Tensor:
    """One more position: a trained key or value, the same for every row."""
    weight = tape.weight(extra)
    row = tape.per_row(weight, 3) if weight else extra.expand(x.shape[0], 1, -1)
    return torch.cat([x, row], 1)


def _heads(x: Tensor, count: int) -> Tensor:
    """(rows, time, width) -> (rows, heads, time, width / heads)."""
    return x.unflatten(2, (count, -1)).transpose(1, 2)


def _mask(call: dict[str, Any], dtype: torch.dtype) -> Tensor | None:
    """Attention and padding masks as one additive mask, (rows or 1, heads or 1, time, time)."""
    total = None
    for mask, view in ((call["attn_mask"], _over_rows), (call["key_padding_mask"], _over_queries)):
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
        mask = view(mask, call["num_heads"])
        total = mask if total is None else total + mask
    return total


def _over_rows(mask: Tensor, heads: int) -> Tensor:
    return mask.unflatten(0, (-1, heads)) if mask.ndim == 3 else mask.view(1, 1, *mask.shape)


def _over_queries(mask: Tensor, heads: int) -> Tensor:
    return mask.view(mask.shape[0], 1, 1, -1)


def _mix(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    if not need_weights:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout), None
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    weights = F.dropout(weights, dropout) if dropout else weights
    return weights @ v, weights
