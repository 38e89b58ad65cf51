"""Shared masks: free where they are public, and never made of what is asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reference import FixedNoise, flat, trained
from steps import CRITERION, ask_about, beside, examples, network, phase, plan

from saltflat import per_example, supervised, train
from saltflat.data import TensorUnits
from saltflat.errors import SettingError
from saltflat.frames import Mask, Shift
from saltflat.methods import DPSGD, Coin, Earlier, Masked
from saltflat.methods.masked import Masking
from saltflat.privacy.noise import SecureNoise
from saltflat.tree import map_tree, size, times, zeros_like

POINT = trained(network())
KEPT = math.ceil(0.4 * size(POINT))


def mask_of(method: Masked, step: int, seen: dict | None = None) -> dict:
    found = method.mask(POINT, Masking(None, seen or zeros_like(POINT), step))
    assert found is not None
    return found


def count(mask: dict) -> int:
    return int(sum(leaf.sum() for leaf in mask.values()))


def test_a_coin_is_the_same_for_one_seed_and_step() -> None:
    coin = Masked(DPSGD(), by=Coin(3))
    masks = {tuple(flat(mask_of(coin, step)).tolist()) for step in (0, 1, 2, 0, 1, 2)}
    assert len(masks) == 3
    assert not torch.equal(flat(mask_of(coin, 0)), flat(mask_of(Masked(DPSGD(), by=Coin(4)), 0)))
    assert all(sum(mask) == KEPT for mask in masks)


def test_coins_fall_evenly() -> None:
    total = sum(flat(mask_of(Masked(DPSGD(), by=Coin(1)), step)) for step in range(400))
    assert isinstance(total, torch.Tensor)
    assert float((total / 400 - 0.4).abs().max()) < 6 * math.sqrt(0.24 / 400)


def test_the_largest_releases_are_kept() -> None:
    seen = map_tree(torch.randn_like, POINT)
    mask = mask_of(Masked(DPSGD()), 1, seen)
    assert count(mask) == KEPT
    assert flat(seen)[flat(mask) == 1].abs().min() >= flat(seen)[flat(mask) == 0].abs().max()


def test_every_so_often_all_coordinates_are_asked() -> None:
    """Else a mask made of what it let through would be the first one for ever."""
    method = Masked(DPSGD(), keep=0.3, by=Earlier(every=3))
    state, nonzero, masks = method.init(POINT), [], []
    for _ in range(7):
        door = ask_about(network(), examples(), noise_multiplier=1.0, noise=SecureNoise())
        direction, state = method.step(door, POINT, state)
        nonzero.append(int((flat(direction) != 0).sum()))
        masks.append(flat(direction) != 0)
    few = math.ceil(0.3 * size(POINT))
    assert nonzero == [size(POINT), few, few, size(POINT), few, few, size(POINT)]
    assert torch.equal(masks[1], masks[2])
    assert not torch.equal(masks[1], masks[4])


def test_a_mask_depends_on_releases_alone() -> None:
    """Other data, the same transcript, since every answer is noise alone: the same masks."""
    seen = []
    for data in (examples(seed=0), examples(seed=5)):
        method, state, own = Masked(DPSGD(), by=Earlier(every=2)), None, []
        state = method.init(POINT)
        noise = FixedNoise(seed=2)
        for _ in range(4):
            own.append(method.mask(POINT, state))
            door = ask_about(network(), data, clip_norm=1e-300, noise_multiplier=1e300, noise=noise)
            _, state = method.step(door, POINT, state)
        seen.append([None if mask is None else flat(mask) for mask in own])
    for mine, other in zip(*seen, strict=True):
        assert (mine is None and other is None) or torch.equal(mine, other)


def test_units_are_clipped_within_the_mask() -> None:
    """What is left out takes no part in the norm, and answers are 0 there."""
    mask = mask_of(Masked(DPSGD(), by=Coin()), 0)
    x, y = examples(1)
    whole = ask_about(network(), (x, y), clip_norm=1e9)(POINT)
    inside = times(whole, mask)
    bound = float(flat(inside).norm()) / 2
    found = ask_about(network(), (x, y), clip_norm=bound)(POINT, frame=Mask(mask))
    torch.testing.assert_close(flat(found), flat(inside) / 2, rtol=1e-9, atol=1e-12)


def test_a_frame_inside_a_masked_door_enters_first_and_leaves_last() -> None:
    mask = mask_of(Masked(DPSGD(), by=Coin()), 0)
    origin = map_tree(lambda leaf: torch.full_like(leaf, 0.1), POINT)
    door = ask_about(network(), examples(5), clip_norm=1e9).framed(Mask(mask))
    plain = ask_about(network(), examples(5), clip_norm=1e9)(POINT)
    found = door(POINT, frame=Shift(origin))
    expected = {n: mask[n] * (plain[n] - 5 * origin[n]) + origin[n] for n in POINT}
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-9, atol=1e-12)


def test_the_noise_is_that_of_the_kept_coordinates() -> None:
    """sigma C on each of them, none elsewhere: sqrt(keep) times as long in all."""
    like = {"w": torch.zeros(1000, 1000)}
    mask = Masked(DPSGD(), by=Coin()).mask(like, Masking(None, like, 0))
    assert mask is not None
    noise = times(SecureNoise().normal(like), mask)["w"]
    kept = noise[mask["w"] == 1]
    assert float(kept.square().mean()) == pytest.approx(1, rel=0.0112)  # 4e5 draws: five standard deviations
    assert float(noise[mask["w"] == 0].abs().max()) == 0


def test_a_run_from_the_first_step_on_a_coin_is_let_pass() -> None:
    """Most of an answer is 0 by the mask and not for want of noise: the look at the first step tells these apart."""
    data = TensorUnits(examples(12))
    coins = plan(phase(steps=6, method=Masked(DPSGD(), keep=0.05, by=Coin())))
    found = train(coins, per_example(network(), supervised(CRITERION)), data, **beside(noise=SecureNoise()))
    assert 0 < int((flat(found) != flat(POINT)).sum()) <= 6 * math.ceil(0.05 * size(POINT))


def test_noise_that_leaves_coordinates_out_is_still_found() -> None:
    class Partial(FixedNoise):  # not private: the draws of a source that says it is are looked at before
        def normal(self, like: dict) -> dict:
            return {name: leaf * 0 for name, leaf in super().normal(like).items()}

    coins = plan(phase(steps=2, method=Masked(DPSGD(), by=Coin())))
    with pytest.raises(Exception, match="got no noise"):
        train(
            coins,
            per_example(network(), supervised(CRITERION)),
            TensorUnits(examples(12)),
            **beside(noise=Partial()),
        )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"keep": 0.0}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"keep": float("nan")}, "keep"),
        ({"by": "top"}, "Earlier"),
        ({"by": {}}, "tree"),
        ({"by": {"w": torch.tensor([math.nan])}}, "finite numbers"),
        ({"method": DPSGD}, "method"),
    ],
)
def test_wrong_settings_are_named(wrong: dict, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Masked(**{"method": DPSGD(), **wrong})


def test_a_public_tree_of_another_model_is_refused() -> None:
    with pytest.raises(SettingError, match="names or shapes"):
        Masked(DPSGD(), by={"w": torch.ones(3)}).init(POINT)
    with pytest.raises(SettingError, match="every"):
        Earlier(0)
    with pytest.raises(SettingError, match="seed"):
        Coin(0.5)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="other numbers"):
        Mask({"w": torch.tensor([0.5])})


def test_state_goes_to_disk_and_back(tmp_path) -> None:
    from saltflat import Checkpoints

    three = plan(phase(steps=3, method=Masked(DPSGD(), by=Earlier(every=2))))
    data, kept = TensorUnits(examples(12)), Checkpoints(tmp_path, every=1)
    same = {"sampling": np.random.default_rng(0), "noise": FixedNoise()}
    whole = train(three, per_example(network(), supervised(CRITERION)), data, **beside(**same))

    def watch(progress) -> bool:
        return progress.step == 2

    again = {"sampling": np.random.default_rng(0), "noise": FixedNoise(), "checkpoints": kept}
    train(three, per_example(network(), supervised(CRITERION)), data, **beside(**again, watch=watch))
    resumed = train(three, per_example(network(), supervised(CRITERION)), data, **beside(**again))
    torch.testing.assert_close(flat(whole), flat(resumed))
