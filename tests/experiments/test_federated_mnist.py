"""The federated comparison: every method is the parts that it names, at the cost that is printed."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

import federated_mnist as fed
import results
from formats import pixels, write_idx

from saltflat.core.train import trainable
from saltflat.data import load
from saltflat.errors import SaltflatError
from saltflat.methods import DPSGD, Coin, Earlier, Masked

SEARCH = results.read(fed.CHOSEN)
PARAMS = trainable(fed.network(0))


def test_two_hundred_rounds_print_the_epsilon_of_the_accountant() -> None:
    assert fed.plan_of(fed.Settings(), PARAMS).epsilon(fed.DELTA) == pytest.approx(7.30, rel=0.005)


def test_the_legacy_clipping_costs_what_its_sensitivity_says() -> None:
    """Four tensors: the same noise on the sum as it had, and half the noise multiplier."""
    plan = fed.plan_of(fed.Settings(legacy=True), PARAMS)
    assert plan.phases[0].noise_multiplier == pytest.approx(fed.NOISE / 2)
    assert plan.epsilon(fed.DELTA) > 15


def test_the_search_is_over_and_its_choices_are_the_best_tries() -> None:
    for method in fed.OWN:
        done = [(fed.kept(each, SEARCH), each) for each in fed.tries(method, SEARCH)]
        assert all(one is not None for one, _ in done)
        best = max(done, key=lambda pair: pair[0]["test_accuracy"])[1]
        assert all(getattr(best, name) == value for name, value in fed.chosen(method, SEARCH).items())


def test_every_method_differs_from_the_first_in_its_own_parts_alone() -> None:
    runs = {one.method: one for one in fed.comparison([0], SEARCH) if not one.legacy}
    base = runs["DP-FedAvg"]
    own = {
        "Fed-SMP-rand": {"mask", "keep"},
        "Fed-SMP-top": {"mask", "keep"},
        "BLUR": {"blur"},
        "BLUR+LUS": {"blur", "lus"},
        "DP-FedSAM": {"radius", "adaptive"},
        "DP-FedSAM-top_k": {"radius", "adaptive", "mask", "keep"},
    }
    assert runs.keys() - {"DP-FedAvg"} == own.keys()
    for method, names in own.items():
        differs = {n for n, value in asdict(runs[method]).items() if value != asdict(base)[n]} - {"method"}
        assert differs <= names
        assert differs
    assert isinstance(fed.method_of(base), DPSGD)
    for method, kind in (("Fed-SMP-rand", Coin), ("Fed-SMP-top", Earlier), ("DP-FedSAM-top_k", Earlier)):
        masked = fed.method_of(runs[method])
        assert isinstance(masked, Masked)
        assert isinstance(masked.by, kind)


def test_a_search_that_is_not_over_is_said_to_be() -> None:
    with pytest.raises(SaltflatError, match="--choose"):
        fed.chosen("DP-FedSAM", SEARCH[:9])


def test_a_finished_run_is_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "mnist"
    for part, count in (("train", 90), ("t10k", 10)):
        write_idx(folder, part, pixels(count, 28, 28), np.arange(count, dtype=np.uint8) % 10)
    monkeypatch.setattr(fed, "CLIENTS", 20)
    settings = [replace(fed.Settings(rounds=2), method=name, **more) for name, more in
                (("DP-FedAvg", {}), ("DP-FedSAM", {"radius": 0.1, "adaptive": True, "legacy": True}))]  # fmt: skip
    given = Namespace(out=tmp_path / "kept.jsonl", data_dir=folder.parent, runs=1)
    fed.series(settings, given)
    assert len(results.read(given.out)) == 1
    fed.series(settings, Namespace(**{**vars(given), "runs": -1}))
    first, second = results.read(given.out)
    assert first["settings"]["method"] == "DP-FedAvg"
    assert second["epsilon"] > first["epsilon"]
    lines = fed.table([first, first, second]).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| DP-FedAvg", "1"],
        ["| DP-FedSAM, legacy clipping", "1"],
    ]
    assert load("mnist", folder.parent).train.count == 90


def test_means_have_standard_errors() -> None:
    assert fed.mean_of([1.0, 2.0, 3.0]) == "2.00 ± 0.58"
    assert fed.mean_of([1.0]) == "1.00"


def test_gains_are_taken_seed_by_seed() -> None:
    def run(method: str, seed: int, accuracy: float, legacy: bool = False) -> results.Result:
        settings = asdict(fed.Settings(method=method, seed=seed, legacy=legacy))
        return {"settings": settings, "test_accuracy": accuracy}

    found = [run("DP-FedAvg", 0, 0.90), run("DP-FedAvg", 1, 0.80), run("DP-FedSAM", 1, 0.82)]
    found += [run("DP-FedSAM", 0, 0.91), run("DP-FedSAM", 0, 0.10, legacy=True), run("BLUR", 7, 0.5)]
    assert fed.paired(found).splitlines()[2:] == ["| DP-FedSAM | +1.00, +2.00 | 1.50 ± 0.50 |"]


def test_the_page_has_the_tables_of_the_kept_runs() -> None:
    page, found = (fed.HERE / "README.md").read_text(), results.read(fed.KEPT)
    assert fed.table(found) in page
    assert fed.paired(found) in page
