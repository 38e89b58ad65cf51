"""Examples as units: what is taken, how it is scaled, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from saltflat.core.sampling import Units
from saltflat.data import CIFAR, HALF, IMAGENET, MNIST, SVHN, UNIT, Examples, Scale, Split
from saltflat.errors import DataError, SettingError

IMAGES = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).view(4, 3, 2, 2)


@pytest.mark.parametrize("scale", [UNIT, HALF, MNIST, CIFAR, SVHN, IMAGENET])
def test_a_batch_is_scaled_channel_by_channel(scale: Scale) -> None:
    units: Units = Examples(IMAGES, torch.arange(4), scale)
    images, labels = units.take(np.array([3, 0]))
    for row, index in enumerate((3, 0)):
        for channel in range(3):
            place = channel if len(scale.mean) == 3 else 0
            expected = (IMAGES[index, channel] / 255 - scale.mean[place]) / scale.std[place]
            torch.testing.assert_close(images[row, channel], expected)
    assert labels.tolist() == [3, 0]
    assert IMAGES.flatten()[:3].tolist() == [0, 1, 2], "the kept pixels stay as they are"


def test_batches_cover_everything_in_order() -> None:
    examples = Examples(IMAGES, torch.arange(4), UNIT)
    parts = list(examples.batches(3))
    assert [len(labels) for _, labels in parts] == [2, 2]
    assert torch.equal(torch.cat([images for images, _ in parts]), examples.whole()[0])
    assert examples.take(np.array([], dtype=np.int64))[0].shape == (0, 3, 2, 2)
    assert examples.to("cpu").count == 4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="each example needs one label"):
        Examples(IMAGES, torch.arange(3), UNIT)
    with pytest.raises(SettingError, match="need a scale"):
        Examples(IMAGES, torch.arange(4))
    with pytest.raises(SettingError, match="other inputs none"):
        Examples(IMAGES.float(), torch.arange(4), UNIT)
    with pytest.raises(SettingError, match="1 channels cannot have 3 means"):
        Examples(IMAGES[:, :1], torch.arange(4), CIFAR)
    for mean, std in (((), ()), ((0.5,), (0.0,)), ((0.5,), (1.0, 1.0)), ((0.5,), (float("nan"),))):
        with pytest.raises(SettingError, match="as many means as stds"):
            Scale(mean, std)
    examples = Examples(IMAGES, torch.arange(4), UNIT)
    with pytest.raises(DataError, match="training labels must lie in 0 to 2"):
        Split(examples, examples, classes=3)
