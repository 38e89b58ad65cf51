"""torchvision as timm and transformers need it: importable. Its own operators are not used by any test."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch

_DECLARED: list[torch.library.Library] = []  # a library's operators go with it


def make_importable() -> None:
    """Declare the operators that torchvision registers shapes for, where its binary does not fit torch's.

    A torchvision that was built for another torch, or for a graphics card, has no operators, and fails at its import.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations or _DECLARED:
        return
    shapes = Path(found.submodule_search_locations[0]) / "_meta_registrations.py"
    try:
        import torchvision  # type: ignore[import-not-found]  # noqa: F401
    except RuntimeError:
        text = shapes.read_text()
        names = {*re.findall(r'register_meta\("(\w+)"\)', text), *re.findall(r'"torchvision::(\w+)"', text)}
        _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in sorted(names):
            if not hasattr(torch.ops.torchvision, name):
                _DECLARED[0].define(f"{name}(Tensor x) -> Tensor")
