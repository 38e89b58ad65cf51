"""Other people's training loops, around the private step: Hugging Face's ``Trainer`` and Lightning.

`PrivateTrainer` needs ``saltflat[hf]`` and `PrivateModule` needs ``saltflat[lightning]``; each is made when it is first
asked for, so that neither package is needed for the other, or for anything else.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PrivateModule", "PrivateTrainer"]


def __getattr__(name: str) -> Any:
    if name == "PrivateTrainer":
        from saltflat.bridges.trainer import private_trainer

        return private_trainer()
    if name == "PrivateModule":
        from saltflat.bridges.lightning import private_module

        return private_module()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
