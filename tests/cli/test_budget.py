"""``saltflat budget`` as a user meets it: right answers, one-line refusals, exit code 2, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from saltflat import cli
from saltflat.errors import SaltflatError

COST = "--rate 0.004266667 --noise 1.1 --steps 14062 --delta 1e-5"
SAI = "--epsilon 2 --delta 1e-5 --rate 0.04 --phase 250:0.9 --phase 500:0.1"


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run the command line in this process, as the entry point does."""

    def call(line: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["saltflat", *line.split()])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return Ran(int(stop.value.code or 0), out, err)

    return call


def test_epsilon_in_words(run) -> None:
    ran = run(f"budget epsilon {COST}")
    assert ran.code == 0
    assert float(ran.out.split()[1]) == pytest.approx(2.382, rel=0.005)
    for fact in ("delta 1e-05", "unit", "add or remove one unit", "Poisson sampling at rate 0.00426667"):
        assert fact in ran.out


def test_epsilon_as_json(run) -> None:
    facts = json.loads(run(f"budget epsilon {COST} --json").out)
    assert facts["epsilon"] == pytest.approx(2.382, rel=0.005)
    assert {"delta", "unit", "adjacency", "sampling"} <= set(facts)


def test_size_batch_and_epochs_say_rate_and_steps(run) -> None:
    by_rate = run("budget epsilon --rate 0.005 --noise 1.1 --steps 2000 --delta 1e-6 --json")
    by_size = run("budget epsilon --size 50000 --batch 250 --epochs 10 --noise 1.1 --delta 1e-6 --json")
    assert by_size.code == 0
    assert json.loads(by_size.out) == json.loads(by_rate.out)
    noise = json.loads(
        run("budget noise --epsilon 2 --delta 1e-6 --size 50000 --batch 250 --epochs 10 --json").out
    )
    assert noise["steps"] == [2000]
    plan = run("budget plan --epsilon 2 --delta 1e-6 --size 50000 --batch 250 --noise 1.1")
    assert plan.code == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--size 100 --noise 1 --steps 5", "--size and --batch"),
        ("--rate 0.1 --size 100 --batch 10 --noise 1 --steps 5", "not both"),
        ("--size 100 --batch 101 --noise 1 --steps 5", "at most --size"),
        ("--size 100 --batch nan --noise 1 --steps 5", "at most --size"),
        ("--size 0 --batch 1 --noise 1 --steps 5", "at most --size"),
        ("--size 100 --batch 10 --epochs 2 --noise 1 --steps 5", "give one of them"),
        ("--size 100 --batch 10 --epochs inf --noise 1", "finite"),
    ],
)
def test_sizes_that_say_nothing_are_refused(run, line: str, says: str) -> None:
    ran = run(f"budget epsilon --delta 1e-3 {line}")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert says in ran.err


def test_epsilon_of_phases(run) -> None:
    phases = "--phase 250:1.537 --phase 500:13.99"
    facts = json.loads(run(f"budget epsilon --rate 0.04 --delta 1e-5 {phases} --json").out)
    assert facts["epsilon"] == pytest.approx(2.0, rel=0.005)
    mixed = "--steps 250 --noise 1.537 --phase 500:13.99"
    again = json.loads(run(f"budget epsilon --rate 0.04 --delta 1e-5 {mixed} --json").out)
    assert again["epsilon"] == facts["epsilon"]


@pytest.mark.parametrize(
    ("split", "expected"), [("joint_ratio", (1.537, 13.99)), ("sequential", (1.695, 15.42))]
)
def test_noise_of_phases(run, split: str, expected: tuple[float, float]) -> None:
    facts = json.loads(run(f"budget noise {SAI} --split {split} --json").out)
    assert facts["noise"] == pytest.approx(expected, rel=0.01)
    assert facts["epsilon"] <= 2


def test_noise_of_one_phase(run) -> None:
    base = "budget noise --epsilon 2 --delta 1e-5 --rate 0.04"
    by_steps = json.loads(run(f"{base} --steps 750 --json").out)
    by_phase = json.loads(run(f"{base} --phase 750:1 --json").out)
    assert by_steps["noise"] == by_phase["noise"] == pytest.approx([2.349], rel=0.005)
    words = run(f"{base} --steps 750").out
    assert "delta 1e-05" in words
    assert "adjacency" in words


def test_plan(run) -> None:
    line = "budget plan --epsilon 2 --delta 1e-5 --rate 0.04 --noise 2.35"
    facts = json.loads(run(f"{line} --json").out)
    assert facts["steps"] == pytest.approx(750, rel=0.01)
    steps = [row["steps"] for row in facts["table"]]
    assert steps == sorted(steps)
    assert "epochs" in run(line).out


@pytest.mark.parametrize(
    "line",
    [
        "budget epsilon --rate nan --noise 1 --steps 4 --delta 1e-5",
        "budget epsilon --rate 2 --noise 1 --steps 4 --delta 1e-5",
        "budget epsilon --rate 0.1 --noise -1 --steps 4 --delta 1e-5",
        "budget epsilon --rate 0.1 --noise 0 --steps 4 --delta 1e-5",
        "budget epsilon --rate 0.1 --noise inf --steps 4 --delta 1e-5",
        "budget epsilon --rate 0.1 --noise 1 --steps -4 --delta 1e-5",
        "budget epsilon --rate 0.1 --noise 1 --steps 99999999999 --delta 1e-5",
        "budget epsilon --rate 0.1 --noise 1 --steps 4 --delta 0",
        "budget epsilon --rate 0.1 --noise 1 --steps 4 --delta nan",
        "budget epsilon --rate 0.1 --noise 1 --delta 1e-5",
        "budget epsilon --rate 0.1 --steps 4 --delta 1e-5",
        "budget epsilon --rate 0.1 --delta 1e-5",
        "budget epsilon --rate 0.1 --delta 1e-5 --phase 250",
        "budget epsilon --rate 0.1 --delta 1e-5 --phase a:b",
        "budget noise --epsilon 2 --delta 1e-5 --rate 0.04",
        "budget noise --epsilon nan --delta 1e-5 --rate 0.04 --steps 9",
        "budget noise --epsilon 1e-9 --delta 1e-5 --rate 0.04 --steps 9",
        "budget noise --epsilon 2 --delta 1e-5 --rate 0.04 --phase 250:0.9 --phase 500:0.9",
        "budget plan --epsilon 0.1 --delta 1e-5 --rate 0.5 --noise 0.5",
    ],
)
def test_refusals_are_one_line_and_exit_2(run, line: str) -> None:
    ran = run(line)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("saltflat: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        "budget epsilon --rat 3",
        "budget epsilon --rate x --delta 1e-5",
        "budget noise --epsilon 2 --delta 1e-5 --rate 0.04 --steps 9 --split half",
        "budget nothing",
        "nothing",
        "budget epsilon",
        "budget noise --epsilon 2",
        "budget plan --noise",
        "budget plan --epsilon 2 --delta 1e-5 --rate 0.04 --noise 2.35 more",
        "budget show",
        "budget show a.ledger --delta x",
        "budget check",
        "budget check a b",
        "demo --epsilon",
        "demo --epsilon three",
        "demo --leger x",
        "--wrong",
    ],
)
def test_wrong_flags_are_one_line_and_exit_2(run, line: str) -> None:
    ran = run(line)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("saltflat: ")
    assert ran.err.endswith(" --help\n")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("line", ["budget noise --epsilon 1e-9 --delta 1e-5 --rate 0.04 --steps 9"])
def test_an_impossible_target_says_what_to_do(run, line: str) -> None:
    ran = run(line)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "epsilon" in ran.err


def test_help_stays_pretty(run) -> None:
    for line in ("--help", "-h", "budget --help", "budget epsilon --help", "demo --help"):
        ran = run(line)
        assert (ran.code, ran.err) == (0, "")
        assert "╭" in ran.out
    assert "╭" in run("budget").out  # no command: the help


@pytest.mark.parametrize("more", ["", " --json"])
def test_a_full_disk_behind_the_output_is_one_line(more: str) -> None:
    line = f"budget epsilon --rate 1 --noise 2 --steps 1 --delta 1e-5{more}"
    code = f"import sys; sys.argv = {['saltflat', *line.split()]}\nfrom saltflat.cli import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("saltflat: cannot go on (No space left on device)")
    assert done.stderr.count("\n") == 1


def test_any_saltflat_error_is_one_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise SaltflatError("first\nsecond")

    monkeypatch.setattr(cli, "app", fail)
    ran = run("anything")
    assert (ran.code, ran.err) == (2, "saltflat: first second\n")


@pytest.mark.parametrize("command", ["epsilon", "noise", "plan"])
def test_help_has_examples(run, command: str) -> None:
    ran = run(f"budget {command} --help")
    assert ran.code == 0
    assert f"saltflat budget {command}" in " ".join(ran.out.split())
    assert "Example" in ran.out


def test_the_entry_point_starts_without_torch() -> None:
    code = (
        "import sys; sys.argv = 'saltflat budget epsilon --rate 1 --noise 2 --steps 1 --delta 1e-5'.split()\n"
        "from saltflat.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "1.994" in done.stdout
