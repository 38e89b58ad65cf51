"""Keyword arguments of other libraries, and slips of the pen, answered with ours in one line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from saltflat.errors import UnknownSettingError

P = ParamSpec("P")
R = TypeVar("R")

OTHERS = {  # mostly of Opacus
    "module": "pass it as model, the first argument",
    "modules": "pass one model, the first argument",
    "criterion": 'pass it as loss, the second argument, with reduction="none"',
    "data_loader": "pass its dataset as data, the third argument: batches are drawn here, by Poisson sampling",
    "dataloader": "pass its dataset as data, the third argument: batches are drawn here, by Poisson sampling",
    "train_loader": "pass its dataset as data, the third argument: batches are drawn here, by Poisson sampling",
    "dataset": "pass it as data, the third argument",
    "target_epsilon": "say epsilon=",
    "target_delta": "say delta=",
    "max_grad_norm": "say clip_norm=, a number; for one per layer clip_norm=sf.clipping.PerLayer(...)",
    "max_per_sample_grad_norm": "say clip_norm=",
    "poisson_sampling": "leave it out: sampling is always Poisson, since the epsilon rests on it",
    "clipping": "say clip_norm=, a number or a rule such as sf.clipping.PerLayer(...)",
    "grad_sample_mode": "leave it out: there is one way, without per-example gradients in memory",
    "batch_first": "leave it out: examples are always on the first axis",
    "loss_reduction": 'leave it out and give a loss with reduction="none", one number per example',
    "noise_generator": "leave it out: noise is secret; for tests safeguards=sf.Safeguards(noise=...)",
    "secure_mode": "leave it out: noise is always cryptographic, and secret unless safeguards= says otherwise",
    "accountant": "leave it out: steps are composed by their privacy loss distributions",
    "sample_rate": "say batch_size=, the expected one, and size= if the number of examples is public",
    "expected_batch_size": "say batch_size=, which is the expected one",
    "example": "say running=sf.Running(example=...)",
    "max_tokens": "say running=sf.Running(max_tokens=...)",
    "max_physical_batch_size": "say running=sf.Running(physical=...)",
    "sigma": "say noise_multiplier=, the noise divided by the clip norm",
    "target_unit_norm": "wrap the method: method=sf.methods.Rescaled(...)",
    "lr": "say optimizer=, sf.optimizers.SGD(lr=2.0) for fit, a torch.optim optimizer for make_private",
    "learning_rate": "say optimizer=, sf.optimizers.SGD(lr=2.0) for fit, a torch.optim optimizer for make_private",
    "batch": "say batch_size=",
    "steps": "say epochs=: a step sees batch_size examples, so epochs is steps x batch_size / size",
    "max_steps": "say epochs=: a step sees batch_size examples, so epochs is steps x batch_size / size",
    "num_epochs": "say epochs=",
    "num_workers": "say workers=",
    "physical": "say running=sf.Running(physical=...)",
    "checkpoints": "say running=sf.Running(checkpoints=...)",
    "watch": "say running=sf.Running(watch=...)",
    "callback": "say running=sf.Running(watch=...)",
    "callbacks": "say running=sf.Running(watch=...)",
    "meter": "say safeguards=sf.Safeguards(meter=...)",
    "noise": "say safeguards=sf.Safeguards(noise=...)",
    "verbose": "leave it out; quiet=True turns the progress line of fit off",
    "scheduler": "give fit a schedule as the optimizer's lr; with make_private call it in your own loop",
    "reproduce": "leave it out, and take a delta below 1 / size: fit and make_private have no exception",
}


def answering(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which answers a keyword that it does not have with the one that is meant.

    >>> @answering
    ... def fit(*, epsilon: float) -> float:
    ...     return epsilon
    >>> fit(target_epsilon=3)
    Traceback (most recent call last):
    saltflat.errors.UnknownSettingError: fit has no target_epsilon: say epsilon=
    """
    known = inspect.signature(function).parameters

    @wraps(function)
    def answered(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise UnknownSettingError(f"{function.__name__} has no {name}: {_answer(name, list(known))}")
        return function(*args, **kwargs)

    return answered


def _answer(name: str, known: list[str]) -> str:
    if name in OTHERS:
        return OTHERS[name]
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}=?" if near else f"it takes {', '.join(known)}"
