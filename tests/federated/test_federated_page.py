"""docs/federated.md runs as it is written, and every method in its table is what it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from steps import CRITERION, beside, network, phase, plan
from test_contribution import clients

from saltflat import federated, methods, supervised, train
from saltflat.federated import per_client
from saltflat.privacy.noise import SecureNoise

PAGE = (Path(__file__).parents[2] / "docs" / "federated.md").read_text()


def test_the_fifteen_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    assert len([line for line in code.splitlines() if line]) <= 15
    source = np.random.default_rng(0)
    rows = [f"{k % 40},{source.uniform(0, 100):.1f},{source.integers(20, 90)},{k % 2}" for k in range(300)]
    (tmp_path / "visits.csv").write_text("\n".join(["user,dose,age,outcome", *rows]))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "federated.md", "exec"), {})
    assert re.search(r"epsilon \d+\.\d\d at delta 1e-3", capsys.readouterr().out)


def table() -> list[tuple[str, str, str]]:
    part = PAGE.split("## The published methods")[1].split("##")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return [(name, local, server) for name, local, server in lines[1:]]


def codes(cell: str, begins: str) -> list[str]:
    return [code for code in re.findall(r"`([^`]+)`", cell) if re.match(begins, code)]


NAMES = {
    **vars(federated),
    **vars(methods),
    "C": 0.2,
    "seed": 3,
    "public_update": dict(network(4).named_parameters()),
}
NAMES["public_update"] = {name: leaf.detach() for name, leaf in NAMES["public_update"].items()}
ROWS = [(name, local, server) for name, local, server in table() if "any" not in (local, server)]


@pytest.mark.parametrize(("name", "local", "server"), ROWS, ids=[row[0] for row in ROWS])
def test_every_published_method_is_a_line_of_parts(name: str, local: str, server: str) -> None:
    ways = [(own, how) for own in codes(local, "Local") for how in codes(server, r"(DPSGD|Masked|SAT)\(")]
    assert ways
    for own, how in ways:
        two = plan(phase(steps=2, method=eval(how, {**NAMES}), clip_norm=0.2), size=10)
        trains = per_client(network(), supervised(CRITERION), local=eval(own, {**NAMES}))
        train(two, trains, clients(), **beside(noise=SecureNoise()))


def test_the_table_has_them_all() -> None:
    wanted = {
        "DP-FedAvg",
        "Fed-SMP-rand",
        "Fed-SMP-top",
        "BLUR",
        "BLUR + LUS",
        "DP-FedSAM",
        "DP-FedSAM-top_k",
    }
    assert wanted <= {name for name, _, _ in table()}
