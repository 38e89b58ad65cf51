"""AutoAugment, and the views that feature layers are warmed up with."""

from __future__ import annotations

import pytest
import torch

from saltflat.data import CIFAR, AutoAugment, Jitter, Zoom
from saltflat.data.policy import CHANGES, POLICY
from saltflat.errors import SettingError


def images(count: int = 6, channels: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, 8, 8, generator=torch.Generator().manual_seed(0))


UP = torch.ones(6)


def test_the_policy_has_25_pairs_of_known_changes() -> None:
    assert len(POLICY) == 25
    for pair in POLICY:
        for name, often, level in pair:
            assert name in CHANGES
            assert 0 <= often <= 1
            assert level in range(10)


@pytest.mark.parametrize("name", list(CHANGES))
@pytest.mark.parametrize("channels", [1, 3])
def test_no_image_sees_another(name: str, channels: int) -> None:
    x = images(channels=channels)
    whole = CHANGES[name](x, 7, UP)
    for i in range(6):
        torch.testing.assert_close(CHANGES[name](x[i : i + 1], 7, UP[:1])[0], whole[i])


@pytest.mark.parametrize(
    "name", ["shear_down", "rotate", "move_across", "brightness", "colour", "contrast", "sharpness"]
)
def test_at_magnitude_zero_nothing_is_changed(name: str) -> None:
    torch.testing.assert_close(CHANGES[name](images(), 0, UP), images(), atol=1e-5, rtol=0)


def test_what_some_of_them_do() -> None:
    x = images()
    assert torch.equal(CHANGES["invert"](x, 0, UP), 1 - x)
    assert torch.equal(CHANGES["solarize"](x, 9, UP), 1 - x)
    assert torch.equal(CHANGES["solarize"](x, 0, UP), x.where(x < 1, 1 - x))
    stretched = CHANGES["autocontrast"](x / 2 + 0.2, 0, UP)
    torch.testing.assert_close(stretched.amin((2, 3)), torch.zeros(6, 3))
    torch.testing.assert_close(stretched.amax((2, 3)), torch.ones(6, 3))
    ranks = CHANGES["equalize"](x**2, 0, UP)
    assert abs(float(ranks.mean()) - 0.5) < 0.05
    few = CHANGES["posterize"](x, 9, UP) * 255 / 16
    torch.testing.assert_close(few, few.round(), atol=1e-4, rtol=0)
    grey = x.mean(1, keepdim=True).expand(6, 3, 8, 8)
    torch.testing.assert_close(CHANGES["colour"](grey, 9, UP), grey)


def test_scaled_images_are_changed_as_pixels_are() -> None:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (CIFAR.mean, CIFAR.std))
    seeded = lambda: torch.Generator().manual_seed(3)
    plain = AutoAugment()(images(), seeded())
    scaled = AutoAugment(CIFAR)((images() - mean) / std, seeded())
    torch.testing.assert_close(scaled * std + mean, plain, atol=1e-4, rtol=0)
    assert not torch.equal(plain, images())


def test_zoom_and_jitter() -> None:
    x = images()
    assert torch.allclose(Zoom(1.0)(x, torch.Generator()), x, atol=1e-5)
    assert not torch.allclose(Zoom(0.3)(x, torch.Generator()), x)
    assert torch.equal(Jitter(0.0)(x, torch.Generator()), x)
    with pytest.raises(SettingError):
        Zoom(0.0)
    with pytest.raises(SettingError):
        Jitter(2.0)
