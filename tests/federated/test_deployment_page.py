"""The commands of docs/federated_deployment.md as they stand there: three hospitals over TLS, a server that is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from saltflat.privacy import read
from saltflat.runs.begin import Busy, held
from saltflat.runs.layout import Folder

pytest.importorskip(
    "flwr", reason="Flower is an extra: pip install 'saltflat[federated]'", exc_type=ImportError
)

import runtimes

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "federated_deployment.md"
LIMIT, HOSPITALS, ROUNDS = 400, 3, 4


def blocks(heading: str) -> list[str]:
    """The indented blocks under a heading of the page, in order; fenced ones are no commands."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    section = re.sub(r"^```.*?^```$", "", section, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"(?:^    .*\n)(?:^(?:    .*)?\n)*", section, flags=re.MULTILINE)
    return ["\n".join(line[4:] for line in block.splitlines()) for block in found]


class Hosts:
    """All hosts of the page on this machine: each has a folder in the place of its own /srv."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.port = tmp_path, runtimes.free_port()
        home = tmp_path / "home"
        home.mkdir()
        self.env = {**runtimes.around(home), "HOME": str(home)}
        del self.env["FLWR_HOME"]  # the page writes ~/.flwr

    def here(self, text: str, k: int = 0) -> str:
        """A block with this machine's folders and ports in the place of the page's; hospital ``k`` has its own."""
        changes = {
            "/srv/federation": str(self.root / "federation"),
            "/srv/hospital": str(self.root / f"hospital-{k}"),
            "node-0": f"node-{k}",
            "partition-id=0": f"partition-id={k}",
            "0.0.0.0": runtimes.HOST,
            ":8000": f":{self.port}",
            "--port 8000": f"--port {self.port}",
        }
        for before, after in changes.items():
            text = text.replace(before, after)
        return text

    def run(self, text: str, k: int = 0) -> None:
        with ExitStack() as stack:
            log = self.root / "commands.log"
            process = stack.enter_context(
                runtimes.started(["bash", "-ec", self.here(text, k)], log, self.env)
            )
            assert process.wait(LIMIT) == 0, log.read_text()[-3000:]

    def background(self, text: str, name: str, k: int = 0) -> Any:
        command = ["bash", "-c", self.here(text, k)]
        return runtimes.started(command, self.root / f"{name}.log", self.env)

    def said(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()


def until(what: Any, said: Any) -> float:
    """Wait for something; the seconds that it took."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < LIMIT, said()
        time.sleep(0.2)
    return time.monotonic() - begun


def is_free(run: Path) -> bool:
    try:
        with held(Folder(run)):
            return True
    except Busy:
        return False


def test_the_page_from_keys_to_a_model_with_the_server_killed_in_a_round(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    server, run = tmp_path / "federation", tmp_path / "federation" / "first"
    (certificate,) = blocks("The server's certificate")
    (key,) = blocks("A key for each client")
    (app,) = blocks("The app")
    link, connection, register = blocks("The server")
    (node,) = blocks("The clients")
    (start,) = blocks("Run")

    hosts.run(certificate)
    for k in range(HOSPITALS):
        hosts.run(key, k)
        shutil.copy(server / "keys" / "ca.crt", tmp_path / f"hospital-{k}" / "ca.crt")
        shutil.copy(tmp_path / f"hospital-{k}" / f"node-{k}.pub", server / "keys")
    hosts.run(app)
    declare(server / "app" / "federation")
    config = tmp_path / "home" / ".flwr" / "config.toml"
    config.parent.mkdir()
    config.write_text(hosts.here(connection) + "\n")

    def said() -> str:
        return "\n".join(hosts.said(name)[-3000:] for name in ("link", "run"))

    link = link.replace(
        "\nflower-superlink", "\nexec flower-superlink"
    )  # so that the kill hits it, and not the shell
    with ExitStack() as stack:
        first = stack.enter_context(hosts.background(link, "link"))
        runtimes.answers(hosts.port, tmp_path / "link.log")
        for k in range(HOSPITALS):
            hosts.run(register, k)
            own_port = node.replace("--node-config", f"--port {runtimes.free_port()} --node-config")
            stack.enter_context(hosts.background(own_port, f"node-{k}", k))
        loop = stack.enter_context(hosts.background(start, "run"))
        until(lambda: charged(run) >= 2, said)  # the second round is at hand
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        taken = charged(run)
        assert until(lambda: is_free(run), said) < 30  # the orphaned server app has left
        assert not (run / "model.safetensors").exists()
        stack.enter_context(hosts.background(link, "link"))
        until(lambda: loop.poll() is not None, said)  # nodes and run came back by themselves
    assert loop.returncode == 0
    statement = json.loads((run / "statement.json").read_text())
    assert statement["epsilon"] <= 8.0
    assert statement["unit"] == "client"
    assert not any("planned rounds" in each for each in statement["warnings"])
    assert 2 <= taken < charged(run)
    assert ROUNDS < charged(run) <= ROUNDS + 3  # the round at hand was paid for twice, out of the spare ones
    assert load_file(run / "model.safetensors").keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}


def declare(federation: Path) -> None:
    """What the page asks to be declared: three clients; and rounds that wait less, for a test."""
    for name, before, after in (
        ("task.py", "CLIENTS = 20", f"CLIENTS = {HOSPITALS}"),
        ("task.py", "RATE = 0.5", "RATE = 1.0"),
        ("task.py", "ROUNDS = 10", f"ROUNDS = {ROUNDS}"),
        ("task.py", "DELTA = 8.0, 0.005", "DELTA = 8.0, 0.03"),
        ("server_app.py", "seconds=120, patience=60", "seconds=60, patience=200"),
    ):
        file = federation / name
        text = file.read_text()
        assert text.count(before) == 1, before
        file.write_text(text.replace(before, after))


def charged(run: Path) -> int:
    ledger = Folder(run).ledger
    return sum(read(ledger).steps().values()) if ledger.exists() else 0
