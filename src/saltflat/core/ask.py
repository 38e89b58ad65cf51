"""The door: the only way from a method to private data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from saltflat.clipping import COUNT, LARGEST, SMALLEST, Chunk, Clip, Counted, as_clip
from saltflat.core.group import ALONE, Group
from saltflat.core.mechanism import Bounded, Noise, clamped_sum, clipped_sum, noised
from saltflat.core.shards import NO_FRAMES, check_same_release, released_in_parts
from saltflat.door import Heard, PointsOf, Spread
from saltflat.errors import PrivacyError, SettingError
from saltflat.frames import Frame, Inside, check_frame
from saltflat.tree import Released, Tree, has_shards

Chunks = Callable[[Sequence[Tree], Sequence[float]], Iterable[Chunk]]  # points, their weights -> chunks

_ROUNDING = 1e-9  # shares such as 0.1 + 0.2 + 0.7 may miss 1 by this much


@runtime_checkable
class Sample(Protocol):
    """A step's units, which also answer what plain `Chunks` do not."""

    def __call__(self, points: Sequence[Tree], weights: Sequence[float]) -> Iterable[Chunk]: ...

    def apart(self, points_of: PointsOf, weights: Sequence[float], groups: int | None) -> Iterable[Chunk]: ...

    def losses(self, points: Sequence[Tree]) -> Iterable[Tensor]: ...

    def by_view(self, places: Sequence[int]) -> Sample: ...


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a step's answers look like: the same for every question of a phase."""

    clip_norm: float | Clip
    noise_multiplier: float
    expected_units: float  # rate x declared size, a public constant
    noise: Noise
    group: Group = ALONE  # over whose units the sum is taken


@dataclass
class _Budget:
    """What is left of one step, and what was told; shared by all views of one door."""

    left: float = 1.0
    heard: list[Heard] = field(default_factory=list)
    noised: list[Tree] = field(default_factory=list)  # the answers, in the coordinates of their frames
    fractions: list[tuple[float, float]] = field(default_factory=list)  # (share, fraction within the bound)

    def spend(self, share: float) -> None:
        if not 0 < share <= self.left + _ROUNDING:
            raise PrivacyError(
                f"a question with share {share} does not fit into what is left of this step, {self.left:.6g}; "
                "the shares of a step's questions are positive and sum to at most 1"
            )
        self.left -= share


@dataclass(frozen=True)
class _Asked:
    """Points to ask at, their weights, and the view that each is asked about, if every view has points of its own."""

    points: list[Tree]
    weights: list[float]
    places: list[int]


Near = tuple[Tree, float, int | None]  # a point, its weight, the view that it is asked about


def _itself(point: Tree, unit: int) -> Sequence[Near]:
    return [(point, 1.0, None)]


@dataclass(frozen=True)
class _View:
    """How a method's questions are changed on their way through the door."""

    part: float = 1.0  # what every share is multiplied by
    factor: float = 1.0  # what the clip norm is multiplied by
    count: float = 0.0  # the part of every answer that goes to a count of unclipped units
    near: Callable[[Tree, int], Sequence[Near]] = _itself  # which points are asked in the place of each
    by_unit: bool = False  # whether they differ from unit to unit
    by_view: bool = False  # whether they differ from view to view
    frame: Frame | None = None  # around whatever frame a question brings

    def asked(self, points: Sequence[Tree], weights: Sequence[float], unit: int) -> _Asked:
        """The points to ask instead of these."""
        pairs = zip(points, weights, strict=True)
        found = [
            (near, weight * part, place)
            for point, weight in pairs
            for near, part, place in self.near(point, unit)
        ]
        places = [place for _, _, place in found if place is not None]
        return _Asked([point for point, _, _ in found], [weight for _, weight, _ in found], places)


class Ask:
    """Answers a method's questions about one step's units, within the step's budget of 1.

    *Guarantee*: all answers of one `Ask`, counts and gaps included, together cost one Gaussian release with the
    step's noise multiplier: a question with share s gets noise sigma / sqrt(s), and shares sum to at most 1.
    """

    def __init__(
        self,
        sample: Chunks | Sample,
        release: Release,
        *,
        fresh: Ask | None = None,
        view: _View | None = None,
    ):
        self._sample = sample
        self._release = release
        self._fresh = fresh
        self._view = view or _View()
        self._budget = _Budget()

    def __call__(
        self,
        *points: Tree,
        weights: Sequence[float] | None = None,
        frame: Frame | None = None,
        share: float = 1.0,
    ) -> Released:
        """The noisy mean over units of the clipped gradient, combined over ``points`` before clipping.

            (1 / expected) (sum_i clip(sum_k weights_k g_i(points_k)) + sigma / sqrt(share) C N(0, I))

        ``weights`` are public; without them the mean over points is taken.
        """
        weights, view = _checked_weights(points, weights), self._view
        share = self._spend(share)
        asked = view.asked(points, weights, 0)
        if view.by_unit:
            own = lambda unit: view.asked(points, weights, unit).points
            chunks = self._sample_for(asked).apart(own, asked.weights, None)
        else:
            sample = self._sample_for(asked) if view.by_view else self._sample
            chunks = sample(asked.points, asked.weights)
        return self._answer(chunks, points[0], frame, share)

    def apart(
        self,
        points_of: PointsOf,
        *,
        weights: Sequence[float],
        groups: int | None = None,
        frame: Frame | None = None,
        share: float = 1.0,
    ) -> Released:
        """As a call, but each unit is asked at points of its own, ``points_of(its label)``.

        A label is drawn for each unit by chance: one of ``groups``, from 0 on, or else one that no other unit has.

        *Guarantee*: as a call. Labels are secret and independent of each other, of the data, and of a unit's place in
        it, so adding or removing a unit leaves the others' points as likely as they were.
        """
        view, like = self._view, points_of(0)[0]
        if view.by_unit:
            raise SettingError("units cannot have points of their own twice: drop one of the two methods")
        share = self._spend(share)
        own = lambda label: view.asked(points_of(label), weights, 0).points
        asked = view.asked(points_of(0), weights, 0)
        chunks = self._sample_for(asked).apart(own, asked.weights, groups)
        return self._answer(chunks, like, frame, share)

    def gap(self, low: Tree, high: Tree, *, bound: float, share: float, frame: Frame | None = None) -> float:
        """How much more the units lose at ``high`` than at ``low``: a noisy mean of clamped differences.

            r + (1 / expected) (sum_i clamp(d_i - r, -bound, bound) + sigma / sqrt(share) bound N(0, 1))

        d_i = loss_i(high) - loss_i(low); r is the rise that the ``frame`` expects, a public number, 0 without one.

        *Guarantee*: sensitivity ``bound``; it is one of the step's questions and takes its share.
        """
        if not 0 < bound < math.inf:
            raise SettingError(f"the bound on a unit's loss difference is positive and finite; got {bound}")
        if frame is not None:
            check_frame(frame)
        expected = 0.0 if frame is None else frame.rise(low, high)
        sample, share = self._whole_sample(), self._spend(share)
        differences = (losses[1] - losses[0] - expected for losses in sample.losses([low, high]))
        total = self._noised(clamped_sum(differences, bound), share)[COUNT]
        return float(total) / self._release.expected_units + expected

    @property
    def fresh(self) -> Ask:
        """A door to a second sample of this step, if the method declared that it draws one."""
        if self._fresh is None:
            raise PrivacyError(
                "this step drew one sample only; a method that needs another sets `fresh_noise`"
            )
        return self._fresh

    @property
    def noise_std(self) -> float:
        """The noise on each coordinate of an answer that takes the whole step: sigma C / expected."""
        return self._std(self._release.noise_multiplier, self.sensitivity)

    @property
    def sensitivity(self) -> float:
        """How far one unit can move the sum of gradients: the clip norm of this step."""
        return self._clip.sensitivity

    @property
    def heard(self) -> Sequence[Heard]:
        """The questions of this step so far, with their answers."""
        return tuple(self._budget.heard)

    @property
    def noised(self) -> Sequence[Tree]:
        """The same answers in the coordinates of their frames, where every one of them has noise."""
        return tuple(self._budget.noised)

    @property
    def fraction(self) -> float | None:
        """The noisy fraction of units within the clip norm, if it was counted; the more exact weigh more."""
        total = math.fsum(share for share, _ in self._budget.fractions)
        return math.fsum(s * f for s, f in self._budget.fractions) / total if total else None

    def part(self, share: float) -> Ask:
        """This door, with every share times ``share``: what is left over is for other questions."""
        return self._seen(replace(self._view, part=self._view.part * share), self._fresh)

    def spread(self, spread: Spread, *, by_unit: bool = False, by_view: bool = False) -> Ask:
        """This door, asking at the points and weights ``spread(point, label)`` in the place of every point.

        They come from public data, public randomness and earlier releases. Without ``by_unit`` the unit's label is
        always 0. With ``by_view`` the k-th of them is asked about the k-th view of every unit only.
        """
        outer = self._view
        if by_view and outer.by_view:
            raise SettingError("views cannot have points of their own twice: drop one of the two methods")

        def both(point: Tree, unit: int) -> list[Near]:
            near = enumerate(spread(point, unit if by_unit else 0))
            return [
                (further, weight * part, number if by_view else place)
                for number, (each, weight) in near
                for further, part, place in outer.near(each, unit if outer.by_unit else 0)
            ]

        fresh = self._fresh and self._fresh.spread(spread, by_unit=by_unit, by_view=by_view)
        unit, view = by_unit or outer.by_unit, by_view or outer.by_view
        return self._seen(replace(outer, near=both, by_unit=unit, by_view=view), fresh)

    def counting(self, factor: float, share: float) -> Ask:
        """This door with ``factor`` times the clip norm, and ``share`` of every answer for `fraction`.

        *Guarantee*: ``factor`` must come from earlier releases. See `Counted` for the cost of the count.
        """
        if not (0 <= share < 1 and 0 < factor < math.inf):
            raise SettingError(
                f"a count takes a share in [0, 1) at a positive factor; got {share} at {factor}"
            )
        self._clip.counted(share)  # a rule that cannot be counted says so now
        fresh = self._fresh and self._fresh.counting(factor, 0.0)
        return self._seen(replace(self._view, factor=factor * self._view.factor, count=share), fresh)

    def framed(self, frame: Frame) -> Ask:
        """This door, with ``frame`` around every question's own: units enter it last, and answers leave it first.

        *Guarantee*: as any frame, it comes from public data, public randomness or earlier releases.
        """
        check_frame(frame)
        outer = self._view.frame
        both = frame if outer is None else Inside(frame, outer)
        return self._seen(replace(self._view, frame=both), self._fresh and self._fresh.framed(frame))

    def _seen(self, view: _View, fresh: Ask | None) -> Ask:
        """Another view of this door: one budget for both."""
        door = Ask(self._sample, self._release, fresh=fresh, view=view)
        door._budget = self._budget
        return door

    def _spend(self, share: float) -> float:
        share *= self._view.part
        self._budget.spend(share)
        return share

    def _answer(self, chunks: Iterable[Chunk], like: Tree, frame: Frame | None, share: float) -> Released:
        frame = self._around(frame)
        if frame is not None and has_shards(like):
            raise SettingError(NO_FRAMES)
        if frame is not None:
            chunks = map(frame.enter, chunks)
        bounded = self._bounded(chunks, like)
        answer = self._noised(bounded, share)
        for leaf in answer.values():  # ours alone: nothing else has seen it yet
            leaf.div_(self._release.expected_units)
        self._count(answer, share)
        std = self._std(self._multiplier(share), bounded.sensitivity)
        released = Released(_narrowed(answer if frame is None else frame.leave(answer), like), noise_std=std)
        self._budget.heard.append(Heard(like, released))
        self._budget.noised.append(released if frame is None else _narrowed(answer, like))
        return released

    def _around(self, frame: Frame | None) -> Frame | None:
        if frame is not None:
            check_frame(frame)
        outer = self._view.frame
        return frame if outer is None else outer if frame is None else Inside(frame, outer)

    @property
    def _clip(self) -> Clip:
        """The rule of this step's gradients; one that adapts stays where norms can be told apart."""
        rule, factor = as_clip(self._release.clip_norm), self._view.factor
        if factor == 1 or math.isinf(rule.sensitivity):
            return rule
        return rule.times(min(max(factor, SMALLEST / rule.sensitivity), LARGEST / rule.sensitivity))

    def _bounded(self, chunks: Iterable[Chunk], like: Tree) -> Bounded:
        clip = self._clip
        return clipped_sum(chunks, clip.counted(self._view.count) if self._view.count else clip, like)

    def _count(self, answer: Tree, share: float) -> None:
        """Take the count out of the answer: sum_i (b_i - 1/2) / expected + 1/2 is the fraction within the bound."""
        if COUNT in answer:
            unit = Counted(self.sensitivity, self._view.count).unit
            self._budget.fractions.append((share, float(answer.pop(COUNT)) / unit + 0.5))

    def _noised(self, bounded: Bounded, share: float) -> Tree:
        """The one place where a sum becomes a release: over all processes first, if there are several."""
        group, multiplier = self._release.group, self._multiplier(share)
        made = lambda total: noised(replace(bounded, total=total), multiplier, self._release.noise)
        if has_shards(bounded.total):  # these were summed where they were cut
            check_same_release(multiplier, bounded.sensitivity, group)
            return released_in_parts(bounded.total, made, group)
        return group.released(bounded.total, made)

    def _std(self, multiplier: float, sensitivity: float) -> float:
        """Without noise it is 0, whatever the clip norm: none at all is an infinite one."""
        return multiplier * sensitivity / self._release.expected_units if multiplier else 0.0

    def _multiplier(self, share: float) -> float:
        return self._release.noise_multiplier / share**0.5

    def _sample_for(self, asked: _Asked) -> Sample:
        """The units, each point with the view that it is asked about."""
        whole = self._whole_sample()
        return whole.by_view(asked.places) if asked.places else whole

    def _whole_sample(self) -> Sample:
        if not isinstance(self._sample, Sample):
            raise SettingError("this door opens on gradients at shared points only; build it with chunks_of")
        return self._sample


def _narrowed(answer: Tree, like: Tree) -> Tree:
    """In the types of the weights, once the noise is on it."""
    return {name: leaf.to(like[name].dtype) for name, leaf in answer.items()}


def _checked_weights(points: Sequence[Tree], weights: Sequence[float] | None) -> Sequence[float]:
    if not points:
        raise SettingError("ask needs at least one point in weight space")
    if weights is None:
        return [1 / len(points)] * len(points)
    if len(weights) != len(points):
        raise SettingError(f"ask got {len(weights)} weights for {len(points)} points; give one for each")
    return weights
