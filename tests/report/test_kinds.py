"""Sections for runs of some kinds: there where they have something to say, and no more than is released."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folders import reading, write_landscape, write_run, write_statement

from saltflat.pate.kept import Released
from saltflat.report.folder import gather
from saltflat.report.made import png, sheet_of
from saltflat.report.page import page
from saltflat.runs.layout import Before, StageOf
from saltflat.runs.synthetic import Metric, keep


def shown(*paths: Path) -> str:
    return page(gather(paths))


def test_samples_and_their_metrics(tmp_path: Path) -> None:
    images = np.full((10, 4, 3), 7, np.uint8)
    metrics = [Metric(name="<i>Frechet</i>", value=12.5, error=0.5, better="lower", words="How far.")]
    run = write_run(tmp_path / "one")
    keep(run, status="released", about="a generator", metrics=metrics, images=images)
    text = shown(run)
    assert 'id="synthetic"' in text
    assert "&lt;i&gt;Frechet&lt;/i&gt;" in text
    assert "12.5 ± 0.5" in text
    assert "↓ lower is better How far." in text
    assert "10 samples; released. a generator" in text
    assert 'src="data:image/png;base64,' in text
    assert "Keep private" not in text
    keep(run, status="private: keep this file", about="", metrics=[], images=images)
    assert "Keep private." in shown(run)
    (run / "synthetic" / "samples.npz").write_bytes(b"no")
    assert "synthetic is damaged" in shown(run)


def test_what_came_before_the_private_phase(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    stages = (
        StageOf("first weights", "start", 0.0, 0.1),
        StageOf("<b>warm</b>", "warm-up", 0.0, 0.5),
        StageOf("DPSGD", "private", 1.0257, 0.9),
    )
    told = Before("WarmSyn", ("100 <i>examples</i>",), stages, {"frechet": 12.5, "cas": 0.7, "other": 3.0})
    (run / "public").mkdir()
    (run / "public" / "stages.json").write_bytes(told.as_json())
    images = np.zeros((5, 1, 4, 4), np.uint8)
    np.savez(run / "public" / "samples.npz", public=images, synthetic=images, synthetic_labels=np.zeros(5))
    text = shown(run)
    assert 'id="before"' in text
    assert "&lt;b&gt;warm&lt;/b&gt;" in text
    assert "100 &lt;i&gt;examples&lt;/i&gt;" in text
    assert "↓ lower is better Between features" in text
    assert text.count("data:image/png;base64,") == 2
    assert "Keep private" not in text
    bare = StageOf("SGD", "without noise", None, 0.95)
    (run / "public" / "stages.json").write_bytes(replace(told, stages=(*stages, bare)).as_json())
    text = shown(run)
    assert "Keep private." in text
    assert "∞: not private" in text
    np.savez(run / "public" / "samples.npz", public=images.astype(float))
    assert "samples.npz is damaged: public is not uint8" in shown(run)


def test_a_sheet_of_samples_is_a_png() -> None:
    from io import BytesIO

    image = pytest.importorskip("PIL.Image")
    images = np.random.default_rng(0).integers(0, 255, (10, 4, 3, 3), dtype=np.uint8)
    sheet = sheet_of(images)
    found = np.asarray(image.open(BytesIO(png(sheet))))
    assert (found == sheet).all()
    assert (sheet[:4, :3] == images[0]).all()
    assert (sheet[5:9, 4:7] == images[9]).all()


def test_votes_are_released_figures_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    released = Released(
        teachers=40,
        unit="example",
        threshold=24,
        sigma1=16.9,
        sigma2=11.3,
        limit="at most 240",
        asked=240,
        answered=144,
        epsilon=9.9,
        delta=1e-5,
        at_this_data=None,
        accuracy=0.79,
        evaluated=120,
        student="plain SGD",
    )
    (run / "pate.json").write_text(released.as_json())
    (run / "private").mkdir()
    (run / "private" / "votes.npy").write_bytes(b"SECRET")
    text = shown(run)
    assert "144 of 240 public queries answered (60.0 %)" in text
    assert "SECRET" not in text
    assert "saltflat landscape one" not in text  # there is no recipe to look at a student with


def test_rounds_of_clients(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe + '\n[clients]\ncount = 200\nsplit = "IID"\n')
    text = shown(run)
    assert 'id="clients"' in text
    assert "200 clients are declared" in text
    assert "Without noise" not in text
    other = write_run(tmp_path / "two", method="dp-sgd")
    (other / "recipe.toml").write_text(
        (other / "recipe.toml").read_text() + '\n[clients]\ncount = 200\nsplit = "IID"\n'
    )
    both = shown(run, other)
    assert "Rounds of one, two: " in both
    assert both.count("clients are declared") == 1
    with (run / "metrics.jsonl").open("a") as file:
        for step in (41, 42):
            told = {**reading(step), "update_norm": 1.5, "clip_factor": 0.6, "inconsistency": 0.1}
            file.write(json.dumps(told) + "\n")
    text = shown(run)
    assert "Without noise:" in text
    assert 'data-key="clip-factor-training"' in text


def test_a_sweep_of_one_number(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"at-{radius}") for radius in (0.01, 0.03, 0.3)]
    for run, radius in zip(runs, (0.01, 0.03, 0.3), strict=True):
        file = run / "recipe.toml"
        file.write_text(file.read_text().replace("radius = 0.03", f"radius = {radius}"))
    text = shown(*runs)
    assert "These recipes differ in phase.0.method.SAT.radius alone." in text
    assert "for all 3 runs on digits, and not the epsilon of the one that was picked" in text
    assert 'data-key="sweep"' in text
    assert 'id="sweep"' not in shown(*runs[:2])


def test_features_by_the_statements_words(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    assert 'id="features"' not in shown(run)
    write_statement(run, features="scattering with 8 angles")
    assert "scattering with 8 angles." in shown(run)


def test_phases_are_labelled(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(
        f'{recipe}\n[[phase]]\nsteps = 5\nmethod = "DPSGD"\nclip_norm = 0.1\noptimizer = {{SGD = {{lr = 1.0}}}}\n'
    )
    lines = [json.dumps({**reading(step), "phase": int(step > 20)}) for step in range(4, 41, 4)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = shown(run)
    assert "phase 2: SAT → DPSGD" in text
    chart = text[text.index('data-key="accuracy-training"') :]
    chart = chart[: chart.index("</svg>")]
    assert chart.index("phase 2") > chart.rindex('class="line"')  # over the lines, and with a halo
    assert 'class="small halo"' in chart


def test_breaks_of_a_histogram_are_marked(tmp_path: Path) -> None:
    text = shown(write_landscape(write_run(tmp_path / "one")))
    assert "bins of 1" in text
    assert text.count('class="break"') >= 4  # two strokes and a line, at 1 and behind the last


def test_forty_runs_with_landscapes_stay_under_two_megabytes(tmp_path: Path) -> None:
    """Five recipes, eight seeds: one statement, five recipes, eight surfaces at most."""
    methods = ("dp-sat", "dp-sgd")
    runs = [
        write_landscape(write_run(tmp_path / method / f"seed-{seed}", method=method, seed=seed), size=11)
        for method in methods
        for seed in range(20)
    ]
    text = shown(*runs)
    assert len(text.encode()) < 2_000_000
    assert text.count("differentially private for each example") == 1
    assert text.count("<canvas") == 2
    assert "40 runs have a surface; drawn are 2, the first of each of the best recipes" in text
    assert "dp-sat (20 runs)" in text
