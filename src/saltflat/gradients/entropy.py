"""Cross-entropy over many classes, in fewer passes over the logits: the same loss and the same gradient.

With p = softmax(z) the gradient of a row's loss is g (p - e_y), where g is what the loss receives. Automatic
differentiation goes a longer way: it writes a matrix of zeros with -g at y, and takes it through the log-softmax. Over
5,000 words these matrices are larger than all else in the step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from saltflat.gradients.tape import DATA_ALONE, rule

FEW = 64  # classes: below, nothing is gained
LEAST = 1e-30  # of float32's 1e-38


class _CrossEntropy(torch.autograd.Function):
    """(rows, classes), (rows,), the class that counts nothing -> (rows,):  l = -log p_y."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
        nothing = targets == ignored
        at = targets.masked_fill(nothing, 0).unsqueeze(1)
        p = torch.softmax(logits, 1)
        ctx.save_for_backward(logits, at, nothing)
        ctx.p = p
        own = p.gather(1, at).squeeze(1)
        losses = own.log().neg_()
        lost = (own < LEAST).nonzero().squeeze(1)
        if len(lost):  # so unlikely that p has few digits left, or none
            logs = torch.log_softmax(logits[lost], 1).gather(1, at[lost])
            losses[lost] = logs.squeeze(1).neg_()
        return losses.masked_fill_(nothing, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, at, nothing = ctx.saved_tensors
        p, ctx.p = ctx.p, None  # the gradient is written into it; a second pass makes it again
        p = torch.softmax(logits, 1) if p is None else p
        g = grad.masked_fill(nothing, 0).unsqueeze(1)
        return p.mul_(g).scatter_add_(1, at, -g), None, None


@rule(F.cross_entropy, table=DATA_ALONE)
def cross_entropy(func: Any, input: Tensor, target: Tensor, *others: Any, **named: Any) -> Tensor:
    """The usual form, one class for each row and one loss for each; any other runs as it is."""
    options = {key: value for key, value in named.items() if value is not None}
    ignored = options.pop("ignore_index", -100)
    usual = (
        not others
        and options in ({"reduction": "none"}, {"reduction": "none", "label_smoothing": 0.0})
        and input.ndim == 2
        and target.ndim == 1
        and target.dtype == torch.int64
        and input.dtype in (torch.float32, torch.float64)
        and input.shape[1] > FEW
    )
    return _CrossEntropy.apply(input, target, ignored) if usual else func(input, target, *others, **named)
