from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from folders import write_interpolation, write_landscape, write_run

from saltflat.report.folder import gather
from saltflat.report.page import page

EVIL = "<script>alert(1)</script>\"'&$x$_"
LONG = "a-run-whose-name-is-so-long-that-no-phone-has-room-for-it-in-one-line-" + 40 * "x"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Three runs that have everything, one killed, one empty."""
    root = tmp_path_factory.mktemp("runs")
    made = [
        write_landscape(write_run(root / "DP-SAT"), sharp=0.5),
        write_landscape(write_run(root / "_DP-SGD", method="dp-sgd", peak=0.85)),
        write_landscape(write_run(root / EVIL.replace("/", "\N{FRACTION SLASH}"), method="far"), sharp=2.0),
        write_run(root / LONG, steps=20, ended=False),
        root / "empty",
    ]
    made[-1].mkdir()
    write_interpolation(made[0], ["DP-SAT to _DP-SGD", f"DP-SAT to {EVIL}"])
    return made


@pytest.fixture(scope="session")
def whole(folders: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on all of them."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(page(gather(folders)), encoding="utf-8")
    return file
