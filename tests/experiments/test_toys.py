"""The toy problems: their formulas, their door, and what their commands say."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import toy_command
import toy_door
import toy_minima
import toy_quadratic

import saltflat as sf
from saltflat.core.ask import Ask, Release
from saltflat.errors import SettingError
from saltflat.privacy.noise import SeededNoise

SETTINGS = toy_minima.Own(
    sam_radius=0.7, sat_radius=0.7, sai_radius=0.7, sai_steps=12, sai_drop=4.0, smoothing=2.0
)
SHORT = toy_minima.Common(lr=4.0, steps=20)
HAS_FIGURES = importlib.util.find_spec("matplotlib") is not None


def printed(w: Tensor, name: str) -> Tensor:
    """The losses as the papers print them, in torch, for one point."""
    flat = (w - torch.tensor([2.5, 2.5], dtype=w.dtype)).norm()
    sharp = (w - torch.tensor([7.5, 7.5], dtype=w.dtype)).norm()
    if name == "dplis":
        a, b = torch.exp(-flat / 2), torch.exp(-sharp / 2)
        well = torch.sigmoid(2 * sharp / 5 - 5 / (2 * sharp))
    else:
        a, b = torch.exp(-flat), torch.exp(-sharp)
        well = torch.sigmoid(sharp - 1 / sharp)
    return (torch.sigmoid(flat / 5 - 5 / flat) * a + well * b) / (a + b)


@pytest.mark.parametrize("name", toy_minima.LANDSCAPES)
def test_the_losses_are_the_printed_ones(name: str) -> None:
    landscape = toy_minima.LANDSCAPES[name]
    points = np.random.default_rng(0).uniform(-2, 12, (20, 2))
    for point, loss, gradient, sharpness in zip(
        points,
        landscape.loss(points),
        landscape.gradient(points),
        landscape.sharpness(points),
        strict=True,
    ):
        w = torch.from_numpy(point)
        exact = torch.func.hessian(printed)(w, name)
        assert loss == pytest.approx(float(printed(w, name)), rel=1e-10)
        np.testing.assert_allclose(gradient, torch.func.grad(printed)(w, name), rtol=1e-8, atol=1e-12)
        assert sharpness == pytest.approx(float(torch.linalg.matrix_norm(exact, 2)), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", toy_minima.LANDSCAPES)
def test_the_centres_are_minima_of_finite_value(name: str) -> None:
    landscape, centres = toy_minima.LANDSCAPES[name], np.stack([toy_minima.FLAT, toy_minima.SHARP])
    values = landscape.loss(centres)
    assert np.isfinite(landscape.gradient(centres)).all()
    assert (values < 0.05).all()
    assert toy_minima.basin(landscape, centres + 0.1).tolist() == [0, 1]
    far = np.array([[1000.0, 1000.0]])
    assert toy_minima.basin(landscape, far).tolist() == [2]


@pytest.mark.parametrize("method", toy_minima.METHODS)
def test_runs_side_by_side_are_what_they_are_alone(method: str) -> None:
    own = replace(SETTINGS, smoothing=0.0)  # jitter is drawn for all rows at once: without it
    plan, landscape = toy_minima.METHODS[method](SHORT, own, 0), toy_minima.LANDSCAPES["dp-sat"]
    starts = torch.from_numpy(toy_minima.start_points("uniform", 3, 7))
    blocks = toy_door.draws(range(3), questions=40, width=2)
    together = toy_door.ends(plan, starts, landscape.gradient, blocks)
    for run, end in enumerate(together):
        one = slice(run, run + 1)
        *_, last = toy_door.walk(plan, starts[one], landscape.gradient, toy_door.Drawn(blocks[one]))
        np.testing.assert_allclose(last.params[0], end, rtol=1e-9)


def test_dplis_does_not_mix_runs() -> None:
    plan, landscape = toy_minima.METHODS["dplis"](SHORT, SETTINGS, 0), toy_minima.LANDSCAPES["dplis"]
    starts = torch.from_numpy(toy_minima.start_points("uniform", 3, 7))
    moved = starts.clone()
    moved[0] += 1
    blocks = toy_door.draws(range(3), questions=40, width=2)
    a, b = (toy_door.ends(plan, s, landscape.gradient, blocks) for s in (starts, moved))
    assert not np.allclose(a[0], b[0])
    np.testing.assert_array_equal(a[1:], b[1:])


def test_the_climb_of_the_library_comes_back() -> None:
    from saltflat.methods import sam, sat
    from saltflat.tree import climb

    def fails() -> None:
        with toy_door.rows_apart():
            assert sam.climb is sat.climb is toy_door.climb_rows
            raise SettingError("a walk that fails")

    with pytest.raises(SettingError):
        fails()
    assert sam.climb is sat.climb is climb


def test_an_answer_is_clipped_and_noised_run_by_run() -> None:
    release = Release(clip_norm=1.0, noise_multiplier=0.0, expected_units=4.0, noise=SeededNoise(0))
    rows = np.array([[3.0, 4.0], [0.3, 0.4]])
    ask = Ask(toy_door.sample(lambda points: points, 4), release)
    answer = ask({"w": torch.from_numpy(rows)})
    np.testing.assert_allclose(answer["w"], [[0.6, 0.8], [0.3, 0.4]])
    noisy = Release(clip_norm=1.0, noise_multiplier=2.0, expected_units=4.0, noise=SeededNoise(0))
    zero = {"w": torch.zeros(40_000, 2, dtype=torch.float64)}
    drawn = Ask(toy_door.sample(np.zeros_like, 4), noisy)(zero)["w"]
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.02)


def test_a_walk_needs_everybody_in_every_step() -> None:
    plan = replace(toy_minima.single(sf.methods.DPSGD(), SHORT), rate=0.5)
    with pytest.raises(SettingError, match="rate 1"):
        next(toy_door.walk(plan, torch.zeros(1, 2), np.zeros_like, SeededNoise(0)))


def test_all_methods_cost_the_same() -> None:
    for name, common in toy_minima.COMMON.items():
        plans = [make(common, toy_minima.OWN[name], 0) for make in toy_minima.METHODS.values()]
        spent = [plan.epsilon(common.delta) for plan in plans]
        assert {plan.steps for plan in plans} == {common.steps}
        assert max(spent) <= common.epsilon * (1 + 1e-9)
        assert min(spent) >= 0.98 * common.epsilon


def test_starts() -> None:
    line = toy_minima.start_points("bisector", 50, 0)
    np.testing.assert_allclose(
        *(np.linalg.norm(line - centre, axis=1) for centre in (toy_minima.FLAT, toy_minima.SHARP))
    )
    for kind in toy_minima.STARTS:
        points = toy_minima.start_points(kind, 50, 0)
        assert points.min() >= 0
        assert points.max() <= 10
        assert not np.allclose(points, toy_minima.start_points(kind, 50, 1))


def trial(method: str, seeds: int) -> toy_minima.Trial:
    return toy_minima.Trial(landscape="dplis", start="uniform", method=method, seeds=seeds, runs=4)


def test_a_row_says_what_the_runs_did() -> None:
    losses, basins = np.array([0.0, 0.0, 0.0, 1.0]), np.array([0, 0, 1, 2])
    row = toy_minima.Ended(trial("dplis", 0), np.zeros((4, 2)), losses, basins).row()
    assert (row["p_flat"], row["p_sharp"], row["p_neither"]) == (0.5, 0.25, 0.25)
    assert (row["mean"], row["q95"]) == (0.25, pytest.approx(0.85))


@pytest.mark.parametrize(
    ("plain", "smooth", "good"),
    [((0.5, 0.4), (0.9, 0.3), True), ((0.5, 0.4), (0.9, 0.5), False), ((0.9, 0.4), (0.9, 0.3), False)],
)
def test_one_worse_set_is_enough_to_refuse(plain: tuple, smooth: tuple, good: bool) -> None:
    def rows(seeds: int, p: tuple, s: tuple) -> list[dict]:
        both = {"start": "uniform", "seeds": seeds}
        return [
            {**both, "method": "dp-sgd", "p_flat": p[0], "q95": p[1]},
            {**both, "method": "dplis", "p_flat": s[0], "q95": s[1]},
        ]

    found = rows(0, (0.5, 0.4), (0.9, 0.3)) + rows(1, plain, smooth) + rows(2, (0.5, 0.4), (0.9, 0.3))
    assert toy_minima.accepted(found) is good


def test_paths_into_the_sharp_basin_are_sharper() -> None:
    for name, landscape in toy_minima.LANDSCAPES.items():
        paths = toy_minima.descend(landscape, toy_minima.COMMON[name].noise_std, paths=12)
        summary = paths.summary()
        assert summary["correlation"] > 0.5
        assert summary["sharpness_flat"] < summary["sharpness_sharp"]
        assert summary["turned_flat"] < summary["turned_sharp"]


def minima(out: Path, *more: str) -> int:
    return toy_minima.main(["--out", str(out), "--runs=5", "--sets", "0", "1", *more])


def test_the_minima_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert minima(tmp_path, "--losses=dplis", "--no-figures", "--json") == 0
    told = json.loads(capsys.readouterr().out)["dplis"]
    assert told == json.loads((tmp_path / "toy_minima_dplis.json").read_text())
    assert len(told["rows"]) == 2 * 2 * len(toy_minima.METHODS)
    assert {len(noise) for noise in told["noise_multipliers"].values()} == {1, 2}
    assert minima(tmp_path, "--losses=dplis", "--no-figures") == 0
    text = capsys.readouterr().out
    last = [row["q95"] for row in told["rows"] if (row["start"], row["method"]) == ("bisector", "dplis")]
    assert f"| {last[0]:.3f} {last[1]:.3f} |\n" in text
    assert "smaller 95 % loss, in all sets" in text


@pytest.mark.skipif(not HAS_FIGURES, reason="matplotlib is not installed")
def test_the_minima_command_draws_its_figures(tmp_path: Path) -> None:
    assert minima(tmp_path, "--losses=dp-sat") == 0
    drawn = {path.stem: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert set(drawn) == {f"toy_minima_dp-sat_{part}" for part in ("positions", "losses", "sharpness")}
    assert min(drawn.values()) > 5_000


@pytest.mark.parametrize("main", [toy_minima.main, toy_quadratic.main])
def test_without_matplotlib_one_line_says_what_to_install(
    main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toy_command.importlib.util, "find_spec", lambda name: None)
    assert main(["--out", str(tmp_path / "none")]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "pip install 'saltflat[report]'" in line
    assert not (tmp_path / "none").exists()


def test_tuning_seeds_are_not_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy_minima.main(["--out", str(tmp_path), "--sets", "0", "100", "--no-figures"]) == 1
    assert "got [100]" in capsys.readouterr().err


@pytest.mark.parametrize("name", toy_minima.OWN)
def test_the_chosen_settings_are_the_best_of_those_tried(name: str) -> None:
    """By the rule of the README: the smallest 95 % loss; for DPLIS, of those that leave the sharp basin."""
    kept = Path(toy_minima.__file__).parent / "figures" / "toy_minima_tuning.json"
    rows = [row for row in json.loads(kept.read_text())["rows"] if row["landscape"] == name]
    tried = [(method, text) for method, text, _, _ in toy_minima.candidates(name)]
    assert [(row["method"], row["tried"]) for row in rows] == tried
    assert {row["seeds"] for row in rows} == {toy_minima.TUNING}
    own, common = toy_minima.OWN[name], toy_minima.COMMON[name]
    text = f"{common.steps} steps, lr {common.lr:g}, sigma {common.noise_multiplier:g}"
    chosen = {
        "dp-sam": f"radius {own.sam_radius:g}",
        "dp-sat": f"radius {own.sat_radius:g}",
        "sai": f"radius {own.sai_radius:g}, first {own.sai_steps}, lr / {own.sai_drop:g}",
        "dplis": f"{text}, smoothing {own.smoothing:g}",
    }
    for method, said in chosen.items():
        mine = [row for row in rows if row["method"] == method]
        if method == "dplis":
            mine = [row for row in mine if row["tried"].startswith(text) and row["p_flat"] >= 0.95]
        assert min(mine, key=lambda row: row["q95"])["tried"] == said


@pytest.fixture(scope="module")
def found() -> toy_quadratic.Spread:
    """DP-SGD's spread after a short run."""
    problem, settings = toy_quadratic.quadratic(0), toy_quadratic.Settings(chains=8, burn=500, steps=500)
    *_, last = toy_quadratic.spread(problem, settings, toy_quadratic.Watched(problem))
    assert last is not None
    return last


class TestQuadratic:
    problem = toy_quadratic.quadratic(0)

    def test_the_spectrum(self) -> None:
        values = np.linalg.eigvalsh(self.problem.hessian)
        np.testing.assert_allclose(values, np.sort(self.problem.values), rtol=1e-9)
        assert (self.problem.values > 0.2).sum() == 10
        direction = self.problem.basis[:, 3]
        assert self.problem.curvature(direction) == pytest.approx(self.problem.values[3])

    def test_the_spread_is_the_predicted_one(self, found: toy_quadratic.Spread) -> None:
        assert found.summary()["beyond_3"] <= 3
        assert 0.6 < found.summary()["mean_square_z"] < 1.4
        groups = found.summary()["groups"]
        assert len(groups) == 15
        assert all(abs(group["z"]) < 3.5 for group in groups)

    def test_mutant_noise_that_is_a_tenth_too_large_is_caught(self, found: toy_quadratic.Spread) -> None:
        wrong = replace(found, predicted=found.predicted / 1.1**2)
        assert any(abs(group["z"]) > 3.5 for group in wrong.summary()["groups"])

    @pytest.mark.parametrize("probe", toy_quadratic.PROBES, ids=str)
    def test_the_estimators_find_the_curvature(self, probe) -> None:
        gradient = toy_quadratic.Watched(self.problem)
        settings = toy_quadratic.Settings(probe_runs=6, probe_steps=100)
        summary = probe(gradient, settings).summary()
        assert summary["within"]
        assert gradient.longest < settings.clip_norm
        if summary["uncorrected"] is not None:
            assert abs(summary["uncorrected"] - summary["truth"]) > summary["allowed"]
        else:
            measured, predicted = summary["noise_std"]
            assert measured == pytest.approx(predicted, rel=0.35)

    def test_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        figures = [] if HAS_FIGURES else ["--no-figures"]
        assert toy_quadratic.main(["--out", str(tmp_path), "--quick", *figures]) == 0
        assert (tmp_path / "toy_quadratic_spread.png").exists() == HAS_FIGURES
        text = capsys.readouterr().out
        assert text.count("| S3, ") == 4
        assert text.count("| S4, ") == 3
        assert "the clip norm is 10" in text
        kept = json.loads((tmp_path / "toy_quadratic.json").read_text())
        assert len(kept["spread"]["groups"]) == 15
