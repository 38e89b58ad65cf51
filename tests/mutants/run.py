"""Seed one bug at a time into a copy of the sources, and see whether its test notices.

    python tests/mutants/run.py [NAME ...] [--jobs N] [--log FILE]     each mutant, by the test that it names
    python tests/mutants/run.py --clean 20                             all those tests without any bug: false alarms
    python tests/mutants/run.py --page                                 write the list into docs/reliability.md
    python tests/mutants/run.py --generated                            which holes the generated attacks find unaided

With ``--log`` every result is kept in a file, and a run that was broken off goes on from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from seeded import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
ATTACKS = "tests/adversary/test_generated.py::test_no_unit"
GENERATED = [f"{ATTACKS}{words}_moves_a_sum_by_more_than_its_bound" for words in ("_with_a_twist", "")]
BROKEN = (
    "ImportError",
    "ModuleNotFoundError",
    "NameError",
    "SyntaxError",
    "IndentationError",
    "UnboundLocalError",
)


@dataclass(frozen=True)
class Result:
    """What became of a mutant, or of a clean run: ``word`` is killed, survived, broken, or good."""

    name: str
    word: str
    why: str
    seconds: float


def seeded_text(mutant: Mutant, source: Path = SOURCE) -> dict[str, str]:
    """{file: its text with the bug}; ValueError if what is to be changed is not there exactly once."""
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.file) or (source / "saltflat" / edit.file).read_text()
        if text.count(edit.before) != 1:
            raise ValueError(
                f"{mutant.name}: {edit.before!r} is {text.count(edit.before)} times in {edit.file}"
            )
        texts[edit.file] = text.replace(edit.before, edit.after)
    return texts


@contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    """A copy of the sources, with the bug."""
    with tempfile.TemporaryDirectory(prefix="saltflat-mutant-") as folder:
        source = Path(folder, "src")
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("*.egg-info"))  # compiled files, too
        for file, text in seeded_text(mutant).items() if mutant else ():
            (source / "saltflat" / file).write_text(text)
        yield source


# What tests import beside saltflat: a server has it, and every test's process is a fork of that server.
PRELOADED = [
    "torch",
    "torch.func",
    "numpy",
    "scipy.stats",
    "sklearn",
    "dp_accounting",
    "hypothesis",
    "pytest",
    "xdist",
]
FORKS = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Ended:
    """How a test's process ended, and what it wrote."""

    returncode: int
    stdout: str


def ended(tests: Sequence[str], source: Path) -> Ended:
    """These tests, against these sources."""
    told = source.parent / "told"
    process = FORKS.Process(target=_in_fork, args=(list(tests), str(source), str(told)))
    process.start()
    process.join()
    code = process.exitcode
    assert code is not None
    return Ended(code, told.read_text(errors="replace") if told.exists() else "")


def _in_fork(tests: list[str], source: str, told: str) -> None:
    """Run the tests in this process, which has imported nothing of saltflat yet, and leave with pytest's exit code."""
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = source  # for processes that tests start
    sys.path.insert(0, source)
    if tests == GENERATED:
        os.environ["FIRST_FOUND"] = "1"  # a small example is not asked for
    file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    import pytest

    sys.exit(int(pytest.main(["-q", "--tb=line", *(["-x"] if tests == GENERATED else []), *tests])))


def judged(name: str, tests: Sequence[str], mutant: Mutant | None) -> Result:
    """Killed means: the test ran and failed, by more than a name that is missing."""
    begun = time.perf_counter()
    with copied(mutant) as source:
        done = ended(tests, source)
    why = (re.findall(r"^(?:E  |/|[\w.]+Error).*", done.stdout, re.MULTILINE) or [done.stdout[-300:]])[0]
    why = why.partition(": ")[2] if why.startswith("/") else why
    if done.returncode == 0:
        word = "survived" if mutant else "good"
    elif done.returncode == 1 and re.search(r"\d+ failed", done.stdout) and not why.startswith(BROKEN):
        word = "killed" if mutant else "false alarm"
    else:
        word, why = "broken", f"exit code {done.returncode}: {why}"
    return Result(name, word, " ".join(why.split())[:200], round(time.perf_counter() - begun, 1))


def finished(log: Path | None) -> dict[str, Result]:
    if log is None or not log.exists():
        return {}
    kept = [Result(**json.loads(line)) for line in log.read_text().splitlines() if line.strip()]
    return {result.name: result for result in kept}


def all_of(
    tasks: Sequence[tuple[str, Sequence[str], Mutant | None]], *, jobs: int, log: Path | None
) -> list[Result]:
    """The results of the tasks, some at a time, told as they come."""
    done = finished(log)
    left = [task for task in tasks if task[0] not in done]
    results = [done[name] for name, _, _ in tasks if name in done]
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(judged, *task) for task in left]):
            result = future.result()
            results.append(result)
            print(
                f"{len(results):3} of {len(tasks)}  {result.word:11} {result.name}  ({result.seconds} s)",
                flush=True,
            )
            if log is not None:
                with log.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
    return results


def told(results: Iterable[Result], good: Sequence[str]) -> int:
    """The table; the exit code is 1 if something is not as it should be."""
    results = list(results)
    for result in sorted(results, key=lambda result: (result.word, result.name)):
        print(f"{result.word:11} {result.name:32} {result.why}")
    counts = {word: sum(r.word == word for r in results) for word in sorted({r.word for r in results})}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 0 if counts.keys() <= set(good) else 1


PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->"


def table() -> str:
    """The list as it stands on the page: by hole, then the others."""
    lines = ["| mutant | hole | what it does | test that kills it |", "|---|---|---|---|"]
    for mutant in MUTANTS:
        test = mutant.killed_by.removeprefix("tests/").partition("[")[0].replace("::", " ")
        lines.append(f"| {mutant.name} | {mutant.hole or ''} | {mutant.story} | `{test}` |")
    return "\n".join(lines) + "\n"


def in_page() -> str:
    """The table on the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def write_page() -> None:
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + begin + table() + END + rest.partition(END)[2])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants; all without one")
    parser.add_argument("--clean", type=int, metavar="N", help="run the named tests N times without a bug")
    parser.add_argument(
        "--generated", action="store_true", help="let the generated attacks look for the holes"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--log", type=Path, help="keep results here, and go on from them")
    parser.add_argument("--page", action="store_true", help="write the list into docs/reliability.md")
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # before the server imports torch
    FORKS.set_forkserver_preload(PRELOADED)
    if given.page:
        write_page()
        return 0
    if unknown := set(given.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    some = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    if given.clean:
        tests = sorted({mutant.killed_by for mutant in some})
        tasks = [(f"clean {number}", tests, None) for number in range(given.clean)]
        return told(all_of(tasks, jobs=given.jobs, log=given.log), ["good"])
    if given.generated:
        holes = [(mutant.name, GENERATED, mutant) for mutant in some if given.names or mutant.hole]
        return told(all_of(holes, jobs=given.jobs, log=given.log), ["killed", "survived"])
    tasks = [(mutant.name, [mutant.killed_by], mutant) for mutant in some]
    return told(all_of(tasks, jobs=given.jobs, log=given.log), ["killed"])


if __name__ == "__main__":
    sys.exit(main())
