"""The layer rule of docs/architecture.md, read from the imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "saltflat"
STEP = [
    "core.tree",
    "core.sampling",
    "core.mechanism",
    "core.frame",
    "core.ask",
    "core.schedule",
    "core.optim",
    "core.plan",
    "core.state",
    "core.resume",
    "core.train",
]
ONLY = {
    "clipping": {"core.tree", "errors", "clipping"},
    "methods": {"core.tree", "core.frame", "errors", "methods"},
    "landscape": {"core.tree", "errors", "landscape"},
    "synthesis": {"core.tree", "errors", "synthesis"},
    "privacy": {"core.tree", "errors", "privacy"},
    "data": {"core.sampling", "errors", "data"},
    "plans": {"core.optim", "core.plan", "errors", "methods", "plans", "privacy.splits"},  # no door, no data
    "report": {
        "errors",
        "privacy",
        "recipes.recipe",
        "report",
        "runs.identity",
    },  # it reads files: no step, no torch
    "front": {"core", "methods", "errors", "privacy", "front"},  # no readers, no clipping of its own
}


def imports(path: Path) -> set[str]:
    """The saltflat modules that a file imports, as "core.tree"."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("saltflat."):
            module = node.module.removeprefix("saltflat.")
            inner = [f"{module}.{alias.name}" for alias in node.names]
            found |= {name for name in inner if (SOURCE / (name.replace(".", "/") + ".py")).exists()} or {
                module
            }
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("saltflat.") for a in node.names if a.name.startswith("saltflat.")}
    return found


def files(room: str = "") -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


@pytest.mark.parametrize("room", [room for room in ONLY if (SOURCE / room).exists()])
def test_rooms_import_only_what_they_may(room: str) -> None:
    for path in files(room):
        for module in imports(path):
            assert any(module == ok or module.startswith(ok + ".") for ok in ONLY[room]), (
                f"{path.name}: {module}"
            )


def test_the_landscape_needs_nothing_but_arrays() -> None:
    """Neither files nor recipes nor pictures: a measure is a function of a loss and a point."""
    known = {"torch", "numpy", "scipy", "saltflat", *sys.stdlib_module_names}
    for path in files("landscape"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= known - {"os", "pathlib", "json"}, path.name


def test_the_step_is_built_in_the_order_that_data_passes_through_it() -> None:
    for place, module in enumerate(STEP):
        later = set(STEP[place + 1 :])
        assert not imports(SOURCE / (module.replace(".", "/") + ".py")) & later, module


def test_nothing_imports_the_command_line() -> None:
    for path in files():
        if "cli" not in path.relative_to(SOURCE).parts and path.name != "__main__.py":
            assert not any(module == "cli" or module.startswith("cli.") for module in imports(path)), path


def test_only_the_command_line_stands_before_the_front() -> None:
    for path in files():
        parts = path.relative_to(SOURCE).parts
        if parts[0] not in ("front", "cli", "__init__.py"):
            assert not any(module == "front" or module.startswith("front.") for module in imports(path)), path


def test_the_command_line_and_the_report_start_without_torch() -> None:
    import subprocess

    for module in ("saltflat.cli", "saltflat.report.page, saltflat.report.card, saltflat.report.output"):
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, module


def test_every_public_name_exists() -> None:
    import saltflat

    assert all(getattr(saltflat, name) is not None for name in saltflat.__all__)
    assert set(saltflat._HOME_OF) == set(saltflat.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sgd'"):
        _ = saltflat.sgd
