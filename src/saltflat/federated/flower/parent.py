"""End this process when the one that started it is gone."""

from __future__ import annotations

import logging
import os
import threading
import time

LOG = logging.getLogger(__name__)


def end_with_parent(every: float = 1.0) -> None:
    """Watch the parent process in a thread, ``every`` so many seconds, and end this process at once when it is gone.

    Ended so, a run stands as after ``kill -9``: it goes on after the last round that was kept.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        LOG.error("the SuperLink that started this server app is gone: the app ends; start the run again")
        os._exit(1)  # the main thread may wait in Flower for an answer that never comes, deaf to signals

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
