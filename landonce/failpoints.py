"""Failpoints: named places where a test may stop a process, to be killed or paused there.

    LANDONCE_FAILPOINT=record.before       the place: STEP.before or STEP.after, or one of a worker (docs/proof.md)
    LANDONCE_FAILPOINT_SKIP=2              how often to pass it first
    LANDONCE_FAILPOINT_FILE=/tmp/reached   written when the place is reached; the process then waits to be killed
    LANDONCE_FAILPOINT_WAIT_FOR=/tmp/go    or else goes on once this file exists

Without these variables a failpoint is one look at a module constant. They never change what the code does: a process
only stops at a failpoint, so whatever a test finds there is what a real crash would find.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PLACE = os.environ.get("LANDONCE_FAILPOINT", "")
_FILE = os.environ.get("LANDONCE_FAILPOINT_FILE", "")
_WAIT_FOR = os.environ.get("LANDONCE_FAILPOINT_WAIT_FOR", "")
_POLL_SECONDS = 0.02
_one_by_one = threading.Lock()
_left = int(os.environ.get("LANDONCE_FAILPOINT_SKIP", "0"))


def reach(place: str) -> None:
    """Stops here, for good or until it may go on, if a test asked for it."""
    global _left
    if place != _PLACE or not _FILE:
        return
    with _one_by_one:
        if _left > 0:
            _left -= 1
            return
        file = Path(_FILE)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(f"{place} {os.getpid()}\n")
        partial.replace(file)
    while not (_WAIT_FOR and Path(_WAIT_FOR).exists()):
        time.sleep(_POLL_SECONDS if _WAIT_FOR else 3600)
