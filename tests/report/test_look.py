"""Colours that everybody can tell apart, on white and on dark; measured, not believed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from saltflat.report.look import DARK, LIGHT, Look, shades, variables

# Linear RGB as people without one kind of cone see it (Machado, Oliveira & Fernandes 2009, severity 1).
VISION = {
    "usual": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> np.ndarray:
    code = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of the Web Content Accessibility Guidelines."""
    dim, bright = sorted(float(np.dot([0.2126, 0.7152, 0.0722], linear(c))) for c in (one, other))
    return (bright + 0.05) / (dim + 0.05)


def lab(light: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.maximum(np.dot(to_xyz, np.clip(light, 0, 1)) / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(look: Look) -> None:
    assert contrast(look.ink, look.paper) >= 7
    assert min(contrast(colour, look.paper) for colour in look.runs) >= 3  # lines
    assert min(contrast(colour, look.paper) for colour in (look.link, look.warn)) >= 4.5  # they are text
    assert contrast(look.faint, look.paper) >= 3  # lines of tables and of the grid


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_runs_differ_for_every_kind_of_colour_vision(look: Look, vision: str) -> None:
    seen = {colour: lab(np.dot(VISION[vision], linear(colour))) for colour in look.runs}
    for one, other in combinations(look.runs, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 15, (one, other)


def test_runs_differ_without_colour() -> None:
    styles = [LIGHT.line(place) for place in range(30)]
    assert len({(str(style["linestyle"]), style["marker"]) for style in styles}) == 30


def test_every_colour_has_a_name_on_the_page() -> None:
    for look in (LIGHT, DARK):
        told = variables(look)
        for name in ("ink", "faint", "paper", "link", "warn", "run-0", "run-5", "map-0", "map-15"):
            assert f"--{name}:#" in told


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_a_map_gets_lighter_all_the_way_and_is_seen_on_its_paper(look: Look) -> None:
    found = shades(look)
    bright = [float(np.dot([0.2126, 0.7152, 0.0722], linear(colour))) for colour in found]
    assert bright == sorted(bright)
    assert min(contrast(colour, look.paper) for colour in found) >= 3
    assert contrast(found[0], found[-1]) >= 3.5  # and its ends are told apart
