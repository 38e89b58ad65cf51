"""Freed memory stays with the process: the next step does not pay for it again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, sys, torch
from saltflat.core.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(6):
    before = faults()
    torch.zeros(12_000_000).add_(1)
print(faults() - before)
"""


def faults_of_a_late_step(what: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, what],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")},
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_a_late_step_takes_no_new_pages() -> None:
    assert faults_of_a_late_step("keep") < 100 < faults_of_a_late_step("leave")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_the_users_own_setting_is_respected() -> None:
    code = "from saltflat.core.memory import keep_freed_memory; print(keep_freed_memory())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"MALLOC_ARENA_MAX": "2"},
    )
    assert done.stdout.strip() == "False"
