"""B1 to B3: the noise has the right scale and shape and is never used twice; each test catches its mutant."""

from __future__ import annotations

import math
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

from saltflat.core.mechanism import Bounded, Exact, Noise, noised
from saltflat.errors import ModelError, SettingError
from saltflat.privacy import box_muller
from saltflat.privacy import noise as module
from saltflat.privacy.noise import (
    DiscreteNoise,
    SecureNoise,
    SeededNoise,
    discrete_gaussian,
    discrete_noised,
    grid_sensitivity,
)
from saltflat.tree import Tree

SOURCES = [SecureNoise(), SeededNoise(3), DiscreteNoise(1 << 12)]


def draws(source: Noise, n: int = 1_000_000, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """n draws in float64, cut from leaves of uneven size."""
    sizes = [n // 3, n // 2, n - n // 3 - n // 2]
    tree = source.normal({str(i): torch.empty(size, dtype=dtype) for i, size in enumerate(sizes)})
    return torch.cat(list(tree.values())).double()


class Scaled:
    """The mutant whose noise is a little too small."""

    private = True

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def normal(self, like: Tree) -> Tree:
        return {name: x * self.factor for name, x in SecureNoise().normal(like).items()}


class Uniform:
    """The mutant with the right variance and the wrong shape."""

    private = True

    def normal(self, like: Tree) -> Tree:
        return {name: (torch.rand(x.shape) - 0.5) * math.sqrt(12) for name, x in like.items()}


# B1: scale


def variance_is_right(x: torch.Tensor) -> bool:
    """Within 0.71 % of 1: five standard deviations of the variance of 1e6 Gaussians."""
    return abs(float((x * x).mean()) - 1) < 0.0071


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_b1_variance(source: Noise, dtype: torch.dtype) -> None:
    x = draws(source, dtype=dtype)
    assert variance_is_right(x)
    assert abs(float(x.mean())) < 5.5e-3


def test_b1_catches_one_percent_less_noise() -> None:
    assert not variance_is_right(draws(Scaled(0.99)))


# B2: shape


def looks_normal(x: torch.Tensor) -> bool:
    return bool(stats.kstest(x.numpy(), "norm").pvalue > 1e-6)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_b2_normality(source: Noise, dtype: torch.dtype) -> None:
    assert looks_normal(draws(source, dtype=dtype))


@pytest.mark.parametrize("mutant", [Scaled(1.02), Uniform()], ids=["1.02 sigma", "uniform"])
def test_b2_catches(mutant: Noise) -> None:
    assert not looks_normal(draws(mutant))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tails_have_the_right_mass(dtype: torch.dtype) -> None:
    x = draws(SecureNoise(), n=4_000_000, dtype=dtype).abs()
    for threshold in (3.0, 3.5, 4.0, 4.5):
        expected = len(x) * 2 * stats.norm.sf(threshold)
        assert abs(int((x > threshold).sum()) - expected) < 6 * math.sqrt(expected)


# the transform, word by word


def exact_pair(high: int, low: int, angle: int) -> tuple[float, float]:
    """The pair that these 24 + 31 + 32 bits stand for, in 53-bit arithmetic that does not cancel."""
    numerator = (high << 32) + 2 * low + 1  # u = numerator / 2^56
    gap = 2**56 - numerator
    log_u = math.log(numerator) - 56 * math.log(2) if numerator < 2**55 else math.log1p(-gap / 2**56)
    t = (angle + 0.5) * math.pi / 2**31
    return math.sqrt(-2 * log_u) * math.cos(t), math.sqrt(-2 * log_u) * math.sin(t)


def single(words: np.ndarray, transform: box_muller.Transform = box_muller.single) -> np.ndarray:
    """The pairs for (3, n) words."""
    n = words.shape[1]
    out, scratch = torch.full((2, n), math.nan), torch.full((3, n), math.nan)
    transform(torch.from_numpy(words.astype(np.int32)), out, scratch)
    return out.double().numpy()


BUILT = pytest.mark.skipif(
    box_muller._library() is None, reason="box_muller.c was not compiled: no compiler here"
)
TRANSFORMS = [box_muller.single, pytest.param(box_muller.compiled, marks=BUILT)]
both = pytest.mark.parametrize("transform", TRANSFORMS, ids=["torch", "compiled"])


@both
def test_float32_pairs_equal_exact_arithmetic(transform: box_muller.Transform) -> None:
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 2, 2**23, 2**24 - 2, 2**24 - 1])
    high = np.concatenate([rng.integers(0, 2**24, 2000), np.repeat(edges, 50)])
    low = np.concatenate([rng.integers(0, 2**31, 2250), np.resize([0, 1, 2**30, 2**31 - 1], 50)])
    angle = rng.integers(-(2**31), 2**31, 2300)
    eighths = np.arange(
        -(2**31), 2**31, 2**29
    )  # where the compiled transform goes over to another quarter of a turn
    angle[:24] = np.concatenate([eighths, eighths + 1, eighths + 2**29 - 1])
    got = single(np.stack([high, low, angle]), transform)
    want = np.array([exact_pair(*map(int, word)) for word in zip(high, low, angle, strict=True)]).T
    assert np.isfinite(got).all()
    assert (np.abs(got - want) <= 1e-6 * np.hypot(*want) + 1e-7).all()


@both
def test_the_tail_ends_where_documented_and_the_radius_has_no_holes_at_zero(
    transform: box_muller.Transform,
) -> None:
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    longest = single(np.stack([zero, zero, zero]), transform)
    assert np.hypot(*longest)[0] == pytest.approx(math.sqrt(2 * 56 * math.log(2)), rel=1e-6)
    low = np.linspace(0, 2**31 - 1, 1000).astype(np.int64)
    near = single(np.stack([(2**24 - 1) * np.ones_like(low), low, np.zeros_like(low)]), transform)
    assert len(np.unique(np.hypot(*near))) > 990  # plain float32 has two radii here
    assert np.isfinite(single(np.stack([(2**24 - 1) * one, (2**31 - 1) * one, zero]), transform)).all()


@BUILT
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 1000])
def test_the_compiled_transform_leaves_no_pair_out_and_writes_nothing_else(n: int) -> None:
    words = np.random.default_rng(n).integers(-(2**31), 2**31, (3, n))
    room = torch.full((2 * n + 2,), math.nan)
    box_muller.compiled(torch.from_numpy(words.astype(np.int32)), room[1:-1].view(2, n), room)
    assert np.allclose(room[1:-1].view(2, n), single(words), atol=2e-6)
    assert bool(room[[0, -1]].isnan().all())


def halved(bits: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> None:
    """What a careless compiler might make of the transform: noise a hundredth too small."""
    box_muller.single(bits.clone(), out, scratch)
    out.mul_(0.99)


def hollow(bits: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor) -> None:
    """The correction for what rounding u lost, optimised away, as reordering sums would do."""
    u = ((bits[0] & 0xFFFFFF) * 2.0**-24 + (bits[1] & 0x7FFFFFFF) * 2.0**-55 + 2.0**-56).float()
    t = (bits[2].double() + 0.5) * math.pi * 2.0**-31
    out.copy_((-2 * u.log()).sqrt() * torch.stack([t.cos(), t.sin()]))


@pytest.mark.parametrize("compiled", [halved, hollow])
def test_a_compiled_transform_that_says_otherwise_is_not_used(
    compiled: box_muller.Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_muller, "_library", lambda: object())
    monkeypatch.setattr(box_muller, "compiled", compiled)
    assert not box_muller.is_sound.__wrapped__()


@BUILT
def test_the_compiled_transform_is_sound_and_used_by_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert box_muller.is_sound()
    assert box_muller.usual_transform() is box_muller.compiled
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert box_muller.usual_transform() is box_muller.single


def test_without_a_compiler_torch_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_muller, "find_spec", lambda name: None)
    monkeypatch.setattr(box_muller, "_library", box_muller._library.__wrapped__)
    monkeypatch.setattr(box_muller, "is_sound", box_muller.is_sound.__wrapped__)
    assert box_muller.usual_transform() is box_muller.single
    assert variance_is_right(draws(SecureNoise()))


def test_a_seed_gives_the_same_noise_with_and_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    like = {"w": torch.empty(1001)}
    one = SeededNoise(5).normal(like)["w"]
    monkeypatch.setattr(box_muller, "is_sound", lambda: False)
    assert torch.allclose(one, SeededNoise(5).normal(like)["w"], atol=2e-6)


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1000, 2 * module._PAIRS + 3])
def test_the_stream_is_aes_in_counter_mode(size: int) -> None:
    """An independent reading of the key stream gives the same Gaussians, over the end of a chunk too."""
    key = bytes(range(32))
    got = module._normal(key, {"w": torch.empty(size)})["w"]
    stream = module.Cipher(module.algorithms.AES(key), module.modes.CTR(bytes(16))).encryptor()
    want = []
    for start in range(0, size, 2 * module._PAIRS):
        n = (min(2 * module._PAIRS, size + size % 2 - start)) // 2
        words = np.frombuffer(stream.update(bytes(12 * n)), np.int32).reshape(3, n).astype(np.int64)
        words[0] &= 0xFFFFFF
        words[1] &= 0x7FFFFFFF
        want += [single(words)[:, :n].reshape(-1)]
    assert np.allclose(got.numpy(), np.concatenate([*want, np.zeros(0)])[:size], atol=1e-6)


# B3: independence


def repeats(trees: list[Tree]) -> int:
    """How many 64-bit blocks occur twice in all leaves together."""
    leaves = [leaf.flatten() for tree in trees for leaf in tree.values()]
    blocks = torch.cat([leaf[: len(leaf) // 2 * 2].view(torch.int64) for leaf in leaves])
    return len(blocks) - len(torch.unique(blocks))


LIKE = {"weight": torch.empty(300, 100), "bias": torch.empty(2000)}


def in_a_fork(source: Noise) -> Tree:
    """LIKE's noise, drawn by a forked child."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        tree = source.normal(LIKE)
        with os.fdopen(send, "wb") as pipe:
            pipe.write(b"".join(x.numpy().tobytes() for x in tree.values()))
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        data = np.frombuffer(pipe.read(), np.float32).copy()
    os.waitpid(child, 0)
    return {"all": torch.from_numpy(data)}


def test_b3_no_block_twice_over_steps_parameters_and_forks() -> None:
    source = SecureNoise()
    trees = [source.normal(LIKE) for _ in range(4)] + [in_a_fork(source) for _ in range(3)]
    trees += [SecureNoise().normal(LIKE)]
    assert sum(leaf.numel() for tree in trees for leaf in tree.values()) == 8 * 32_000
    assert repeats(trees) == 0


def test_b3_catches_a_key_that_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_fresh_key", lambda: bytes(32))
    assert repeats([SecureNoise().normal(LIKE) for _ in range(2)]) > 10_000


def test_b3_catches_a_key_inherited_by_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = os.urandom(32)
    monkeypatch.setattr(module, "_fresh_key", lambda: kept)
    assert repeats([in_a_fork(SecureNoise()) for _ in range(2)]) > 10_000


def test_b3_catches_a_seed_restored_on_resume() -> None:
    assert repeats([SeededNoise(1).normal(LIKE), SeededNoise(1).normal(LIKE)]) > 10_000


def test_b3_float64_and_float32_leaves_do_not_share_a_stream() -> None:
    like = {"a": torch.empty(5000), "b": torch.empty(5000, dtype=torch.float64)}
    tree = SeededNoise(0).normal(like)
    assert abs(correlation(tree["a"].double(), tree["b"])) < 5.5 / math.sqrt(5000)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def test_b3_correlations() -> None:
    """Between steps, between leaves, between the two of a pair and at short lags; squares too."""
    n = 1_000_000
    like = {"a": torch.empty(n), "b": torch.empty(n)}
    one, two = (SecureNoise().normal(like) for _ in range(2))
    a, b, c = one["a"].double(), one["b"].double(), two["a"].double()
    half = module._PAIRS
    pairs = [(a, b), (a, c), (a[1:], a[:-1]), (a[2:], a[:-2]), (a[half:], a[:-half])]
    for x, y in pairs:
        bound = 5.5 / math.sqrt(len(x))
        assert abs(correlation(x, y)) < bound
        assert abs(correlation(x * x, y * y)) < bound


def test_b3_catches_a_shared_radius() -> None:
    """The mutant that uses one radius for two pairs has correlated squares."""
    radius = torch.randn(1_000_000).abs().double()
    x, y = radius * torch.randn_like(radius), radius * torch.randn_like(radius)
    assert abs(correlation(x * x, y * y)) > 5.5 / math.sqrt(len(x))


# sources


def test_leaves_have_the_shapes_and_dtypes_of_like() -> None:
    like = {
        "scalar": torch.zeros(()),
        "none": torch.zeros(0, 4),
        "half": torch.zeros(3, dtype=torch.float16),
        "brain": torch.zeros(2, 2, dtype=torch.bfloat16),
        "double": torch.zeros(5, dtype=torch.float64),
        "turned": torch.zeros(4, 6).t(),
    }
    for source in SOURCES:
        tree = source.normal(like)
        assert list(tree) == list(like)
        for name, leaf in tree.items():
            assert (leaf.shape, leaf.dtype, leaf.device) == (
                like[name].shape,
                like[name].dtype,
                like[name].device,
            )
            assert not leaf.requires_grad
    assert SecureNoise().normal({}) == {}


def test_noise_does_not_care_for_modes_of_the_caller_or_threads() -> None:
    """Inference mode, another default device and another thread, each before and after plain use."""

    def draw() -> bool:
        with torch.inference_mode():
            inside = SecureNoise().normal(LIKE)
        with torch.device("meta"):
            there = SecureNoise().normal(LIKE)
        outside = SecureNoise().normal(LIKE)
        return repeats([{k: v.clone() for k, v in inside.items()}, there, outside]) == 0

    with ThreadPoolExecutor(2) as pool:
        assert all(job.result() for job in [pool.submit(draw) for _ in range(4)])
    assert draw()


def test_noise_refuses_what_is_not_real_and_floating() -> None:
    for dtype in (torch.int64, torch.complex64, torch.bool):
        like = {"w": torch.zeros(2, dtype=dtype)}
        for source in SOURCES:
            with pytest.raises(ModelError, match="leaf 'w'"):
                source.normal(like)
        with pytest.raises(ModelError, match="leaf 'w'"):
            DiscreteNoise().release(like, sensitivity=1.0, noise_multiplier=1.0)


def test_a_seed_repeats_its_sequence_whatever_the_number_of_threads() -> None:
    like = {"w": torch.empty(300_001)}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = [source.normal(like)["w"] for source in [SeededNoise(5)] for _ in range(2)]
        torch.set_num_threads(2)
        second = [source.normal(like)["w"] for source in [SeededNoise(5)] for _ in range(2)]
    finally:
        torch.set_num_threads(threads)
    assert torch.allclose(first[0], second[0], atol=1e-6)
    assert torch.allclose(first[1], second[1], atol=1e-6)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], SeededNoise(6).normal(like)["w"])


def test_only_seeded_noise_is_stamped() -> None:
    assert [(s.private, s.stamp) for s in SOURCES] == [(True, ""), (False, "NOT PRIVATE: seeded"), (True, "")]


@pytest.mark.parametrize("seed", [1.5, "1", None, True])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(SettingError, match="seed="):
        SeededNoise(seed)  # type: ignore[arg-type]


def test_a_secure_source_holds_no_state() -> None:
    source = SecureNoise()
    source.normal(LIKE)
    assert vars(source) == {}


# the exact sampler


def fits_discrete_gaussian(sample: np.ndarray, scale: int) -> bool:
    """Chi-square against the exact probabilities, cells with fewer than ten expected draws pooled."""
    k = np.arange(-12 * scale, 12 * scale + 1)
    expected = np.exp(-(k**2) / (2 * scale**2))
    expected *= len(sample) / expected.sum()
    common = expected >= 10
    counts = Counter(sample.tolist())
    seen = np.array([counts[int(v)] for v in k[common]], float)
    seen, want = (
        np.append(seen, len(sample) - seen.sum()),
        np.append(expected[common], expected[~common].sum()),
    )
    return bool(stats.chisquare(seen, want * seen.sum() / want.sum()).pvalue > 1e-6)


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_discrete_gaussian_has_the_exact_probabilities(scale: int) -> None:
    sample = discrete_gaussian(200_000, scale=scale)
    assert fits_discrete_gaussian(sample, scale)
    assert not fits_discrete_gaussian(
        np.rint(np.random.default_rng(0).normal(0, scale * 0.9, 200_000)), scale
    )


def test_discrete_gaussian_catches_a_wrong_coin(monkeypatch: pytest.MonkeyPatch) -> None:
    right = module._bernoulli_exp
    monkeypatch.setattr(module, "_bernoulli_exp", lambda x, y: right(x, y) | (x == 1))
    assert not fits_discrete_gaussian(discrete_gaussian(200_000, scale=2), 2)


@pytest.mark.parametrize(("x", "y"), [(0, 5), (3, 5), (5, 5), (12, 5)])
def test_the_coin_has_probability_exp(x: int, y: int) -> None:
    n = 200_000
    share = module._bernoulli_exp(np.full(n, x), y).mean()
    p = math.exp(-x / y)
    assert abs(share - p) <= 5.5 * math.sqrt(p * (1 - p) / n)


def test_whole_numbers_below_a_bound_are_uniform() -> None:
    sample = module._below(np.full(60_000, 6))
    assert stats.chisquare(np.bincount(sample, minlength=6)).pvalue > 1e-6
    assert discrete_gaussian((0, 3), scale=4).shape == (0, 3)


@pytest.mark.parametrize("scale", [0, -1, 1.5, math.nan, True, (1 << 20) + 1])
def test_a_scale_is_a_whole_number_in_range(scale: object) -> None:
    with pytest.raises(SettingError, match="whole number"):
        discrete_gaussian(3, scale=scale)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="resolution="):
        DiscreteNoise(scale)  # type: ignore[arg-type]


def test_the_largest_scale_does_not_overflow() -> None:
    sample = discrete_gaussian(20_000, scale=1 << 20) / (1 << 20)
    assert looks_normal(torch.from_numpy(sample))


@pytest.mark.parametrize("seed", range(5))
def test_rounding_keeps_the_sensitivity_within_its_bound(seed: int) -> None:
    torch.manual_seed(seed)
    spacing, size = 2.0**-6, 400
    a, step = torch.randn(2, size, dtype=torch.float64)
    b = a + step / step.norm()
    rounded = [module._whole(leaf, spacing) for leaf in (a, b)]
    assert float((rounded[0] - rounded[1]).norm()) * spacing <= grid_sensitivity(1.0, spacing, size)


@pytest.mark.parametrize("spacing", [0.0, -1.0, math.nan, math.inf])
def test_a_spacing_is_finite_and_positive(spacing: float) -> None:
    with pytest.raises(SettingError, match="spacing="):
        grid_sensitivity(1.0, spacing, 3)


def test_the_discrete_mechanism_adds_the_noise_that_was_asked_for() -> None:
    n, spacing = 200_000, 2.0**-8
    total = {"a": torch.full((n,), 3.25), "b": torch.full((2, n // 2), -1.0, dtype=torch.float64)}
    released = discrete_noised(total, sensitivity=2.0, noise_multiplier=1.5, spacing=spacing)
    std = 1.5 * grid_sensitivity(2.0, spacing, 2 * n)
    for name, leaf in total.items():
        assert (released[name].shape, released[name].dtype) == (leaf.shape, leaf.dtype)
        noise = (released[name] - leaf).double().flatten() / std
        assert abs(float((noise * noise).mean()) - 1) < 5.5 * math.sqrt(2 / n) + spacing
        assert torch.equal(released[name] / spacing, (released[name] / spacing).round())


def test_the_discrete_mechanism_takes_any_total_without_an_error() -> None:
    """An error that depends on the data would tell about it."""
    total = {"w": torch.tensor([1e300, -1e300, 0.1], dtype=torch.float64)}
    released = discrete_noised(total, sensitivity=1.0, noise_multiplier=1.0, spacing=2.0**-10)
    assert torch.isfinite(released["w"]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"spacing": 0.1},
        {"spacing": math.nan},
        {"spacing": 2.0**-40},
        {"sensitivity": -1.0},
        {"sensitivity": math.nan},
        {"sensitivity": math.inf},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
    ],
    ids=str,
)
def test_the_discrete_mechanism_refuses_wrong_settings(wrong: dict[str, float]) -> None:
    settings = {"sensitivity": 1.0, "noise_multiplier": 1.0, "spacing": 2.0**-8, **wrong}
    with pytest.raises(SettingError):
        discrete_noised({"w": torch.zeros(4)}, **settings)


# the discrete mechanism as a source for training


def on_grid(tree: Tree, spacing: float) -> bool:
    return all(torch.equal(leaf / spacing, (leaf / spacing).round()) for leaf in tree.values())


def grid_of(std: float, resolution: int) -> float:
    """The largest power of two that is at most std / resolution, by trying."""
    return max(2.0**k for k in range(-100, 100) if 2.0**k * resolution <= std)


def test_only_the_discrete_source_adds_its_noise_itself() -> None:
    assert [isinstance(source, Exact) for source in SOURCES] == [False, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("sensitivity", "multiplier"), [(1.0, 1.0), (0.1, 2.35), (3.0, 0.5), (1e-4, 40.0)])
def test_a_release_is_on_its_grid_with_the_noise_that_was_asked_for(
    dtype: torch.dtype, sensitivity: float, multiplier: float
) -> None:
    n, std = 100_000, multiplier * sensitivity
    total = {"a": torch.full((n,), 7.3 * std, dtype=dtype), "b": torch.zeros(2, n // 2, dtype=dtype)}
    source = DiscreteNoise(1 << 14)
    released = noised(Bounded(total, sensitivity), multiplier, source)
    spacing = grid_of(std, 1 << 14)
    assert on_grid(released, spacing)
    assert not on_grid(released, 2 * spacing)
    extra = (multiplier * math.sqrt(2 * n) + 1) / (1 << 14)
    for name, leaf in total.items():
        assert (released[name].shape, released[name].dtype) == (leaf.shape, leaf.dtype)
        x = (released[name] - leaf).double() / std
        error = 5.5 * math.sqrt(2 / n)
        assert 1 - error < float((x * x).mean()) < (1 + extra) ** 2 * (1 + error)
        assert abs(float(x.mean())) < 5.5 * (1 + extra) / math.sqrt(n) + 1e-3


@pytest.mark.parametrize("resolution", [1, 1000, 1 << 18])
@pytest.mark.parametrize("size", [0, 1, 10_000])
def test_the_noise_of_a_release_is_never_below_what_is_charged(
    monkeypatch: pytest.MonkeyPatch, resolution: int, size: int
) -> None:
    """Read off the scale and the grid that the sampler is given, so no chance is in it."""
    scales: list[int] = []
    draw = lambda shape, scale: scales.append(scale) or np.zeros(shape, np.int64)
    monkeypatch.setattr(module, "discrete_gaussian", draw)
    for std in np.geomspace(1e-6, 1e6, 40):
        for multiplier in (0.3, 1.0, 7.7):
            sensitivity = float(std) / multiplier
            DiscreteNoise(resolution).release(
                {"w": torch.zeros(size)}, sensitivity=sensitivity, noise_multiplier=multiplier
            )
            spacing = grid_of(multiplier * sensitivity, resolution)
            above = scales[-1] * spacing / (multiplier * sensitivity)
            assert 1 <= above <= 1 + (multiplier * math.sqrt(size) + 1) / resolution + 1e-9


def test_a_release_of_nothing_and_of_zero() -> None:
    release = lambda tree: DiscreteNoise().release(tree, sensitivity=1.0, noise_multiplier=2.0)
    assert release({}) == {}
    assert release({"none": torch.zeros(0, 3)})["none"].shape == (0, 3)
    mixed = release({"w": torch.zeros(1000), "scalar": torch.zeros((), dtype=torch.float64)})
    assert (mixed["scalar"].shape, mixed["scalar"].dtype) == ((), torch.float64)
    assert 1.5 < float(mixed["w"].std()) < 2.5  # an empty batch gets the same noise as any other


def test_a_release_leaves_its_total_alone_and_is_fresh() -> None:
    total = {"w": torch.ones(50, dtype=torch.float64)}
    one, two = (DiscreteNoise().release(total, sensitivity=1.0, noise_multiplier=1.0) for _ in range(2))
    assert torch.equal(total["w"], torch.ones(50, dtype=torch.float64))
    assert not torch.equal(one["w"], two["w"])


@pytest.mark.parametrize(
    "wrong", [{"sensitivity": math.inf}, {"sensitivity": math.nan}, {"noise_multiplier": -1}]
)
def test_a_release_refuses_wrong_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match="finite numbers above 0"):
        DiscreteNoise().release(
            {"w": torch.zeros(4)}, **{"sensitivity": 1.0, "noise_multiplier": 1.0, **wrong}
        )


@pytest.mark.parametrize("resolution", [0, 1.5, True, (1 << 18) + 1])
def test_a_resolution_is_one_that_a_release_can_sample(resolution: object) -> None:
    with pytest.raises(SettingError, match="resolution="):
        DiscreteNoise(resolution)  # type: ignore[arg-type]


class Heard(DiscreteNoise):
    """Keeps what it released; its plain Gaussians are never asked for."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "released", [])

    def release(self, total: Tree, *, sensitivity: float, noise_multiplier: float) -> Tree:
        found = super().release(total, sensitivity=sensitivity, noise_multiplier=noise_multiplier)
        self.released.append({name: leaf.clone() for name, leaf in found.items()})
        return found

    def normal(self, like: Tree) -> Tree:
        raise AssertionError("these would be scaled and added in floating point")


def test_a_run_with_discrete_noise_releases_on_the_grid() -> None:
    from steps import CRITERION, examples, network, phase, plan

    from saltflat import Safeguards, per_example, supervised, train
    from saltflat.data import TensorUnits

    noise, model = Heard(), network()
    weights = train(
        plan(phase(steps=3, noise_multiplier=2.0, clip_norm=0.3)),
        per_example(model, supervised(CRITERION)),
        TensorUnits(examples()),
        safeguards=Safeguards(noise=noise),
    )
    assert len(noise.released) == 3
    assert all(on_grid(released, grid_of(0.6, 1 << 16)) for released in noise.released)
    assert all(leaf.isfinite().all() for leaf in weights.values())
