"""One call: a model, a loss and data go in, a privately trained model and its privacy statement come out.

This file loads little, so that the call shows a line at once: accountants take some seconds to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from saltflat.front.answers import answering
from saltflat.front.shown import shown
from saltflat.front.usual import METHOD, OPTIMIZER

if TYPE_CHECKING:
    from saltflat.clipping import Clip
    from saltflat.core.contribution import Loss
    from saltflat.core.plan import Plan
    from saltflat.core.sampling import Batch
    from saltflat.core.step import Safeguards
    from saltflat.core.train import Running
    from saltflat.door import AnyMethod
    from saltflat.front.fitting import Fitted
    from saltflat.optimizers import Optimizer


@answering
def fit(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    advantage: float | None = None,
    method: AnyMethod = METHOD,
    batch_size: int | None = None,
    epochs: float | None = None,
    clip_norm: float | Clip | None = None,
    size: int | None = None,
    optimizer: Optimizer = OPTIMIZER,
    plan: Plan | None = None,
    private: bool = True,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
    workers: int = 0,
    safeguards: Safeguards | None = None,
    running: Running | None = None,
    quiet: bool = False,
) -> Fitted:
    """Train ``model`` on private ``data`` within (epsilon, delta); its trained weights are replaced in the end.

    ``loss``: a criterion that gives one loss per example, ``nn.CrossEntropyLoss(reduction="none")``, for data made
    of (inputs, targets); or a function ``loss(predict, batch)`` for anything else. Every nn.Module is taken for a
    criterion, every other callable for a function. ``data``: tensors or arrays of numpy, a tuple or dictionary of
    them, a map-style dataset, which ``workers`` processes may read, `saltflat.data.Examples`; batches go to the model's
    device. Frozen parameters stay as they are.

    The method is DP-SAT at radius 0.03 and the optimizer SGD(lr=2.0, momentum=0.9) at clip norm 0.1 unless others are
    given. For a table (rows of floats, with a cross-entropy) clip norm and optimizer are 3.0 and SGD(momentum=0.9) with
    a learning rate of 0.02 to 0.2 that follows size x epsilon, if neither is given: probabilities are then calibrated.
    ``batch_size`` is the expected one: each example joins a step by itself, with probability batch_size / size.
    ``size`` is a public bound on the number of examples; without it that number is read from the data, and the
    statement says so. What is left out follows it: batch_size is half of it, at most 2048; epochs are 10 below 1,000
    examples, 20 below 10,000, 40 from there; delta is the largest power of ten that is at most 1 / (10 size), and at
    most 1e-5.
    ``noise_multiplier``, in the place of epsilon, is the noise divided by the clip norm; the statement has the epsilon.
    ``advantage``, in the place of both, is the most by which the true positive rate of any membership attack may pass
    its false positive rate: 0.1 keeps guesses about one example right in at most 55 % of cases.
    ``private=False`` is a baseline: the same steps with neither clip nor noise, stamped as not private everywhere. The
    usual learning rate is then times clip_norm, as gradients are not clipped to it.
    ``views`` and ``augment`` are those of `per_example`. ``plan``, from `sai` or of phases of your own, takes the place
    of method, batch_size, epochs, clip_norm and optimizer; with ``epsilon`` its noise is scaled to fit, without it runs
    as it is. ``safeguards`` holds what the promise rests on beside the plan (sources of noise and sampling, a ledger's
    run as meter), ``running`` what changes no step (the physical batch size, checkpoints, a callback).

    A line on stderr says how far the run is, unless ``quiet``. Ctrl-C lets the step end and returns what there is, with
    ``interrupted`` set; a second one breaks off. SIGTERM, which asks the whole program to end, raises `Interrupted`.
    ``running.watch`` sees the model with its current weights after each step, and ends the run by returning True.

    *Guarantee*: the weights, and every weight on the way, cost at most ``epsilon`` at ``delta`` for one example, added
    or removed, under Poisson sampling. The noise is calibrated and the statement worked out before an example is
    looked at. Inputs must not be scaled by statistics of the data.
    A run that ends early states the whole plan's epsilon, since results may have chosen when; `Fitted.spent` is what
    its steps cost if none did. After a Ctrl-C without a ``watch``, where no result was shown, the steps taken are
    stated. A ``watch`` that looks at private data tells of it by when it stops, and no epsilon covers that.
    Steps that run again after a crash cost more than that. So checkpoints need a ledger's run as the meter, of the
    same name or identity each time, and the statement then counts every step on record for this run.

    >>> import torch, saltflat as sf
    >>> x, y = torch.randn(300, 5), torch.randint(2, (300,))
    >>> criterion = nn.CrossEntropyLoss(reduction="none")
    >>> fit(nn.Linear(5, 2), criterion, (x, y), epsilon=3, method=sf.methods.DPSGD(), quiet=True)
    epsilon 3 at delta 1e-05
    unit: one example; adjacency: add or remove one unit
    sampling: Poisson sampling at rate 0.5; accountant: PLD
    an attacker guesses whether one example was used right in at most ... % of cases (advantage at most ...)
    DPSGD: 20 steps, noise multiplier ...
    """
    with shown(quiet=quiet) as screen:
        from saltflat.front.fitting import fitted

        return fitted(
            screen,
            model,
            loss,
            data,
            {
                "epsilon": epsilon,
                "delta": delta,
                "noise_multiplier": noise_multiplier,
                "advantage": advantage,
                "method": method,
                "batch_size": batch_size,
                "epochs": epochs,
                "clip_norm": clip_norm,
                "plan": plan,
                "optimizer": optimizer,
                "size": size,
                "private": private,
            },
            {"views": views, "augment": augment, "workers": workers},
            safeguards=safeguards,
            running=running,
        )
