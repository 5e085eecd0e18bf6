"""From kill -9 to the first new commit: a driver is killed with a block in flight, and started again at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import clickhouse_connect

from landonce.demo.stage import blocks_in_flight
from landonce.ledger.open import sqlite_ledger
from landonce.local.server import kill_tree


def seconds_to_recover(file: Path, ledger: Path, clickhouse_url: str) -> float:
    """Kills one driver and times the next one."""
    first = _start(file)
    client = clickhouse_connect.get_client(dsn=clickhouse_url, autogenerate_session_id=False)
    store = sqlite_ledger(ledger, "bench")
    end = time.monotonic() + 120
    while not (seen := blocks_in_flight(client, store, 0)) and first.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    if not seen:
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
