"""Run folders for tests, written by hand in the format of `saltflat train` and `saltflat landscape`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from saltflat.privacy.accounting.events import phase_event
from saltflat.privacy.record.history import Budget
from saltflat.privacy.record.ledger import Ledger
from saltflat.privacy.record.statement import Declared, state
from saltflat.recipes import shipped
from saltflat.runs.evaluation import Evaluation

METHODS: dict[str, Any] = {
    "dp-sat": {"SAT": {"radius": 0.03}},
    "far": {"SAT": {"radius": 0.3}},
    "dp-sgd": "DPSGD",
}
RATE, NOISE, STEPS, DELTA = 0.25, 6.0, 40, 1e-5
READINGS = 10


def write_run(
    path: Path,
    *,
    method: str = "dp-sat",
    steps: int = STEPS,
    ended: bool = True,
    peak: float = 0.9,
    seed: int = 0,
) -> Path:
    """A run of so many of its steps, charged in its ledger; one that has not ended has no statement and no model."""
    path.mkdir(parents=True)
    settings = {
        "phase.0.method": METHODS[method],
        "batch_size": 359,
        "phase.0.epochs": STEPS * RATE,
        "seed": seed,
    }
    recipe = shipped("digits").but(settings)
    (path / "recipe.toml").write_text(recipe.as_toml())
    with Ledger.open(path / "ledger.jsonl", dataset="digits", budget=Budget(3.0, DELTA)) as book:
        book.run("a run", unit="example").charge(RATE, NOISE, steps=steps)
    write_metrics(path, range(STEPS // READINGS, steps + 1, STEPS // READINGS), peak=peak)
    if ended:
        write_statement(path)
        (path / "model.safetensors").write_bytes(b"")
    return path


def write_statement(path: Path, **changes: Any) -> None:
    (path / "statement.json").write_text(json.dumps({**json.loads(_statement()), **changes}))


@cache
def _statement() -> str:
    return state(phase_event(RATE, NOISE, STEPS), Declared(delta=DELTA, size=1437)).as_json()


def write_metrics(path: Path, steps: Any, *, peak: float = 0.9) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps(reading(step, peak=peak)) + "\n")


def reading(step: int, *, peak: float = 0.9) -> dict[str, Any]:
    return {
        "step": step,
        "epoch": step * RATE,
        "phase": 0,
        "epsilon": 1.0257 * (step / STEPS) ** 0.527,
        "accuracy": peak * (1 - 0.8 * float(np.exp(-4 * step / STEPS))),
        "seconds": 0.5,
        "examples_per_second": 5000.0,
    }


def write_landscape(path: Path, *, sharp: float = 1.0, status: str = "public", size: int = 25) -> Path:
    """Every file that `saltflat landscape` may write, of a bowl that is ``sharp`` times as steep as another."""
    folder = path / "landscape"
    folder.mkdir()
    alphas = np.linspace(-1, 1, size)
    first, second = np.meshgrid(alphas, alphas, indexing="ij")
    height = 1.6 * first**2 + 0.7 * second**2 + 0.35 * np.sin(3 * first) * np.cos(2 * second)
    loss = 0.3 + sharp * (height - height.min())
    marks = {"seed": np.array(0), "subset": np.array("1f2e3d4c")}
    np.savez(folder / "surface.npz", alphas=alphas, betas=alphas, loss=loss, accuracy=1 / (1 + loss), **marks)
    line = np.linspace(-0.8, 0.8, 81)
    curve = 0.3 + 4 * sharp * line**2
    np.savez(folder / "line.npz", alphas=line, loss=curve, accuracy=0.95 / (1 + curve))
    write_spectrum(folder, sharp, marks)
    measures = {
        **{
            "data": "digits",
            "split": "test",
            "status": status,
            "examples": 360,
            "subset": "1f2e3d4c",
            "seed": 0,
        },
        **{
            "precision": "float64",
            "loss": 0.3,
            "accuracy": 0.91,
            "weight_norm": 7.25,
            "lambda_max": 21.5 * sharp,
            "lambda_max_error": 1.5,
        },
        **{
            "lambda_5": 9.0,
            "ratio": 2.389 * sharp,
            "hessian_norm": 21.5 * sharp,
            "trace": 152.0,
            "trace_error": 3.1,
        },
        **{
            "sharpness": 81.0 * sharp,
            "sharpness_error": 4.0,
            "sharpness_solver": "L-BFGS-B, 3 restarts",
            "sam_gap": 0.04,
            "average_gap": 0.01,
        },
        "noise_tolerance": [[steps, 0.002 * sharp * steps] for steps in (1, 3, 10, 30, 100)],
    }
    (folder / "measures.json").write_text(json.dumps(measures))
    edges = [*np.arange(0, 1, 0.05).round(2).tolist(), *range(1, 11)]
    counts = (1000 * np.exp(-np.arange(len(edges) - 1) / (4 * sharp))).astype(int).tolist()
    gradients = {"edges": edges, "counts": counts, "overflow": 12, "clip_norm": 0.1, "clipped_share": 0.62}
    (folder / "gradients.json").write_text(json.dumps({**gradients, "status": status}))
    return path


def write_evaluation(path: Path, right: Any, *, examples: str = "abcd") -> Path:
    """Which test examples a run is right on, and a last reading that says the same share."""
    bits = np.asarray(right, dtype=bool)
    (path / "evaluation.json").write_text(Evaluation(examples, bits).as_json())
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**reading(STEPS), "accuracy": float(bits.mean())}) + "\n")
    return path


def without_pictures(path: Path) -> Path:
    """The same run, quicker to report on."""
    for name in ("surface.npz", "line.npz", "spectrum.npz", "gradients.json"):
        (path / "landscape" / name).unlink()
    (path / "metrics.jsonl").unlink()
    return path


def write_spectrum(folder: Path, sharp: float, marks: dict[str, Any]) -> None:
    grid = np.linspace(-3, 30, 10_000)
    bell = lambda centre, width, mass: mass * np.exp(-(((grid - centre) / width) ** 2) / 2)
    density = bell(0, 0.3, 1.0) + sum(bell(sharp * centre, 0.25, 1e-4) for centre in (3, 5, 8, 11, 21.5))
    np.savez(folder / "spectrum.npz", grid=grid, density=density, trace=152.0, dimension=9258, **marks)


def write_interpolation(path: Path, names: list[str]) -> None:
    alphas = np.linspace(-0.5, 1.5, 41)
    loss = np.stack([0.3 + (k + 1) * (alphas * (1 - alphas)) ** 2 for k in range(len(names))])
    np.savez(
        path / "landscape" / "interpolation.npz",
        alphas=alphas,
        loss=loss,
        accuracy=1 / (1 + loss),
        names=names,
    )
