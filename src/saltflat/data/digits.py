"""Scikit-learn's embedded digits: 1,797 grey images of 8 x 8 pixels, no download."""

from __future__ import annotations

import numpy as np
import torch

from saltflat.data.examples import Examples, Split

TEST_SIZE = 360
_SPLIT = 0  # the seed of the one split that everybody uses


def digits() -> Split:
    """The digits as float images in [0, 1], (n, 1, 8, 8), with a fixed split into 1,437 and 360.

    Pixels are divided by 16, the largest value that the format allows: nothing is computed from the data.

    >>> split = digits()
    >>> split.train.count, split.test.count, split.shape, split.classes, float(split.train.inputs.max())
    (1437, 360, (1, 8, 8), 10, 1.0)
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target, dtype=torch.long)
    order = torch.from_numpy(np.random.default_rng(_SPLIT).permutation(len(labels)))
    test, train = order[:TEST_SIZE], order[TEST_SIZE:]
    return Split(Examples(images[train], labels[train]), Examples(images[test], labels[test]), classes=10)
