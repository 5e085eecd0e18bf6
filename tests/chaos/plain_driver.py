"""`landonce run` in a process that is forked, without Spark. So kills can be tried at many places for little; that Spark's processes die the
same way, one chain per sink shows with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Drivers
from plain_process import PlainProcess


@dataclass
class PlainDrivers(Drivers):
    """Drivers without Spark, or a script that needs none."""

    def spawn(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> Any:
        if self.command:
            _python, script, *arguments_of_script = self.command
            return PlainProcess(arguments_of_script, environment, log, script=script)
        return PlainProcess(arguments, environment, log)


@dataclass
class FirstWithSpark(PlainDrivers):
    """Spark's processes are killed. Who recovers from that has none."""

    def spawn(self, arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> Any:
        return (
            super().spawn(arguments, environment, log)
            if self.runs
            else Drivers.spawn(self, arguments, environment, log)
        )
