"""The layer rule of docs/architecture.md, read from the imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "saltflat"
STEP = [
    "tree",
    "clipping",
    "frames",
    "door",
    "schedules",
    "optimizers",
    "core.sampling",
    "core.mechanism",
    "core.layers",
    "core.spot",
    "core.check",
    "core.contribution",
    "core.ask",
    "core.plan",
    "core.step",
    "core.state",
    "core.resume",
    "core.train",
]
ONLY = {
    "gradients": {"tree", "errors", "gradients"},
    "methods": {"tree", "frames", "door", "errors", "methods", "settings"},
    "landscape": {"tree", "errors", "landscape"},
    "synthesis": {"tree", "errors", "methods.draws", "settings", "synthesis"},
    "features": {"data.examples", "errors", "features", "privacy.record.cache", "settings", "synthesis"},
    "warmup": {
        "data",
        "errors",
        "methods.draws",
        "settings",
        "synthesis",
        "tree",
        "warmup",
    },  # nothing private
    "privacy": {"tree", "errors", "privacy"},
    "privacy/accounting": {"errors", "privacy.limits", "privacy.accounting"},  # not who took the steps
    "data": {"core.pages", "core.sampling", "errors", "data", "privacy.record.cache", "settings"},
    "plans": {
        "core.plan",
        "door",
        "errors",
        "methods",
        "optimizers",
        "plans",
        "privacy.accounting.calibration",
        "privacy.accounting.splits",
        "settings",
    },
    "report": {
        "audit.kept",
        "audit.result",
        "errors",
        "pate.kept",
        "privacy",
        "recipes.documents",
        "recipes.toml",
        "report",
        "runs.evaluation",
        "runs.identity",
        "runs.layout",
        "runs.measures",
        "runs.repeats",
        "runs.sweep",
        "runs.synthetic",
    },  # no torch
    "advice": {
        "advice",
        "core",
        "data",
        "door",
        "errors",
        "gradients",
        "methods",
        "models",
        "optimizers",
        "privacy.limits",
        "recipes",
    },
    "pate": {
        "core.mechanism",
        "core.rng",
        "core.stop",
        "data",
        "errors",
        "methods.draws",
        "pate",
        "privacy",
        "recipes",
        "runs",
        "settings",
        "tree",
    },  # neither the door nor a gradient: what is private here is a vote
    "runs/layout.py": {"errors", "privacy.record"},
    "runs/measures.py": {"runs.layout"},
    "runs/evaluation.py": set(),
    "runs/repeats.py": {"errors", "privacy.record", "runs.layout"},
    "runs/sweep.py": {
        "errors",
        "privacy.limits",
        "privacy.record",
        "recipes.toml",
        "runs.identity",
        "runs.layout",
    },  # read by the report: no torch
    "runs/synthetic.py": {"privacy.record", "runs.layout"},
    "runs/identity.py": {"errors", "privacy.record", "runs.layout"},
    "federated": {
        "clipping",
        "core",
        "errors",
        "federated",
        "gradients",
        "landscape.access",
        "privacy",
        "settings",
        "tree",
    },
    "federated/flower": {
        "clipping",
        "core.check",
        "core.layers",
        "core.sampling",
        "core.spot",
        "core.train",
        "errors",
        "federated",
        "settings",
        "tree",
    },  # neither record nor noise: it carries, and nothing is charged or released there
    "audit": {"audit", "clipping", "data", "errors", "landscape", "optimizers", "privacy", "tree"},
    "front": {
        "core",
        "clipping",
        "door",
        "errors",
        "front",
        "landscape.access",
        "methods",
        "optimizers",
        "privacy",
        "settings",
        "tree",
    },
}


def imports(path: Path) -> set[str]:
    """The saltflat modules that a file imports, as "core.tree"; of a package, the module in it that is named."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "saltflat":
            module = (node.module or "").removeprefix("saltflat").removeprefix(".")
            inner = {".".join(filter(None, (module, alias.name))) for alias in node.names}
            there = {name for name in inner if is_module(name)}
            found |= there | ({module} if module and there != inner else set())
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("saltflat.") for a in node.names if a.name.startswith("saltflat.")}
    return found


def is_module(name: str) -> bool:
    place = SOURCE / name.replace(".", "/")
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def files(room: str = "") -> list[Path]:
    """The files of a room, or the one file."""
    return [SOURCE / room] if room.endswith(".py") else sorted((SOURCE / room).rglob("*.py"))


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


def name_of(path: Path) -> str:
    """ "core.tree" for src/saltflat/core/tree.py; a room's own name for its __init__."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Names that lead back to the first of them; none if there are none.

    >>> cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}), cycle({"a": {"b"}, "b": set()})
    (['a', 'b', 'c', 'a'], [])
    """
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        done.add(name)
        return next((found for each in sorted(graph[name]) if (found := walk(each, [*way, name]))), [])

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def test_no_module_leads_back_to_itself() -> None:
    """Imports inside functions and for type checkers count too: they are dependencies like any other."""
    graph = {name_of(path): imports(path) for path in files() if name_of(path)}
    known = {name: {each for each in there if each in graph} - {name} for name, there in graph.items()}
    assert cycle(known) == []


def test_no_room_leads_back_to_itself() -> None:
    room = lambda name: name.split(".")[0]
    graph: dict[str, set[str]] = {}
    for path in files():
        if name_of(path):
            own = room(name_of(path))
            graph.setdefault(own, set()).update({room(each) for each in imports(path)} - {own})
    assert cycle({name: there & graph.keys() for name, there in graph.items()}) == []


def test_a_cycle_would_be_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_the_step_is_built_in_the_order_that_data_passes_through_it() -> None:
    for place, module in enumerate(STEP):
        later = set(STEP[place + 1 :])
        assert not imports(SOURCE / (module.replace(".", "/") + ".py")) & later, module


def test_flower_is_imported_in_one_place() -> None:
    """There, its telemetry is off; elsewhere it is named for type checkers only."""
    for path in files():
        body = ast.parse(path.read_text())
        typed = {id(node) for each in ast.walk(body) if is_type_checking(each) for node in ast.walk(each)}
        named = {
            name
            for node in ast.walk(body)
            if id(node) not in typed
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert path.name == "quiet.py" or not any(name.split(".")[0] == "flwr" for name in named), path


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def test_nothing_imports_the_command_line() -> None:
    for path in files():
        if "cli" not in path.relative_to(SOURCE).parts and path.name != "__main__.py":
            assert not any(module == "cli" or module.startswith("cli.") for module in imports(path)), path


def test_only_the_command_line_and_the_bridges_stand_before_the_front() -> None:
    for path in files():
        parts = path.relative_to(SOURCE).parts
        if parts[0] not in ("front", "cli", "bridges", "__init__.py"):
            assert not any(module == "front" or module.startswith("front.") for module in imports(path)), path


def test_the_command_line_and_the_report_start_without_torch() -> None:
    import subprocess

    report = "saltflat.report.page, saltflat.report.card, saltflat.report.output"
    for module in ("saltflat.cli", report, "saltflat.runs.layout, saltflat.runs.measures"):
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, module


def test_every_public_name_exists() -> None:
    import saltflat

    assert all(getattr(saltflat, name) is not None for name in saltflat.__all__)
    with pytest.raises(AttributeError, match="attribute sgd"):
        _ = saltflat.sgd
