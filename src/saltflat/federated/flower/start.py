"""A Flower app to start from, written into a folder."""

from __future__ import annotations

from pathlib import Path

from saltflat.errors import SettingError

TEMPLATE = Path(__file__).with_name("template")
SUFFIX = ".txt"  # in the package the files are text: nothing here imports them


def start_app(folder: Path) -> list[Path]:
    """Write the app into ``folder``, which must be new or empty; the files that were written."""
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; give a folder that is new or empty")
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"{folder} is not empty, and nothing in it is replaced; give a folder that is new")
    return [
        _written(source, folder / source.relative_to(TEMPLATE))
        for source in sorted(TEMPLATE.rglob(f"*{SUFFIX}"))
    ]


def _written(source: Path, target: Path) -> Path:
    target = target.with_name(target.name.removesuffix(SUFFIX))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
    return target
