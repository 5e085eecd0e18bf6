"""From kill -9 to the first new commit: a driver is killed with a block in flight, and started again at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from landonce.demo.watch import Watch
from landonce.local.tree import kill_tree
from landonce.record.open import sqlite_ledger


def seconds_to_recover(file: Path, ledger: Path, clickhouse_url: str) -> float:
    """Kills one driver and times the next one."""
    first = _start(file)
    watch = Watch(sqlite_ledger(ledger, "bench"), clickhouse_url)
    if watch.wait(after_batch=0, timeout=120, alive=lambda: first.poll() is None) is None:
        kill_tree(first.pid)
        raise RuntimeError("no block was seen in flight")
    killed = time.monotonic()
    kill_tree(first.pid)
    second = _start(file)
    try:
        for line in second.stderr or ():
            if line.startswith("{") and json.loads(line).get("event") == "batch":
                return time.monotonic() - killed
    finally:
        kill_tree(second.pid)
    raise RuntimeError("the second driver committed nothing")


def _start(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "landonce", "run", str(file), "--once"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
