"""What counts as private rows in the place of public ones, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

import saltflat as sf
from saltflat.bridges.overlap import have_common_rows

VOCABULARY = [f"word {k}" for k in range(100)]


class Texts(Dataset):
    """Texts, and a table of vectors and a list of words that all data sets share."""

    table = torch.randn(500, 3)

    def __init__(self, texts: list[str]) -> None:
        self.texts, self.words, self.vectors = texts, VOCABULARY, self.table

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, k: int) -> str:
        return self.texts[k]


X, Y = torch.randn(90, 3), torch.arange(90) % 2
WHOLE = TensorDataset(X, Y)
TEXTS = [f"text {k}" for k in range(90)]

PRIVATE: dict[str, tuple[Any, Any]] = {
    "the same object": (WHOLE, WHOLE),
    "a loader": (DataLoader(WHOLE), WHOLE),
    "loaders side by side": ({"one": [DataLoader(WHOLE)]}, WHOLE),
    "a part": (Subset(WHOLE, [4]), WHOLE),
    "the whole of a part": (WHOLE, Subset(WHOLE, [4])),
    "parts of parts": (Subset(Subset(WHOLE, [7, 8, 9]), [2]), Subset(WHOLE, [9, 10])),
    "one of several": (ConcatDataset([TensorDataset(X.clone(), Y.clone()), WHOLE]), WHOLE),
    "a slice of tensors": (TensorDataset(X[80:], Y[80:]), (X, Y)),
    "arrays of the same memory": ({"x": X.numpy()[:5]}, {"x": X, "y": Y}),
    "units": (WHOLE, sf.data.TensorUnits((X, Y))),
    "the same list": (Texts(TEXTS), Texts(TEXTS)),
    "items of a list": ((items := [{"x": row} for row in X])[:3], items),
}
PUBLIC: dict[str, tuple[Any, Any]] = {
    "nothing": (None, WHOLE),
    "copies": (TensorDataset(X.clone(), Y.clone()), WHOLE),
    "the rest of a split": (Subset(WHOLE, range(60, 90)), Subset(WHOLE, range(60))),
    "the rest by a sampler": (
        DataLoader(WHOLE, sampler=SubsetRandomSampler(range(60, 90))),
        Subset(WHOLE, range(60)),
    ),
    "other rows of a tensor": ((X[60:], Y[60:]), (X[:60], Y[:60])),
    "other rows of an array": (np.asarray(X)[60:], np.asarray(X)[:60]),
    "a vocabulary and a table in common": (Texts(TEXTS[:20]), Texts(TEXTS[20:])),
    "other items of a list": (items[60:], items[:60]),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_private_rows_are_seen(name: str) -> None:
    assert have_common_rows(*PRIVATE[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_public_rows_are_let_through(name: str) -> None:
    assert not have_common_rows(*PUBLIC[name])


@pytest.mark.slow
def test_data_sets_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    made = datasets.Dataset.from_dict({"text": TEXTS, "label": list(range(90))})
    made.save_to_disk(str(tmp_path / "made"))
    for whole in (made, datasets.load_from_disk(str(tmp_path / "made"))):
        parts = whole.train_test_split(test_size=30, seed=0)
        train, rest = parts["train"], parts["test"]
        assert not have_common_rows(rest, train)
        assert not have_common_rows(rest.with_format("torch"), train.remove_columns("text"))
        assert not have_common_rows(whole.select(range(60, 90)), whole.select(range(60)))
        assert have_common_rows(whole, train)
        assert have_common_rows(train.select([3]), train)
        assert have_common_rows({"a": rest, "b": train.with_transform(lambda row: row)}, train)
        assert have_common_rows(whole.select(range(50, 90)), whole.select(range(60)))
