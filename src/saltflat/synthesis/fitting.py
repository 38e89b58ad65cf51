"""A generator fitted to public examples, and what it makes. Every draw is a function of the seed and the step, so a
fit that was stopped goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.errors import DataError, SettingError
from saltflat.methods.draws import check_seed, public_draws
from saltflat.settings import is_number, is_positive, is_whole
from saltflat.synthesis.diffusion import EDM, Diffusion, Guide
from saltflat.synthesis.nonleaking import NonLeaking
from saltflat.synthesis.unet import UNet, UNetwork
from saltflat.tree import Tree

DRAWN = 500  # images that are drawn together


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a generator is fitted: the ``network``, the ``diffusion``, and how many images it sees in all (``seen``).

    Adam; the learning rate rises in a line over the first ``ramp`` images. What is used in the end is a running mean of
    the weights, whose half-life is ``half_life`` images, and at the beginning a twentieth of those seen.

    The defaults are for a processor. Karras et al. take 200 million images in batches of 512, a ramp of 10 million and
    a half-life of half a million, with `UNet.full()`.

    >>> Fit(seen=1000, batch=100).steps
    10
    """

    network: UNet = field(default_factory=UNet)
    diffusion: Diffusion = field(default_factory=EDM)
    augment: NonLeaking = field(default_factory=NonLeaking)
    seen: int = 100_000
    batch: int = 128
    lr: float = 1e-3
    ramp: int = 5_000
    half_life: float = 10_000.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seen", "batch"):
            if not is_whole(getattr(self, name), 1, 10**12):
                raise SettingError(
                    f"{name} is a whole number of images, at least 1; got {getattr(self, name)!r}"
                )
        if not is_positive(self.lr):
            raise SettingError(f"lr must be above 0, and finite; got {self.lr!r}")
        if not is_number(self.ramp, 0) or not is_positive(self.half_life):
            raise SettingError(
                f"ramp is 0 or more, half_life above 0; got {self.ramp!r} and {self.half_life!r}"
            )
        check_seed(self.seed)

    @property
    def steps(self) -> int:
        """How often the weights are moved."""
        return -(-self.seen // self.batch)

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.lr * min(1.0, (step + 1) * self.batch / self.ramp) if self.ramp else self.lr

    def decay(self, step: int) -> float:
        """How much of the running mean a step leaves: 0.5^(batch / half-life)."""
        half = min(self.half_life, 0.05 * (step + 1) * self.batch)
        return float(0.5 ** (self.batch / half))


@dataclass(frozen=True)
class Trained:
    """Where a fit stands after ``step`` steps: weights, their running mean, and what Adam remembers."""

    step: int
    weights: Tree = field(repr=False)
    mean: Tree = field(repr=False)
    first: Tree = field(repr=False)
    second: Tree = field(repr=False)


@dataclass(frozen=True)
class Seen:
    """What is told after a step; ``now`` gives the position, to keep it."""

    step: int
    steps: int
    loss: float
    now: Callable[[], Trained] = field(repr=False)


def fit(
    how: Fit,
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    start: Trained | None = None,
    watch: Callable[[Seen], None] = lambda seen: None,
) -> Fitted:
    """The generator after its last step, from the beginning or from ``start``.

    Images (n, c, h, w) have values from 0 to 1. *Guarantee*: none of privacy. The images are public, all of them: a
    generator knows by heart what it was fitted to (`metrics.copies`).
    """
    _check_images(images, labels, classes)
    clean, labels = 2 * images.float() - 1, labels.long()
    network = _network(how, tuple(images.shape[1:]), classes)
    mean = {name: p.detach().clone() for name, p in network.named_parameters()}
    optimizer = torch.optim.Adam(network.parameters(), lr=how.lr)
    first = 0
    if start is not None:
        first, mean = start.step, {name: leaf.clone() for name, leaf in start.mean.items()}
        _set(network, optimizer, start)
    for step in range(first, how.steps):
        source = public_draws(how.seed, step)
        chosen = torch.randint(len(clean), (how.batch,), generator=source)
        changed, said = how.augment(clean[chosen], source)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((how.seed * 1_000_003 + step) % 2**63)  # dropout's
            loss = how.diffusion.loss(network.given(labels[chosen], said), changed, source).mean()
            optimizer.zero_grad()
            loss.backward()
        optimizer.param_groups[0]["lr"] = how.rate(step)
        optimizer.step()
        with torch.no_grad():
            for name, leaf in network.named_parameters():
                mean[name].lerp_(leaf, 1 - how.decay(step))
        now = lambda step=step: _position(step + 1, network, mean, optimizer)
        watch(Seen(step + 1, how.steps, _finite(float(loss.detach()), step), now))
    return Fitted(how, tuple(images.shape[1:]), classes, mean)


def _check_images(images: Tensor, labels: Tensor, classes: int) -> None:
    if images.ndim != 4 or len(images) == 0 or len(images) != len(labels):
        raise DataError(
            f"a generator is fitted to images (n, c, h, w) with a label each, one at least; got {tuple(images.shape)} "
            f"and {len(labels)} labels"
        )
    if images.dtype == torch.uint8 or float(images.min()) < 0 or float(images.max()) > 1:
        raise DataError("images for a generator have values from 0 to 1: divide pixels by 255")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(f"labels must lie in 0 to {classes - 1}; some do not")


def _network(how: Fit, shape: tuple[int, ...], classes: int) -> UNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        return how.network.made(shape, classes)


def _set(network: nn.Module, optimizer: torch.optim.Adam, start: Trained) -> None:
    """Weights and Adam's memory, as they were."""
    network.load_state_dict(start.weights)
    for name, leaf in network.named_parameters():
        optimizer.state[leaf] = {
            "step": torch.tensor(float(start.step)),
            "exp_avg": start.first[name].clone(),
            "exp_avg_sq": start.second[name].clone(),
        }


def _position(step: int, network: nn.Module, mean: Tree, optimizer: torch.optim.Adam) -> Trained:
    own = dict(network.named_parameters())
    copied = lambda tree: {name: leaf.detach().clone() for name, leaf in tree.items()}
    remembered = lambda key: {name: optimizer.state[leaf][key].clone() for name, leaf in own.items()}
    return Trained(step, copied(own), copied(mean), remembered("exp_avg"), remembered("exp_avg_sq"))


def _finite(loss: float, step: int) -> float:
    if loss != loss or loss in (float("inf"), float("-inf")):
        raise SettingError(f"the generator's loss is not finite after {step + 1} steps: lower lr of the fit")
    return loss


@dataclass(frozen=True)
class Fitted:
    """A fitted generator: the running mean of its weights, and how it was fitted."""

    how: Fit
    shape: tuple[int, ...]
    classes: int
    weights: Tree = field(repr=False)

    def network(self) -> UNetwork:
        """The network with these weights, to be used and not trained."""
        network = _network(self.how, self.shape, self.classes)
        network.load_state_dict(self.weights)
        return network.eval().requires_grad_(False)

    def draw(
        self,
        labels: Tensor,
        *,
        seed: int = 0,
        steps: int = 18,
        guided: Callable[[Tensor], Guide] | None = None,
        watch: Callable[[int, int], None] = lambda done, total: None,
    ) -> Tensor:
        """Images of these classes, (n, c, h, w) from 0 to 1; some hundred at a time, each lot by draws of its own.

        ``guided`` turns labels into a guide of the sampler (`Discriminator.guide`); for `EDM` only.
        """
        network, lots = self.network(), list(labels.long().split(DRAWN))
        made = []
        for number, lot in enumerate(lots):
            more = {} if guided is None else {"guide": guided(lot)}
            source = public_draws(seed, number, self.how.seed, 1)
            shape = (len(lot), *self.shape)
            drawn = self.how.diffusion.drawn(network.given(lot), shape, source, steps, **more)
            made.append(((drawn.float() + 1) / 2).clamp(0, 1))
            watch(sum(map(len, made)), len(labels))
        return torch.cat(made)


def even_labels(count: int, classes: int) -> Tensor:
    """Labels of ``count`` examples, each class as often as the others, give or take one.

    >>> even_labels(5, 2)
    tensor([0, 1, 0, 1, 0])
    """
    return torch.arange(count) % classes


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Labels as rows with a single 1."""
    return F.one_hot(labels.long(), classes).float()
