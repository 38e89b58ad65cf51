"""Flower, imported in one place, with everything that it would tell other people switched off."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import NamedTuple

from saltflat.errors import SettingError

SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",  # events of every command and app, sent to Flower's makers
    "FLWR_DISABLE_UPDATE_CHECK": "1",  # a question to them at the start of every command
    "RAY_USAGE_STATS_ENABLED": "0",  # the same of Ray, which simulations run on
}


class Flower(NamedTuple):
    """The parts of Flower that are used."""

    app: ModuleType
    clientapp: ModuleType
    serverapp: ModuleType


def flower() -> Flower:
    """Flower's public modules, with its telemetry off in this process and in those that it starts.

    Flower's own commands (``flwr``, ``flower-superlink``, ``flower-supernode``) tell of themselves before they load
    anybody's app: set the variables of `SILENT` where those are started, as the page on deployment does.
    """
    os.environ.update(SILENT)
    try:
        import flwr.app
        import flwr.clientapp
        import flwr.serverapp
    except ImportError:
        if sys.version_info < (3, 11):
            here = ".".join(map(str, sys.version_info[:2]))
            raise SettingError(
                f"Flower 1.41 needs Python 3.11 or later, and this is {here}: run server and clients with a newer "
                "Python; `saltflat federate` simulates clients on this one"
            ) from None
        raise SettingError(
            "Flower is not installed, or older than 1.41: pip install 'saltflat[federated]'"
        ) from None
    loaded = sys.modules.get("flwr.supercore.telemetry")
    if loaded is not None:  # it read its variable when it was imported, perhaps before we were asked
        loaded.FLWR_TELEMETRY_ENABLED = "0"  # type: ignore[attr-defined]
    return Flower(flwr.app, flwr.clientapp, flwr.serverapp)
