"""Flower's real runtimes: its simulation, and a SuperLink with three SuperNodes over TLS, one of them killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saltflat.federated.flower.start import start_app
from saltflat.privacy import read

pytest.importorskip(
    "flwr", reason="Flower is an extra: pip install 'saltflat[federated]'", exc_type=ImportError
)

import runtimes

pytestmark = pytest.mark.slow
LIMIT = 540  # seconds for a whole federation


def edited(file: Path, *changes: tuple[str, str]) -> None:
    """Change a file of the template; what is to be changed must be there."""
    text = file.read_text()
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    file.write_text(text)


def flwr(*given: object, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["flwr", *map(str, given)], env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def simulated(tmp_path: Path, app: Path, nodes: int) -> str:
    """`flwr run` on the simulation runtime; what it streamed."""
    port, log, env = runtimes.free_port(), tmp_path / "link.log", runtimes.around(tmp_path / "home")
    runtimes.connection(tmp_path / "home", "here", port)
    link = ["flower-superlink", "--simulation", "--insecure", "--host", runtimes.HOST, "--port", port]
    with runtimes.started(link, log, env):
        runtimes.answers(port, log)
        return flwr("run", app, "here", "--stream", "--federation-config", f"num-supernodes={nodes}", env=env)


def test_the_app_of_init_runs_as_it_is_written(tmp_path: Path) -> None:
    start_app(tmp_path / "app")
    said = simulated(tmp_path, tmp_path / "app", 20)
    run = tmp_path / "runs" / "federation"
    assert "round 10 of 10" in said
    statement = json.loads((run / "statement.json").read_text())
    assert statement["unit"] == "client"
    assert 6 < statement["epsilon"] <= 8.0  # no spare round was needed
    assert any("before the noise" in line for line in statement["not_covered"])
    assert sum(read(run / "ledger.jsonl").steps().values()) == 10
    assert load_file(run / "model.safetensors").keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}


QUIET_SERVER = """
import numpy as np
from safetensors.torch import save_file

from saltflat import Running, Safeguards, train
from saltflat.federated.flower import Fleet, GridPost, flower, over_flower

from federation.task import CLIENTS, model, plan

app = flower().serverapp.ServerApp()


@app.main()
def main(grid, context):
    fleet = Fleet(GridPost(grid), CLIENTS, seconds=120, patience=120)
    params = train(plan(), over_flower(model(), fleet), fleet, safeguards=Safeguards(sampling=np.random.default_rng(5)))
    save_file(params, context.run_config["folder"])
"""
IN_PROCESS = """
import sys
import numpy as np
from safetensors.torch import save_file

from saltflat import Safeguards, train
from saltflat.data import digits
from saltflat.federated import Clients

from federation.task import CLIENTS, contribution, plan

examples = digits().train
clients = Clients(examples, [np.arange(k, examples.count, CLIENTS) for k in range(CLIENTS)])
save_file(train(plan(), contribution(), clients, safeguards=Safeguards(sampling=np.random.default_rng(5))), sys.argv[1])
"""


def test_simulated_and_in_process_are_one_model_without_noise(tmp_path: Path) -> None:
    app, env = tmp_path / "app", runtimes.around(tmp_path / "home", tmp_path / "app")
    start_app(app)
    edited(
        app / "federation" / "task.py",
        ("lr=0.1)", "lr=0.1, momentum=0.5, lr_decay=0.9, seed=3)"),
        ("noise_multiplier=1.0", "noise_multiplier=0.0"),
        (
            "return calibrate(planned, epsilon=EPSILON, delta=DELTA, spare=SPARE)",
            "return planned",
        ),
    )
    edited(app / "pyproject.toml", ('folder = "runs/federation"', f'folder = "{tmp_path / "there"}"'))
    (app / "federation" / "server_app.py").write_text(QUIET_SERVER)
    simulated(tmp_path, app, 20)
    (tmp_path / "in_process.py").write_text(IN_PROCESS)
    done = subprocess.run(
        [runtimes.sys.executable, tmp_path / "in_process.py", tmp_path / "here"],
        env=env,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0
    here, there = load_file(tmp_path / "here"), load_file(tmp_path / "there")
    for name, leaf in here.items():
        torch.testing.assert_close(there[name], leaf, rtol=0, atol=1e-6)


COUNTED = """
    with open(context.node_config["seen"], "a") as file:  # so that the test can see who was asked
        file.write("x")
    return _share(context.node_config["partition-id"])
"""


def test_three_nodes_over_tls_one_killed_in_a_round_and_back(tmp_path: Path) -> None:
    app, home, keys, rounds = tmp_path / "app", tmp_path / "home", tmp_path / "keys", 8
    start_app(app)
    runtimes.credentials(keys, 3)
    edited(
        app / "federation" / "task.py",
        ("CLIENTS = 20", "CLIENTS = 3"), ("RATE = 0.5", "RATE = 1.0"), ("ROUNDS = 10", f"ROUNDS = {rounds}"),
        ("DELTA = 8.0, 0.005", "DELTA = 8.0, 0.03"),
    )  # fmt: skip
    edited(
        app / "federation" / "data.py",
        ('\n    return _share(context.node_config["partition-id"])\n', COUNTED),
    )
    edited(app / "federation" / "server_app.py", ("seconds=120, patience=60", "seconds=40, patience=200"))
    port, env, log = runtimes.free_port(), runtimes.around(home), tmp_path / "link.log"
    runtimes.connection(home, "host", port, keys / "ca.crt")
    link = ["flower-superlink", "--host", runtimes.HOST, "--port", port, "--enable-supernode-auth"]
    link += ["--disable-runtime-dependency-installation", "--ssl-ca-certfile", keys / "ca.crt"]
    link += ["--ssl-certfile", keys / "server.pem", "--ssl-keyfile", keys / "server.key"]

    def node(k: int) -> list[object]:
        seen = f'partition-id={k} seen="{tmp_path / f"seen-{k}"}"'
        own = ["--auth-supernode-private-key", keys / f"node-{k}", "--node-config", seen]
        way = ["--superlink", f"{runtimes.HOST}:{port}", "--root-certificates", keys / "ca.crt"]
        return ["flower-supernode", *way, *own, "--host", runtimes.HOST, "--port", runtimes.free_port()]

    def asked(k: int) -> int:
        file = tmp_path / f"seen-{k}"
        return file.stat().st_size if file.exists() else 0

    with ExitStack() as stack:
        stack.enter_context(runtimes.started(link, log, env))
        runtimes.answers(port, log)
        for k in range(3):
            flwr("supernode", "register", keys / f"node-{k}.pub", "host", env=env)
        nodes = [
            stack.enter_context(runtimes.started(node(k), tmp_path / f"node-{k}.log", env)) for k in range(3)
        ]
        stream = tmp_path / "stream.log"
        run = ["flwr", "run", app, "host", "--stream", "-c", f'folder="{tmp_path / "run"}"']
        client = stack.enter_context(runtimes.started(run, stream, env))
        wait(lambda: asked(1) >= 2, stream)  # it is training in the second round: kill it there
        runtimes.end(nodes[1], signal.SIGKILL)
        before = asked(1)
        wait(lambda: done(stream) >= 3, stream)
        stack.enter_context(runtimes.started(node(1), tmp_path / "node-1-again.log", env))
        wait(lambda: client.poll() is not None, stream)
        assert done(stream) == rounds, stream.read_text()[-3000:]
        after = asked(1)
    assert after > before, (tmp_path / "node-1-again.log").read_text()[
        -2000:
    ]  # it came back, and was asked again
    assert (tmp_path / "run" / "statement.json").exists()
    assert (
        sum(read(tmp_path / "run" / "ledger.jsonl").steps().values()) == rounds
    )  # each once, whoever was missing
    assert asked(0) >= rounds


def done(stream: Path) -> int:
    """How many rounds are over."""
    return max(map(int, re.findall(r"round (\d+) of", stream.read_text())), default=0)


def wait(there, stream: Path) -> None:
    until = time.monotonic() + LIMIT
    while not there():
        assert time.monotonic() < until, stream.read_text()[-3000:]
        time.sleep(0.2)
