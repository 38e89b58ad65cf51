from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # so that every test finds reference.py and steps.py
torch.set_num_threads(1)
settings.register_profile(
    "house", deadline=None, derandomize=True, max_examples=25, suppress_health_check=list(HealthCheck)
)
settings.load_profile("house")

# A shell starts what runs in its background with Ctrl-C ignored, and children inherit that; here it is under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some virtual machines announce AMX and kill whoever uses it: bfloat16 is tested without. Read at its first use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_configure() -> None:
    """Workers' warnings are made again where xdist was started, by importing the libraries that they come from."""
    import vision

    vision.make_importable()


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key of caches is made in a folder of the tests, and not in the one of the user who starts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts the tests may have told a width: what commands print is looked at unwrapped, wherever."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
