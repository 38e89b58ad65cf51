"""saltflat's engines: the parts of one private step, on the whole batch at once, as the peers do it."""

from __future__ import annotations

from functools import partial

from cases import Batch
from engines import CLIP_NORM, NOISE_MULTIPLIER, Build, Step
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat import DPSGD, SAM, SAT, SGD, per_example, supervised
from saltflat.core.ask import Ask, Release
from saltflat.core.mechanism import Clip
from saltflat.core.optim import Optimizer
from saltflat.core.plan import Method
from saltflat.core.train import trainable
from saltflat.data import Augment
from saltflat.privacy.noise import SecureNoise

MOMENTUM = SGD(lr=0.1, momentum=0.9)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """One cross-entropy per unit: the mean over its tokens, if it has any."""
    each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


def private(
    model: nn.Module,
    batch: Batch,
    *,
    method: Method,
    optimizer: Optimizer = MOMENTUM,
    clip_norm: float | Clip = CLIP_NORM,
    augment: Augment | None = None,
) -> Step:
    """One step with ``method``, noise from the default source."""
    contribution = per_example(
        model, supervised(losses), views=augment.views if augment else 1, augment=augment
    )
    release = Release(
        clip_norm=clip_norm,
        noise_multiplier=NOISE_MULTIPLIER,
        expected_units=len(batch[0]),
        noise=SecureNoise(),
    )
    params = trainable(model)
    state, memory = method.init(params), optimizer.init(params)

    def step() -> None:
        nonlocal params, state, memory
        ask = Ask(lambda points, weights: [contribution(points, weights, batch)], release)
        direction, state = method.step(ask, params, state)
        params, memory = optimizer.step(params, direction, memory)

    return step


ENGINES: dict[str, Build] = {
    "saltflat": partial(private, method=DPSGD()),
    "saltflat-sat": partial(private, method=SAT(radius=0.03)),
    "saltflat-sam": partial(private, method=SAM(radius=0.03)),
}
