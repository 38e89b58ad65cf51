"""The comparison on images of one's own: folders are read as they were written, both sides get the same words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import own_images as own
import recipes_page
import results

from saltflat.data.folder import folder_split
from saltflat.recipes import names, shipped


def some(channels: int) -> own.Parts:
    draws = torch.Generator().manual_seed(channels)
    images = torch.randint(256, (12, channels, 20, 20), generator=draws, dtype=torch.uint8)
    labels = torch.arange(12) % 3
    return (images[:8], labels[:8]), (images[8:], labels[8:])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("write", [own.as_idx, own.as_pictures])
def test_what_is_written_is_what_is_read(
    channels: int, write: Callable[[own.Parts, Path], None], tmp_path: Path
) -> None:
    if write is own.as_pictures:
        pytest.importorskip("PIL")
    parts = some(channels)
    write(parts, tmp_path)
    split = folder_split(tmp_path)
    for (images, labels), found in zip(parts, (split.train, split.test), strict=True):
        order = torch.argsort(labels, stable=True) if write is own.as_pictures else torch.arange(len(labels))
        assert torch.equal(found.targets, labels[order])
        assert torch.equal(found.inputs, images[order])


def test_both_sides_know_the_folder_the_size_and_epsilon_alone(tmp_path: Path) -> None:
    for channels in (1, 3):
        for side in ("best-images", "tanh network"):
            words = own.command(side, channels, tmp_path, 8000, 1.0)[4:]
            rest = words[len(own.words_of(side, channels)) :]
            assert rest == ["--data", str(tmp_path), "--size", "8000", "--epsilon", "1", "--threads", "1"]
    assert own.words_of("best-images", 1) == own.words_of("best-images", 3) == ["--recipe", "best-images"]


def test_best_images_knows_no_data_set_by_name() -> None:
    """Whatever folder it is given, it is the same recipe: only size and epsilon are asked."""
    one, other = (
        shipped("best-images", {"data": folder, "size": 8000, "epsilon": 1.0}).as_document()
        for folder in ("one/folder", "another")
    )
    assert {**one, "data": ""} == {**other, "data": ""}
    assert "best-images" in names()


def test_a_pair_is_a_row_and_half_a_pair_is_none() -> None:
    sides = {"best-images": 0.9, "tanh network": 0.85}
    lines: list[results.Result] = [
        {
            "settings": {"case": "some-idx", "side": side, "epsilon": 1.0},
            "size": 8000,
            "shape": [1, 28, 28],
            "test_accuracy": accuracy,
            "seconds": 5.0,
        }
        for side, accuracy in sides.items()
    ]
    assert "| some idx | 1x28x28 | 8,000 | 1 | 90.00 | 85.00 | +5.0 | 5 and 5 |" in recipes_page.owned(lines)
    assert recipes_page.owned(lines[:1]).count("\n") == 1
