"""Failpoints: named places where a test may stop a process for ever, to be killed there.

    LANDONCE_FAILPOINT=record.before       the place: STEP.before or STEP.after, or a worker's send or probe
    LANDONCE_FAILPOINT_SKIP=2              how often to pass it first
    LANDONCE_FAILPOINT_FILE=/tmp/reached   written when the place is reached; the process then waits to be killed

Without these variables a failpoint is one look at a module constant. They never change what the code does: a process
only stops at a failpoint, so whatever a test finds there is what a real crash would find.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_PLACE = os.environ.get("LANDONCE_FAILPOINT", "")
_FILE = os.environ.get("LANDONCE_FAILPOINT_FILE", "")
_left = int(os.environ.get("LANDONCE_FAILPOINT_SKIP", "0"))


def reach(place: str) -> None:
    """Stops here for good if a test asked for it."""
    global _left
    if place != _PLACE or not _FILE:
        return
    if _left > 0:
        _left -= 1
        return
    file = Path(_FILE)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(f"{place} {os.getpid()}\n")
    partial.replace(file)
    while True:
        time.sleep(3600)
