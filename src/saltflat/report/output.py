"""Where reports go: whole files or none, and nothing of anyone else's is written over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from saltflat.errors import SettingError
from saltflat.privacy.record import durable
from saltflat.report import spread, terrain, training
from saltflat.report.draw import Picture, write
from saltflat.report.folder import Kept


def check_place(path: Path, mark: str, flag: str) -> None:
    """Refuse a place that is a folder, or a file that saltflat did not make."""
    if path.is_dir():
        raise SettingError(f"{flag} {path} is a folder; give a file")
    if path.exists() and mark not in path.read_text(encoding="utf-8", errors="replace"):
        raise SettingError(f"{path} is there already and was not made by saltflat; give another {flag}")


def keep(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace(path, text.encode("utf-8", "replace"), mode=durable.RELEASED)


def pictures(runs: Sequence[Kept]) -> list[Picture]:
    """Every picture that these runs have the files for."""
    found = [
        training.accuracy_against_epsilon(runs),
        training.accuracy_on_the_way(runs),
        training.epsilon_on_the_way(runs),
        *training.clients_on_the_way(runs),
        *terrain.along_a_line(runs),
        *terrain.contours(runs),
        *terrain.stills(runs),
        *terrain.smoothed(runs),
        *terrain.trajectories(runs),
        *terrain.stills(runs, "trajectory"),
        *terrain.between_models(runs),
        spread.spectra(runs),
        spread.noise_tolerance(runs),
        spread.gradient_norms(runs),
        spread.tradeoffs(runs),
    ]
    return [picture for picture in found if picture is not None]


def keep_pictures(runs: Sequence[Kept], folder: Path) -> list[Path]:
    """All pictures as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    return [file for picture in pictures(runs) for file in write(picture, folder)]
