"""Failpoints: named places where a test may stop a process, to be killed or paused there.

    LANDONCE_FAILPOINT=record.before       the place: STEP.before or STEP.after, or one of a worker (docs/proof.md)
    LANDONCE_FAILPOINT_SKIP=2              how often to pass it first
    LANDONCE_FAILPOINT_FILE=/tmp/reached   written when the place is reached; the process then waits to be killed
    LANDONCE_FAILPOINT_WAIT_FOR=/tmp/go    or else continues once this file exists
    LANDONCE_FAILPOINT_THREAD=landonce push   only threads of this name stop, where two drivers are in one process

Without these variables a failpoint only compares a module constant. Failpoints never change what the code does: a
process only stops there, so a test finds what a real crash would leave.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PLACE = os.environ.get("LANDONCE_FAILPOINT", "")
_FILE = os.environ.get("LANDONCE_FAILPOINT_FILE", "")
_WAIT_FOR = os.environ.get("LANDONCE_FAILPOINT_WAIT_FOR", "")
_THREAD = os.environ.get("LANDONCE_FAILPOINT_THREAD", "")
_POLL_SECONDS = 0.02
_one_by_one = threading.Lock()
_left = int(os.environ.get("LANDONCE_FAILPOINT_SKIP", "0"))


def reach(place: str) -> None:
    """Stops here, for ever or until the file exists, if a test asked for it."""
    global _left
    if place != _PLACE or not _FILE or _THREAD not in ("", threading.current_thread().name):
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
