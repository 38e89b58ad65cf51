"""The door: the only way from a method to private data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from saltflat.core.frame import Frame
from saltflat.core.mechanism import Chunk, Noise, clipped_sum, noised
from saltflat.core.tree import Tree
from saltflat.errors import PrivacyError, SettingError

Chunks = Callable[[Sequence[Tree], Sequence[float]], Iterable[Chunk]]  # points, their weights -> chunks

_ROUNDING = 1e-9  # shares such as 0.1 + 0.2 + 0.7 may miss 1 by this much


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a step's answers look like: the same for every question of a phase."""

    clip_norm: float
    noise_multiplier: float
    expected_units: float  # rate x declared size, a public constant
    noise: Noise


class Ask:
    """Answers a method's questions about one step's units, within the step's budget of 1.

    *Guarantee*: all answers of one `Ask` together cost one Gaussian release with the step's
    noise multiplier: a question with share s gets noise sigma / sqrt(s), and shares sum to at most 1.
    """

    def __init__(self, chunks: Chunks, release: Release):
        self._chunks = chunks
        self._release = release
        self._left = 1.0

    def __call__(
        self,
        *points: Tree,
        weights: Sequence[float] | None = None,
        frame: Frame | None = None,
        share: float = 1.0,
    ) -> Tree:
        """The noisy mean over units of the clipped gradient, combined over ``points`` before clipping.

            (1 / expected) (sum_i clip(sum_k weights_k g_i(points_k)) + sigma / sqrt(share) C N(0, I))

        ``weights`` are public; without them the mean over points is taken.
        """
        weights = _checked_weights(points, weights)
        self._spend(share)
        release, like = self._release, points[0]
        chunks: Iterable[Chunk] = self._chunks(points, weights)
        if frame is not None:
            chunks = map(frame.enter, chunks)
        bounded = clipped_sum(chunks, release.clip_norm, like)
        answer = noised(bounded, release.noise_multiplier / share**0.5, release.noise)
        for leaf in answer.values():  # ours alone: nothing else has seen it yet
            leaf.div_(release.expected_units)
        return answer if frame is None else frame.leave(answer)

    def _spend(self, share: float) -> None:
        if not 0 < share <= self._left + _ROUNDING:
            raise PrivacyError(
                f"a question with share {share} does not fit into what is left of this step, {self._left:.6g}; "
                "the shares of a step's questions are positive and sum to at most 1"
            )
        self._left -= share


def _checked_weights(points: Sequence[Tree], weights: Sequence[float] | None) -> Sequence[float]:
    if not points:
        raise SettingError("ask needs at least one point in weight space")
    if weights is None:
        return [1 / len(points)] * len(points)
    if len(weights) != len(points):
        raise SettingError(f"ask got {len(weights)} weights for {len(points)} points; give one for each")
    return weights
