"""Fixed features against formulas and other libraries; no example in a map, and no example in another's features."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

from saltflat.cli import app
from saltflat.data import Examples, Split, digits
from saltflat.errors import ModelError, SettingError
from saltflat.features import (
    HOG,
    Grey,
    Grouped,
    Joined,
    Mirrored,
    Patches,
    RandomConvolutions,
    RowScaled,
    Scattering,
    Whitened,
    built,
    compute,
    featured,
    shape_after,
)
from saltflat.features import computed as room
from saltflat.privacy.accounting.events import phase_event
from saltflat.privacy.record.statement import Declared, state
from saltflat.recipes import read
from saltflat.synthesis import DeadLeaves, Images, SpectrumNoise, Strokes

SMALL = Whitened(images=40)
LISTS: dict[str, tuple[list[Any], tuple[int, ...]]] = {
    "scattering": ([Scattering()], (1, 28, 28)),
    "scattering, three scales": ([Scattering(3, 4)], (1, 32, 30)),
    "scattering, one scale": ([Scattering(1, 4)], (3, 8, 8)),
    "grey": ([Grey(), HOG()], (3, 16, 16)),
    "HOG": ([HOG()], (3, 16, 18)),
    "convolutions": ([RandomConvolutions(6)], (3, 12, 13)),
    "grouped": ([Scattering(1, 4), Grouped(5)], (1, 8, 8)),
    "whitened": ([HOG(4), SMALL, RowScaled()], (1, 8, 8)),
    "patches": ([Patches(filters=5, size=4, pool=4, images=20)], (3, 12, 14)),
    "whitened, not square": ([HOG(4), SMALL], (1, 8, 12)),
    "mirrored": ([Mirrored([Scattering(1, 4)]), SMALL], (1, 8, 8)),
    "joined": ([Joined([[HOG(4), SMALL, RowScaled()], [Patches(filters=3, pool=4, images=20)]])], (1, 8, 8)),
    "channels whitened": ([Scattering(1, 2), Whitened(images=40, channels_only=True)], (3, 8, 8)),
}
EVERY = pytest.mark.parametrize("name", LISTS)


def images(shape: tuple[int, ...], count: int = 5) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


@EVERY
def test_the_declared_shape_is_the_one_that_comes_out(name: str) -> None:
    stages, shape = LISTS[name]
    found = built(stages, shape)(images(shape))
    assert tuple(found.shape[1:]) == shape_after(stages, shape)
    assert bool(found.isfinite().all())


@EVERY
def test_an_examples_features_depend_on_it_alone(name: str) -> None:
    stages, shape = LISTS[name]
    module, rows = built(stages, shape), images(shape)
    torch.testing.assert_close(module(rows)[2], module(rows[2:3])[0], rtol=1e-4, atol=1e-5)
    spoilt = rows.clone()
    spoilt[1] = float("nan")
    torch.testing.assert_close(module(spoilt)[2:], module(rows)[2:], rtol=1e-4, atol=1e-5)


@EVERY
def test_a_map_is_fixed_and_has_no_parameter(name: str) -> None:
    stages, shape = LISTS[name]
    first, again = built(stages, shape), built(stages, shape)
    assert not list(first.parameters())
    rows = images(shape)
    assert torch.equal(first(rows), again(rows))
    assert torch.equal(first(torch.zeros_like(rows)), first(torch.zeros_like(rows)))


class TestScattering:
    @pytest.mark.parametrize(
        ("scales", "angles", "side", "channels"), [(2, 8, 28, 1), (1, 4, 8, 3), (3, 6, 32, 1)]
    )
    def test_it_is_that_of_kymatio(self, scales: int, angles: int, side: int, channels: int) -> None:
        front = pytest.importorskip(
            "kymatio.scattering2d.frontend.torch_frontend",
            reason="kymatio is not installed: pip install kymatio",
        )
        rows = images((channels, side, side))
        theirs = front.ScatteringTorch2D(J=scales, L=angles, shape=(side, side))(rows).flatten(1, 2)
        ours = built([Scattering(scales, angles)], (channels, side, side))(rows)
        scale = float(theirs.abs().max())  # theirs divides by 2 x 3.1415: each filter is 3e-5 larger
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=1e-6 * scale)

    def test_a_constant_has_nothing_but_its_mean(self) -> None:
        found = built([Scattering()], (1, 28, 28))(torch.full((1, 1, 28, 28), 0.7))
        assert found[0, 0].mean() == pytest.approx(0.7, abs=1e-3)
        assert float(found[0, 1:].abs().max()) < 1e-5

    def test_a_wave_answers_to_its_own_direction(self) -> None:
        """A wave along the rows is seen most by the wavelets whose wave runs that way, and as much at any phase."""
        place = torch.arange(32).view(-1, 1).expand(32, 32)
        waves = torch.stack([torch.cos(place * 3 * math.pi / 4 + phase) for phase in (0.0, 1.0)]).unsqueeze(1)
        middle = built([Scattering()], (1, 32, 32))(waves)[:, 1:9, 3:5, 3:5].mean((2, 3))
        assert middle.argmax(1).tolist() == [3, 3]  # the angle 0 of eight
        torch.testing.assert_close(middle[0, 3], middle[1, 3], rtol=0.05, atol=0)

    def test_images_that_are_too_small(self) -> None:
        with pytest.raises(SettingError, match="too small for 4 scales"):
            shape_after([Scattering(4)], (1, 8, 8))


class TestHOG:
    def test_an_edge_votes_for_its_direction(self) -> None:
        """A step across columns has a gradient along them: direction 0; across rows, a quarter turn."""
        step = torch.zeros(1, 1, 16, 16)
        step[..., 8:] = 1
        module = built([HOG(bins=4)], (1, 16, 16))
        across, down = module(step)[0], module(step.mT)[0]
        assert float(across[0].sum()) > 0
        assert float(across[1:].abs().max()) < 1e-6
        assert float(down[2].sum()) > 0
        assert float(down[[0, 1, 3]].abs().max()) < 1e-6

    def test_brightness_is_not_seen(self) -> None:
        rows = images((1, 16, 16))
        module = built([HOG()], (1, 16, 16))
        torch.testing.assert_close(module(rows + 5), module(rows), rtol=1e-3, atol=1e-4)


def test_random_convolutions_are_what_they_say() -> None:
    rows, stage = images((3, 8, 8)), RandomConvolutions(4, size=3, pool=2)
    module = built([stage], (3, 8, 8))
    weight = next(module.buffers())
    torch.testing.assert_close(weight.flatten(1).norm(dim=1), torch.ones(4))
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(4), rtol=0, atol=1e-6)
    answers = F.conv2d(F.pad(rows, [1] * 4, mode="reflect"), weight)
    both = torch.cat([F.avg_pool2d(F.relu(answers), 2), F.avg_pool2d(F.relu(-answers), 2)], 1)
    torch.testing.assert_close(module(rows), math.sqrt(2) * both, rtol=1e-4, atol=1e-5)
    other = next(built([RandomConvolutions(4, size=3, pool=2, seed=1)], (3, 8, 8)).buffers())
    assert not torch.allclose(weight, other)


def test_patches_are_what_they_say() -> None:
    """Against patches that are taken out one by one."""
    rows, stage = images((3, 12, 12)), Patches(filters=4, size=4, pool=6, stride=2, threshold=0.3, images=30)
    module = built([stage], (3, 12, 12))
    weight = next(module.buffers()).flatten(1)
    torch.testing.assert_close(weight.mean(1), torch.zeros(4), rtol=0, atol=1e-5)
    padded = F.pad(rows, [1, 2, 1, 2], mode="reflect")
    cut = F.unfold(padded, 4, stride=2).mT  # (images, places, pixels)
    cut = cut - cut.mean(2, keepdim=True)
    cut = cut / (cut.square().mean(2, keepdim=True) + 1.5e-4).sqrt()
    answers = (cut @ weight.T).mT.reshape(5, 4, 6, 6)
    both = [F.avg_pool2d((sign * answers - 0.3).clamp(min=0), 3) for sign in (1, -1)]
    torch.testing.assert_close(module(rows), torch.cat(both, 1), rtol=1e-3, atol=1e-4)


def test_an_image_and_its_mirror_image_have_the_same_features() -> None:
    stages, rows = [Mirrored([Scattering(1, 4), Grouped(5)])], images((1, 8, 8))
    module = built(stages, (1, 8, 8))
    torch.testing.assert_close(module(rows), module(rows.flip(3)))
    inner = built([Scattering(1, 4), Grouped(5)], (1, 8, 8))
    wanted = (inner(rows) + inner(rows.flip(3)))[..., :2] / 2
    torch.testing.assert_close(module(rows), wanted)


def test_families_side_by_side() -> None:
    parts, rows = [[HOG(4), RowScaled(3.0)], [Scattering(1, 4), RowScaled(4.0)]], images((1, 8, 8))
    found = built([Joined(parts)], (1, 8, 8))(rows).flatten(1)
    wanted = torch.cat([built(part, (1, 8, 8))(rows).flatten(1) for part in parts], 1)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(found.norm(dim=1), torch.full((5,), 5.0))


def test_rows_of_one_length() -> None:
    found = built([RowScaled(5.0)], (1, 4, 4))(images((1, 4, 4)))
    torch.testing.assert_close(found.flatten(1).norm(dim=1), torch.full((5,), 5.0))
    assert torch.equal(built([RowScaled()], (1, 4, 4))(torch.zeros(1, 1, 4, 4)), torch.zeros(1, 1, 4, 4))


class TestWhitened:
    def made_up(self, seed: int = 0) -> torch.Tensor:
        return Images(process=DeadLeaves(), side=8, seed=seed).first(300).float() / 255

    def test_its_own_images_come_out_white(self) -> None:
        whole = (
            built([Whitened(images=300, power=0.5, floor=1e-6)], (1, 8, 8))(self.made_up())
            .flatten(1)
            .double()
        )
        torch.testing.assert_close(whole.mean(0), torch.zeros(64).double(), rtol=0, atol=1e-3)
        torch.testing.assert_close(whole.T @ whole / 300, torch.eye(64).double(), rtol=0, atol=0.02)

    def test_channels_come_out_white_over_all_positions(self) -> None:
        stages = [HOG(4, 2), Whitened(images=300, power=0.5, floor=1e-6, channels_only=True)]
        found = built(stages, (1, 8, 8))(self.made_up()).double()
        torch.testing.assert_close(found.mean(0), torch.zeros_like(found[0]), rtol=0, atol=1e-3)
        rows = found.movedim(1, -1).flatten(0, 2)
        torch.testing.assert_close(rows.T @ rows / len(rows), torch.eye(4).double(), rtol=0, atol=0.02)

    @pytest.mark.parametrize("power", [0.0, 0.25])
    def test_the_formula(self, power: float) -> None:
        rows, stage = self.made_up().flatten(1).double(), Whitened(images=300, power=power, floor=0.3)
        centred = rows - rows.mean(0)
        values, vectors = np.linalg.eigh((centred.T @ centred / 300).numpy())
        root = vectors @ np.diag((values + 0.3 * values.mean()) ** -power) @ vectors.T
        wanted = torch.from_numpy(centred.numpy() @ root).float().view(-1, 1, 8, 8)
        torch.testing.assert_close(built([stage], (1, 8, 8))(self.made_up()), wanted, rtol=1e-3, atol=1e-3)

    def test_other_images_other_statistics(self) -> None:
        rows = images((1, 8, 8))
        found = [built([Whitened(images=50, process=p, seed=s)], (1, 8, 8))(rows) for p, s in
                 ((DeadLeaves(), 0), (DeadLeaves(), 1), (SpectrumNoise(), 0))]  # fmt: skip
        assert not torch.allclose(found[0], found[1])
        assert not torch.allclose(found[0], found[2])

    def test_views_of_one_thing_come_out_white_around_their_mean(self) -> None:
        """The variance within families of views becomes 1 in every direction; that between families is not asked."""
        stages = [
            Scattering(1, 2),
            Whitened(process=Strokes(views=4), images=400, power=0.5, floor=1e-6, within=True),
        ]
        rows = Images(process=Strokes(views=4), side=8).first(400).float() / 255
        found = built(stages, (1, 8, 8))(rows).flatten(1).double().unflatten(0, (100, 4))
        apart = (found - found.mean(1, keepdim=True)).flatten(0, 1)
        torch.testing.assert_close(apart.T @ apart / 300, torch.eye(48).double(), rtol=0, atol=0.02)
        assert found.mean((0, 1)).abs().max() < 0.05

    def test_a_process_without_views_has_nothing_within(self) -> None:
        with pytest.raises(SettingError, match="paints each thing in several views"):
            Whitened(within=True)
        with pytest.raises(SettingError, match=r"several views.*7 images"):
            Whitened(process=Strokes(views=8), images=7, within=True)

    def test_what_cannot_be_made_up(self) -> None:
        with pytest.raises(SettingError, match="1 channel or 3, and these have 2"):
            built([SMALL], (2, 8, 8))
        with pytest.raises(SettingError, match="channels_only"):
            shape_after([SMALL], (3, 128, 128))


def kept_in(cache: Path) -> list[Path]:
    """All files below a cache folder, those of hidden names too."""
    return [each for each in cache.rglob("*") if each.is_file()]


class TestFeatured:
    def split(self) -> Split:
        rows = (images((1, 8, 8), 150) * 255).to(torch.uint8)
        from saltflat.data import UNIT

        some = Examples(rows, torch.arange(150) % 10, UNIT)
        few = Examples(rows[:3], torch.arange(3), UNIT)
        return Split(some, few, 10)

    def test_no_example_goes_into_the_map(self) -> None:
        """Two data sets of one shape have one map: here, one of noise and one of nothing."""
        stages, made = [HOG(4), SMALL], []

        def kept(*given: Any) -> nn.Module:
            made.append(built(*given))
            return made[-1]

        with patch.object(room, "built", kept):
            for rows in (images((1, 8, 8)), torch.zeros(7, 1, 8, 8)):
                room._made.cache_clear()
                compute(rows, stages)
        room._made.cache_clear()
        for one, other in zip(made[0].buffers(), made[1].buffers(), strict=True):
            assert torch.equal(one, other)

    def test_bytes_go_in_as_zero_to_one_whatever_the_batch(self) -> None:
        split, stages = self.split(), [HOG(4)]
        found = featured(split, stages)
        wanted = built(stages, (1, 8, 8))(split.train.inputs.float() / 255)
        torch.testing.assert_close(found.train.inputs, wanted)
        assert found.train.scale is None
        assert torch.equal(found.train.targets, split.train.targets)
        assert found.shape == found.test.shape == (4, 2, 2)

    def test_no_stages_no_change(self) -> None:
        split = self.split()
        assert featured(split, []) is split

    def test_they_are_computed_once(self, tmp_path: Path) -> None:
        split, stages, seen = self.split(), [HOG(4)], []
        first = featured(split, stages, cache=tmp_path, watch=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (153, 153)
        assert len(kept_in(tmp_path)) == 2  # training and test examples, and nothing half done
        assert all(file.stat().st_mode & 0o077 == 0 for file in kept_in(tmp_path))
        with patch.object(room, "built", side_effect=AssertionError("computed again")):
            again = featured(split, stages, cache=tmp_path)
        assert torch.equal(again.train.inputs, first.train.inputs)
        assert torch.equal(first.train.inputs, featured(split, stages).train.inputs)

    def test_later_stages_go_on_from_what_is_kept(self, tmp_path: Path) -> None:
        rows, first = images((1, 8, 8)), HOG(4)
        compute(rows, [first], cache=tmp_path)
        with patch.object(torch, "atan2", side_effect=AssertionError("computed again")):
            found = compute(rows, [first, RowScaled(2.0)], cache=tmp_path)
        torch.testing.assert_close(found, built([first, RowScaled(2.0)], (1, 8, 8))(rows))

    def test_what_is_joined_is_kept_list_by_list(self, tmp_path: Path) -> None:
        rows, parts = images((1, 8, 8)), [[HOG(4), RowScaled(2.0)], [HOG(3), RowScaled(1.0)]]
        compute(rows, parts[0], cache=tmp_path)
        found = compute(rows, [Joined(parts)], cache=tmp_path)
        torch.testing.assert_close(found, built([Joined(parts)], (1, 8, 8))(rows))
        assert len(kept_in(tmp_path)) == 3
        assert torch.equal(compute(rows, [Joined(parts)], cache=tmp_path), found)

    def test_other_images_or_stages_are_other_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SALTFLAT_CACHE", str(tmp_path))
        rows = images((1, 8, 8))
        changed = rows.clone()
        changed[3, 0, 2, 2] += 1e-3
        for each, stages in ((rows, [HOG(4)]), (changed, [HOG(4)]), (rows, [HOG(5)]), (rows, [HOG(4)])):
            torch.testing.assert_close(compute(each, stages), built(stages, (1, 8, 8))(each))
        assert len(kept_in(tmp_path)) == 3

    def test_a_killed_run_leaves_nothing(self, tmp_path: Path) -> None:
        def broken(done: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compute(images((1, 8, 8)), [HOG(4)], cache=tmp_path, watch=broken)
        assert kept_in(tmp_path) == []

    @pytest.mark.parametrize("how", ["other features", "planted ones", "a link to a file", "readable by all"])
    def test_a_planted_file_is_not_believed_nor_followed(self, tmp_path: Path, how: str) -> None:
        wanted = compute(images((1, 8, 8)), [HOG(4)], cache=tmp_path / "cache").clone()  # not the mapped file
        (file,) = kept_in(tmp_path / "cache")
        planted, elsewhere = np.zeros(wanted.shape, np.float32), tmp_path / "elsewhere.npy"
        np.save(elsewhere, planted)
        if how == "other features":
            np.save(file, np.zeros((2, 2), np.float32))
        elif how == "planted ones":
            np.save(file, planted)
        elif how == "a link to a file":
            file.unlink()
            file.symlink_to(elsewhere)
        else:
            file.chmod(0o666)
        found = compute(images((1, 8, 8)), [HOG(4)], cache=tmp_path / "cache")
        assert torch.equal(found, wanted)
        assert file.stat().st_mode & 0o077 == 0
        assert not file.is_symlink()
        assert np.array_equal(np.load(elsewhere), planted)

    def test_nobody_else_may_read_it_while_it_is_written(self, tmp_path: Path) -> None:
        modes = []

        def seen(done: int) -> None:
            modes.extend(file.stat().st_mode & 0o777 for file in kept_in(tmp_path))

        compute(images((1, 8, 8)), [HOG(4)], cache=tmp_path, watch=seen)
        assert set(modes) == {0o600}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Scattering(0), "scales"),
        (lambda: Scattering(angles=0), "angles"),
        (lambda: HOG(bins=1), "bins"),
        (lambda: shape_after([HOG(cell=5)], (1, 8, 8)), "cells"),
        (lambda: RandomConvolutions(size=4), "odd"),
        (lambda: RandomConvolutions(filters=0), "filters"),
        (lambda: RandomConvolutions(seed=-1), "seed"),
        (lambda: shape_after([RandomConvolutions(pool=9)], (1, 8, 8)), "do not fit"),
        (lambda: shape_after([Grouped(2)], (3, 8, 8)), "divisor of 3"),
        (lambda: Grouped(0), "groups"),
        (lambda: RowScaled(0.0), "norm"),
        (lambda: Whitened(power=float("nan")), "power"),
        (lambda: Whitened(floor=0.0), "floor"),
        (lambda: Whitened(images=1), "images"),
        (lambda: Whitened(process=DeadLeaves), "process"),
        (lambda: shape_after([HOG()], (104,)), r"shape \(104,\)"),
        (lambda: Patches(filters=0), "filters"),
        (lambda: Patches(threshold=-1.0), "threshold"),
        (lambda: Patches(pool=8, stride=3), "multiple of stride"),
        (lambda: Patches(process=DeadLeaves), "process"),
        (lambda: shape_after([Patches(size=9)], (1, 8, 8)), "do not fit"),
        (lambda: Mirrored([]), "a list of stages"),
        (lambda: Mirrored(Scattering()), "a list of stages"),
        (lambda: Joined([]), "parts"),
        (lambda: Joined([[HOG()], "HOG"]), "a list of stages"),
    ],
)
def test_settings_that_are_none(make: Any, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        make()


class TestPage:
    PAGE = (Path(__file__).parents[2] / "docs" / "features.md").read_text()

    def test_the_code_runs(self) -> None:
        (code,) = re.findall(r"```python\n(.*?)```", self.PAGE, flags=re.S)
        exec(compile(code, "features.md", "exec"), {})

    def test_the_recipe_trains(self, tmp_path: Path) -> None:
        (text,) = re.findall(r"```toml\n(.*?)```", self.PAGE, flags=re.S)
        file = tmp_path / "mine.toml"
        file.write_text(text)
        whole = read(file)
        assert whole.features == (Scattering(), Whitened(images=500, power=0.25), RowScaled())
        out = tmp_path / "run"
        done = CliRunner().invoke(app, ["train", str(file), "--out", str(out)])
        assert done.exit_code == 0, done.output
        said = (out / "statement.txt").read_text()
        assert "Features: Scattering(scales=2, angles=8), then Whitened(" in said
        assert "no statistic of private rows is in them" in said
        assert read(out / "recipe.toml").features == whole.features

    def test_a_table_has_no_images(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["train", "--data", "adult", "--set", 'features=["HOG"]', "--dry-run"])
        assert done.exit_code != 0


def test_the_digits_gain_from_them() -> None:
    """The same linear model by plain least squares: what scattering adds is there without noise too."""
    split = digits()
    wide = featured(split, [Scattering(), RowScaled()])
    right = []
    for each in (split, wide):
        (x, y), (tx, ty) = (part.whole() for part in (each.train, each.test))
        a = torch.cat([x.flatten(1), torch.ones(len(x), 1)], 1).double()
        b = torch.cat([tx.flatten(1), torch.ones(len(tx), 1)], 1).double()
        ridge = 1e-2 * a.square().mean() * len(a)
        weights = torch.linalg.solve(a.T @ a + ridge * torch.eye(a.shape[1]), a.T @ F.one_hot(y).double())
        right.append(float(((b @ weights).argmax(1) == ty).double().mean()))
    assert right[1] > right[0]


class Kept(nn.Module):
    """Divides by the largest number that it ever saw."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def forward(self, images: Tensor) -> Tensor:
        self.largest = max(self.largest, float(images.abs().max()))
        return images / self.largest


class Beside(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images - images.mean(0)


@dataclass(frozen=True)
class Own:
    """A stage of one's own."""

    module: nn.Module = field(default_factory=nn.Identity)

    def after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def made(self, shape: tuple[int, ...], seen: Any) -> nn.Module:
        return self.module


@dataclass(frozen=True)
class Collected:
    """A process that paints what it was given."""

    rows: Tensor

    def painted(self, count: int, channels: int, side: int, source: Any) -> Tensor:
        return self.rows[source.integers(len(self.rows), size=count)]


class TestOnesOwn:
    """Stages and processes that are not saltflat's: nobody here knows what they were made from."""

    @pytest.mark.parametrize("module", [Kept(), Beside()])
    def test_a_stage_that_mixes_or_remembers(self, module: nn.Module) -> None:
        with pytest.raises(ModelError, match="mixes examples"):
            compute(torch.rand(5, 1, 8, 8), [Own(module)])

    def test_the_statement_does_not_vouch_for_them_and_prints_no_row(self) -> None:
        rows = torch.rand(50, 1, 8, 8)
        some = Examples(rows, torch.arange(50) % 2)
        for stage in (Whitened(process=Collected(rows), images=20), Own()):
            found = featured(Split(some, some, 2), [stage]).train.features
            assert "declared by its maker to hold nothing of private data" in found
            assert "tensor" not in found
            cost = phase_event(0.1, 1.0, 10)
            said = state(cost, Declared(delta=1e-5, size=50, features=found)).as_text()
            assert "no epsilon covers a statistic of private rows in it" in said
            assert "made without private data" not in said

    def test_their_features_are_never_kept(self, tmp_path: Path) -> None:
        """Two of them may have one name."""
        images = torch.rand(5, 1, 8, 8)
        compute(images, [Own()], cache=tmp_path)
        assert kept_in(tmp_path) == []
