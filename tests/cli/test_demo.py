"""`saltflat demo`, shortened: it trains, it reports, and it refuses nonsense in one line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from saltflat.cli import app, demo, main


def test_it_trains_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEPS", 3)
    result = CliRunner().invoke(app, ["demo", "--epsilon", "3"])
    assert result.exit_code == 0, result.output
    for fact in ("DP-SAT", "DP-SGD", "delta 1e-05", "unit: one example", "add or remove", "Poisson"):
        assert fact in result.output


def test_the_network_is_as_small_as_it_says() -> None:
    assert sum(p.numel() for p in demo.network().parameters()) == 9258


def test_nonsense_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["saltflat", "demo", "--epsilon", "nan"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
