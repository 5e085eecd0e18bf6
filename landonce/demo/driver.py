"""A driver of the demo: one `landonce run` in its own process, to be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from landonce.errors import DemoFailed
from landonce.local.process import kill_tree


@dataclass
class DriverProcess:
    """One `landonce run --once`, in its own session, and what its log reports."""

    file: Path
    landed: Callable[[int], None]
    process: subprocess.Popen[str] = field(init=False)
    last: list[str] = field(default_factory=list)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "landonce", "run", str(self.file), "--once"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def kill(self) -> int:
        """SIGKILL for the driver, its JVM and its workers."""
        count = kill_tree(self.process.pid)
        self.process.wait()
        self._thread.join(5)
        return count

    def finish(self, timeout: float) -> None:
        """Waits for the end of the run."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoFailed(f"the run did not end within {timeout:.0f} s:\n" + "\n".join(self.last[-15:])) from None
        self._thread.join(5)
        if code:
            raise DemoFailed(f"the run ended with exit code {code}:\n" + "\n".join(self.last[-15:]))

    def _listen(self) -> None:
        for line in self.process.stderr or ():
            self.last.append(line.rstrip())
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("event") == "batch":
                self.landed(int(event["landed"]))
