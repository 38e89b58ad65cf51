"""``kill -9`` of random processes of a run under `torchrun`, which starts all again, against a count of its own.

The truth is a file to which the command adds one byte right before noise is drawn, in whichever process that is; what
is in it outlives every process. Each run is killed some times, asked to end, begun again by another number of
processes, killed again, and left to its end. As a script it adds one JSON line per run to a log:

    python tests/cli/elastic.py LOG --runs 0:5 --kills 10
    torchrun ... tests/cli/elastic.py --worker train ...        what it starts
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saltflat.privacy.record.history import read

TARGET, STEPS, SPARE, DELTA = 3.0, 120, 60, 1e-5
RECIPE = f"""version = 2
data = "digits"
model = {{mlp = {{features = 64, outputs = 10}}}}
epsilon = {TARGET}
delta = {DELTA}
rate = 0.05
spare = {SPARE}
[[phase]]
method = "DPSGD"
steps = {STEPS}
clip_norm = 0.5
optimizer = {{SGD = {{lr = 0.5}}}}
"""
PATIENCE = 120  # seconds for any start


def worker(words: Sequence[str]) -> None:
    """The command line, with a witness beside the noise; TROUBLE names a process that cannot read its examples.

    In the first DIES_JOINING starts one process is killed while they join, before it has met the others or after it.
    """
    from torch import distributed

    from saltflat import cli
    from saltflat.errors import DataError
    from saltflat.privacy.noise import SecureNoise
    from saltflat.runs import execute

    draw, units_of, join = SecureNoise.normal, execute.units_of, distributed.init_process_group

    def witnessed(self: Any, like: Any) -> Any:
        if os.environ.get("TRUTH"):
            file = os.open(os.environ["TRUTH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, b".")
            os.close(file)
        return draw(self, like)

    def trouble(*given: Any, **more: Any) -> Any:
        if os.environ.get("TROUBLE") == os.environ.get("RANK"):
            raise DataError("the disk of this machine is empty")
        return units_of(*given, **more)

    def joining(*given: Any, **more: Any) -> None:
        start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
        dies = start < int(os.environ.get("DIES_JOINING", "0")) and rank == start % int(
            os.environ["WORLD_SIZE"]
        )
        if dies and start % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and "DIES_JOINING" in os.environ:
            time.sleep(1)  # the others look first, and find what an earlier start has left
        join(*given, **more)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    SecureNoise.normal, execute.units_of = witnessed, trouble  # type: ignore[method-assign]
    distributed.init_process_group = joining
    sys.argv = ["saltflat", *words]
    cli.main()


def started(
    words: Sequence[str], *, ranks: int = 2, restarts: int = 0, errors: Any = None, **env: str
) -> subprocess.Popen[str]:
    """`torchrun`, on a port of its own, with this file as the command."""
    how = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", "torch.distributed.run", *how, __file__, "--worker", *words]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=errors or subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", **env},
    )


def workers(job: subprocess.Popen[str]) -> list[int]:
    """The processes that `torchrun` has started, in the order of their numbers."""
    try:
        return [int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
    except OSError:
        return []


def count(truth: Path) -> int:
    return truth.stat().st_size if truth.exists() else 0


def on_record(out: Path) -> int:
    ledger = out / "ledger.jsonl"
    return sum(read(ledger).steps().values()) if ledger.exists() else 0


def kill_one(
    job: subprocess.Popen[str], truth: Path, rng: random.Random, *, ranks: int, last: int
) -> tuple[int, int]:
    """Kill a random process of the next start, in it or some steps later: its id and number; -1 if the job ended."""
    limit = time.monotonic() + PATIENCE
    while len(found := workers(job)) < ranks or last in found:
        if job.poll() is not None or time.monotonic() > limit:
            return -1, -1
        time.sleep(0.01)
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0, 3))  # while it starts
    else:
        begun, more = count(truth), rng.randrange(1, 8)
        while count(truth) < begun + more and time.monotonic() < limit and workers(job) == found:
            time.sleep(5e-4)
        time.sleep(rng.uniform(0, 0.02))
    number = rng.randrange(ranks)
    try:
        os.kill(found[number], signal.SIGKILL)
    except ProcessLookupError:
        return -1, -1
    return found[number], number


def one(number: int, kills: int) -> dict[str, Any]:
    """One run: killed, stopped, gone on with by other processes, killed again, to its end."""
    rng = random.Random(number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out, truth, recipe = folder / "run", folder / "truth", folder / "recipe.toml"
        recipe.write_text(RECIPE)
        words = ["train", str(recipe), "--out", str(out), "--threads", "1", "--restartable"]
        done: dict[str, Any] = {
            "run": number,
            "kills": 0,
            "first_killed": 0,
            "short": 0,
            "begun": [],
            "ends": [],
        }
        said = (folder / "said").open("w+")
        more = kills // 3
        for ranks, times, last in ((2, kills - more, False), (rng.choice((1, 3)), more, True)):
            job, previous = started(words, ranks=ranks, restarts=kills, errors=said, TRUTH=str(truth)), 0
            try:
                for _ in range(times):
                    previous, which = kill_one(job, truth, rng, ranks=ranks, last=previous)
                    if previous < 0:
                        break
                    there = count(truth)  # read before the record, which only grows
                    done["short"] += on_record(out) < there
                    done["kills"] += 1
                    done["first_killed"] += which == 0
                    done["begun"].append(there)
                if not last:
                    _when_it_steps(job, truth, ranks, previous)
                    job.send_signal(signal.SIGTERM)
                job.communicate(timeout=PATIENCE)
            finally:
                if job.poll() is None:
                    for each in (*workers(job), job.pid):
                        os.kill(each, signal.SIGKILL)
                    job.communicate()
            done["ends"].append(job.returncode)
        spent = read(out / "ledger.jsonl")
        done |= {"truth": count(truth), "record": on_record(out), "epsilon": spent.epsilon(DELTA)}
        done["complete"] = (out / "model.safetensors").exists()
        if not done["complete"]:
            said.seek(0)
            done["said"] = said.read()[-2000:]
        said.close()
        return done


def _when_it_steps(job: subprocess.Popen[str], truth: Path, ranks: int, previous: int) -> None:
    """Wait until the start after the last kill takes steps."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit and (len(found := workers(job)) < ranks or previous in found):
        time.sleep(0.01)
    begun = count(truth)
    while time.monotonic() < limit and count(truth) < begun + 3 and job.poll() is None:
        time.sleep(0.002)


def sound(run: dict[str, Any]) -> bool:
    """Whether the record was never below the truth, the target was kept, and the run came to its end."""
    return (
        not run["short"]
        and STEPS <= run["truth"] <= run["record"]
        and run["epsilon"] <= TARGET
        and run["complete"]
        and run["ends"][-1] == 0
    )


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("--runs", default="0:5", help="FIRST:LAST, the last one not included")
    parser.add_argument("--kills", type=int, default=10, help="of each run")
    given = parser.parse_args()
    for number in range(*map(int, given.runs.split(":"))):
        began = time.monotonic()
        found = one(number, given.kills)
        line = json.dumps({**found, "sound": sound(found), "seconds": round(time.monotonic() - began, 1)})
        with given.log.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
