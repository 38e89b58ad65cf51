"""Settings for a private run on a table, before anything is spent: read from a measured table, and calibrated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from saltflat.advice.measured import CLASSES, Row, nearest, outside
from saltflat.core.plan import Phase, Plan, calibrate
from saltflat.door import AnyMethod
from saltflat.errors import SettingError
from saltflat.methods import DPSGD, SAT
from saltflat.models import mlp, parameter_count
from saltflat.optimizers import SGD, AdamBC, Optimizer
from saltflat.privacy.limits import checked_delta, checked_epsilon
from saltflat.recipes import Network, Recipe, Stage

RADIUS, MOMENTUM = 0.03, 0.9  # as measured
WIDTH = 32  # of the hidden layer
MOST = 8_192  # examples expected in a step; beyond the measured sizes more would only cost time
FLATTER = (
    8  # a squared error of a linear model curves so many times as much as its cross-entropy, at the most
)
NETWORKS = {"linear": 0, "mlp": 1}  # the depth of each


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What to try first, and what to expect of it. ``text`` says all of it.

    ``fit`` has the settings for `saltflat.fit`, ``plan()`` the calibrated plan, ``network()`` the model and
    ``recipe(data)`` a recipe. ``noise_to_signal`` is the length of a step's noise beside the longest that the mean of
    clipped gradients can be, noise_multiplier x sqrt(weights) / batch_size; above 1 a single step is mostly noise, and
    only many steps together average it out.
    """

    size: int
    epsilon: float
    delta: float
    features: int
    classes: int | None  # None: the target is a number
    depth: int
    batch_size: int
    epochs: float
    steps: int
    clip_norm: float
    learning_rate: float
    method: AnyMethod
    optimizer: Optimizer
    noise_multiplier: float
    noise_to_signal: float
    measured: Row
    warnings: tuple[str, ...] = ()

    @property
    def fit(self) -> dict[str, Any]:
        """The settings that `saltflat.fit` takes: ``fit(model, loss, data, **suggestion.fit)``."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "size": self.size,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "clip_norm": self.clip_norm,
            "method": self.method,
            "optimizer": self.optimizer,
        }

    def network(self) -> Any:
        """The network that the settings were measured with, at fresh weights."""
        return mlp(self.features, self.classes or 1, width=WIDTH, depth=self.depth)

    def plan(self) -> Plan:
        """The plan, with its noise."""
        return _plan(self, self.noise_multiplier)

    def recipe(self, data: str, **settings: Any) -> Recipe:
        """A recipe for ``data``, a file of yours or a data set by name; the network's width is left to the data."""
        stage = Stage(
            epochs=self.epochs, method=self.method, clip_norm=self.clip_norm, optimizer=self.optimizer
        )
        return Recipe(
            data=data,
            model=Network("mlp", {"depth": self.depth, "width": WIDTH}),
            size=self.size,
            epsilon=self.epsilon,
            delta=self.delta,
            batch_size=float(self.batch_size),
            phase=(stage,),
            **settings,
        )

    @property
    def expectation(self) -> str:
        """What to expect, in one honest sentence."""
        row = self.measured
        if self.classes is None:
            return (
                "Nothing was measured for targets that are numbers: these are the settings for classes, with an eighth "
                "of the learning rate, as a squared error curves eight times as much as a cross-entropy."
            )
        kept = (row.accuracy - row.guess) / (row.plain - row.guess)
        worth = (
            "hardly better than a guess: get more rows or a larger epsilon"
            if kept < 0.25
            else "well below what the data holds"
            if kept < 0.7
            else "most of what the data holds"
            if kept < 0.95
            else "nearly all that the data holds"
        )
        return (
            f"On made-up tables of {row.size:,} rows at epsilon {row.epsilon:g}, other ones than these settings were "
            f"chosen on, accuracy was {row.accuracy:.0%} in the mean ({row.lowest:.0%} to {row.highest:.0%} by kind of "
            f"table), against {row.plain:.0%} without privacy and {row.guess:.0%} by always naming the most common "
            f"class: {worth}. Your table is another one."
        )

    @property
    def _calibration(self) -> tuple[str, ...]:
        """What a small clip norm does to probabilities; measured by experiments/table_defaults.py."""
        if self.classes is None or self.clip_norm > 0.1:
            return ()
        return (
            "These settings were chosen for accuracy. At this clip norm probabilities come out too extreme: where you "
            "need them, take the defaults of saltflat.fit, or of saltflat train without a recipe.",
        )

    @property
    def text(self) -> str:
        """The settings and the expectation, in lines."""
        network = "a linear model" if self.depth == 0 else f"one hidden layer of {WIDTH} with tanh"
        lines = [
            f"network          {network} (mlp, depth {self.depth})",
            f"method           {self.method}",
            f"optimizer        {self.optimizer}",
            f"batch size       {self.batch_size:,} expected, of {self.size:,}",
            f"epochs           {self.epochs:g} ({self.steps} steps)",
            f"clip norm        {self.clip_norm:g}",
            f"learning rate    {self.learning_rate:g}",
            f"noise multiplier {self.noise_multiplier:.4g}, for epsilon {self.epsilon:g} at delta {self.delta:g}, one "
            "example added or removed, Poisson sampling",
            f"noise to signal  {self.noise_to_signal:.3g} in each step, at the least, with {self.features} features "
            f"and {self.classes or 1} outputs",
            "",
            self.expectation,
            *self._calibration,
            *(f"Warning: {each}." for each in self.warnings),
        ]
        return "\n".join(lines)


def suggest(
    *,
    size: int,
    epsilon: float,
    features: int = 20,
    classes: int | None = 2,
    delta: float | None = None,
    network: str | None = None,
) -> Suggestion:
    """Settings for a table of ``size`` rows at ``epsilon``, read from measurements that ship with saltflat.

    ``classes`` is None where the target is a number, for which nothing was measured.
    ``network`` is "linear" or "mlp", the better one if left out; ``delta`` min(1e-5, 1 / (10 size)) if left out.
    Between measured sizes and epsilons the settings and the expectation are those of the next smaller ones; the
    noise is calibrated for the values asked for.

    *Guarantee*: nothing is read but the arguments, which must be public: declare a size, do not count private rows.

    >>> found = suggest(size=5000, epsilon=1.0)
    >>> found.plan().epsilon(found.delta) <= 1.0
    True
    """
    _check(size, epsilon, features, classes, network)
    delta = min(1e-5, 1 / (10 * size)) if delta is None else checked_delta(delta)
    near = nearest(size, epsilon)
    if network is None:
        row = max(near, key=lambda each: each.chosen_on)
    else:
        row = next(each for each in near if each.depth == NETWORKS[network])
    if classes is None:
        row = replace(row, lr=row.lr / FLATTER)
    batch = max(1, round(min(row.rate * size, MOST)))
    warnings = outside(size, epsilon, features, classes or CLASSES[0])
    draft = _Draft(size, batch, row)
    noise = calibrate(draft.plan(1.0), epsilon=epsilon, delta=delta).phases[0].noise_multiplier
    method, optimizer = draft.parts(noise)
    weights = parameter_count(mlp(features, classes or 1, width=WIDTH, depth=row.depth))
    return Suggestion(
        size=size,
        epsilon=float(epsilon),
        delta=delta,
        features=features,
        classes=classes,
        depth=row.depth,
        batch_size=batch,
        epochs=draft.epochs,
        steps=row.steps,
        clip_norm=row.clip,
        learning_rate=row.lr,
        method=method,
        optimizer=optimizer,
        noise_multiplier=noise,
        noise_to_signal=noise * weights**0.5 / batch,
        measured=row,
        warnings=tuple(warnings),
    )


def _check(size: int, epsilon: float, features: int, classes: int | None, network: str | None) -> None:
    asked = (("size", size, 10), ("features", features, 1), ("classes", 2 if classes is None else classes, 2))
    for name, value, least in asked:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SettingError(f"{name} must be a whole number of at least {least}; got {value!r}")
    if not checked_epsilon(epsilon) > 0:
        raise SettingError(f"epsilon must be positive; got {epsilon}")
    if network is not None and network not in NETWORKS:
        raise SettingError(f"network is one of {', '.join(NETWORKS)}; got {network!r}")


@dataclass(frozen=True)
class _Draft:
    """A measured row at the size that was asked for."""

    size: int
    batch: int
    row: Row

    @property
    def epochs(self) -> float:
        return self.row.steps * self.batch / self.size

    def parts(self, noise: float) -> tuple[AnyMethod, Optimizer]:
        """Method and optimizer. AdamBC's floor is the variance of the noise, a public number."""
        row = self.row
        if row.method == "AdamBC":
            return DPSGD(), AdamBC(lr=row.lr, floor=float(f"{(noise * row.clip / self.batch) ** 2:.2g}"))
        method = SAT(radius=RADIUS) if row.method == "SAT" else DPSGD()
        return method, SGD(lr=row.lr, momentum=MOMENTUM)

    def plan(self, noise: float) -> Plan:
        method, optimizer = self.parts(noise)
        phase = Phase(
            method=method,
            steps=self.row.steps,
            noise_multiplier=noise,
            clip_norm=self.row.clip,
            optimizer=optimizer,
        )
        return Plan(phases=(phase,), rate=self.batch / self.size, size=self.size)


def _plan(suggestion: Suggestion, noise: float) -> Plan:
    return _Draft(suggestion.size, suggestion.batch_size, suggestion.measured).plan(noise)
