"""Pictures as files: what is in them, and that odd data still makes a picture."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import EVIL
from folders import write_landscape, write_run

from saltflat.errors import SettingError
from saltflat.report import spread, terrain
from saltflat.report.draw import Picture, check_drawing, write
from saltflat.report.folder import Kept, gather
from saltflat.report.look import LIGHT
from saltflat.report.maps import basin_levels
from saltflat.report.output import pictures
from saltflat.report.shapes import Surface


def written(picture: Picture, folder: Path) -> tuple[bytes, str]:
    """The PNG, and the text in the SVG."""
    png, svg = write(picture, folder)
    return png.read_bytes(), "\n".join(t for t in ElementTree.parse(svg).getroot().itertext() if t.strip())


def test_every_kind_of_picture_is_there(folders: Sequence[Path]) -> None:
    assert [picture.key for picture in pictures(gather(folders))] == [
        *("accuracy-epsilon", "accuracy-training", "epsilon-training", "line-loss", "line-accuracy"),
        *("contours-1", "contours-2", "contours-3", "surface-1", "surface-2", "surface-3"),
        *("between-loss", "between-accuracy", "spectrum", "noise-tolerance", "gradient-norms"),
        "trade-off",
    ]


def test_names_are_written_as_they_are(folders: Sequence[Path], tmp_path: Path) -> None:
    """A leading underscore, a dollar sign or a tag changes nothing."""
    picture = pictures(gather(folders))[0]
    png, words = written(picture, tmp_path)
    assert png.startswith(b"\x89PNG")
    assert "_DP-SGD" in words
    assert EVIL.replace("/", "\N{FRACTION SLASH}")[:14] in words
    assert "test accuracy" in words


def one(tmp_path: Path, **arrays: np.ndarray) -> Kept:
    path = write_landscape(write_run(tmp_path / "one"))
    surface = dict(np.load(path / "landscape" / "surface.npz"))
    np.savez(path / "landscape" / "surface.npz", **{**surface, **arrays})
    (run,) = gather([path])
    return run


@pytest.mark.parametrize(
    "loss",
    [
        np.full((25, 25), 2.0),
        np.where(np.eye(25) > 0, np.inf, 1.0),
        np.full((25, 25), np.nan),
        np.geomspace(1e-3, 1e6, 625).reshape(25, 25),
        -np.arange(625.0).reshape(25, 25),
    ],
    ids=["level", "infinities", "nothing finite", "nine decades", "negative"],
)
def test_odd_surfaces(tmp_path: Path, loss: np.ndarray) -> None:
    run = one(tmp_path, loss=loss)
    (contours,), (still,) = terrain.contours([run]), terrain.stills([run])
    for picture in (contours, still):
        assert "<text" in picture.page()
        assert "nan" not in picture.page()
        assert picture.draw(LIGHT) is not None
    data = terrain.turning([run])
    assert data is not None
    told = [value for row in data["surfaces"][0]["loss"] for value in row]
    assert sum(value is None for value in told) == int((~np.isfinite(loss)).sum())


def test_levels_show_the_basin_where_the_walls_are_high() -> None:
    """A bowl whose walls are a thousand times as high as its floor is deep: equal distances give the basin one band."""
    side = np.linspace(-1, 1, 41)
    loss = 0.5 + 500 * np.add.outer(side**2, side**2) ** 4
    levels = basin_levels([Surface(side, side, loss, "")])
    middle = loss[10:31, 10:31]  # the inner quarter of the plane
    crossed = [level for level in levels if middle.min() < level < middle.max()]
    assert len(crossed) >= 5
    even = np.linspace(loss.min(), loss.max(), len(levels))
    assert sum(middle.min() < level < middle.max() for level in even) <= 1


def test_all_surfaces_have_one_scale() -> None:
    side = np.arange(2.0)
    low, high = (Surface(side, side, np.array([[a, 2.0], [3.0, b]]), "") for a, b in ((1.0, 4.0), (2.0, 9.0)))
    scale = terrain.common_scale([low, high])
    assert (scale.low, scale.high, scale.log) == (1.0, 9.0, False)
    np.testing.assert_allclose(scale.heights(high.loss), [[0.125, 0.125], [0.25, 1.0]])


def test_a_way_and_a_smoothed_line(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    folder = path / "landscape"
    surface, line = (dict(np.load(folder / name)) for name in ("surface.npz", "line.npz"))
    np.savez(folder / "trajectory.npz", **surface, places=np.array([[0.9, 0.5], [0.3, -0.2], [0.0, 0.0]]))
    np.savez(folder / "smoothed.npz", **line)
    (run,) = gather([path])
    (way,), (smooth,) = terrain.trajectories([run]), terrain.smoothed([run])
    assert 'class="over"' in way.page()  # the way itself
    assert 'class="over"' not in terrain.contours([run])[0].page()
    assert "model" in way.page()
    assert "Smoothed loss" in smooth.page()
    np.savez(folder / "trajectory.npz", **surface, places=np.ones((3, 5)))
    (run,) = gather([path])
    assert "places are pairs" in run.shapes.trajectory.trouble


def test_a_large_surface_is_thinned_and_keeps_its_corners() -> None:
    side = np.linspace(-1, 1, 201)
    small = terrain.thinned(Surface(side, side, np.add.outer(side, 2 * side), ""))
    assert small.loss.shape == (terrain.MOST, terrain.MOST)
    assert (small.loss[0, 0], small.loss[-1, -1], small.alphas[0], small.betas[-1]) == (-3.0, 3.0, -1.0, 1.0)


def test_no_outlier_of_a_spectrum_is_lost() -> None:
    grid, density = np.linspace(0, 1, 10_000), np.zeros(10_000)
    density[1234] = 7.0
    places, heights = spread._peaks(grid, density)
    assert len(places) == spread.MOST
    assert heights.max() == 7.0
    assert places[heights.argmax()] == grid[1234]


def test_a_spectrums_caption_gives_no_tail_for_an_eigenvalue(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    (run,) = gather([path])
    picture = spread.spectra([run])
    assert picture is not None
    assert picture.words == "one: largest eigenvalue 21.5"  # as in the table of measures
    (path / "landscape" / "measures.json").unlink()
    (run,) = gather([path])
    picture = spread.spectra([run])
    assert picture is not None
    assert picture.words.startswith("one: range of the smoothed density −")
    assert "eigenvalue" not in picture.words


def test_noise_that_momentum_was_left_out_of_is_said_to_be(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    picture = spread.noise_tolerance(gather([path]))
    assert picture is not None
    assert "last phase" in picture.title
    assert picture.words.endswith("after 100 steps (momentum left out: measure anew)")
    file = path / "landscape" / "measures.json"
    file.write_text(file.read_text().replace('"loss"', '"noise_momentum": 0.9, "loss"', 1))
    picture = spread.noise_tolerance(gather([path]))
    assert picture is not None
    assert picture.words.endswith("(momentum 0.9)")


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingError, match=r"pip install 'saltflat\[report\]'"):
        check_drawing()
