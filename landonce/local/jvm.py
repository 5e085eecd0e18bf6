"""Starts the local servers that run on Java: one Java, quiet logs, nothing from the caller's class path."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from landonce.jars import need_java

HADOOP_AND_LOGS = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
"""Jars that PySpark includes, for servers whose own sets leave them out."""

_LOG4J = """\
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %m (%c)%n
"""


def prepare_java(folder: Path, levels: Mapping[str, str]) -> None:
    """Logs warnings and errors to the console; `levels` overrides single loggers. Java's temporary files go into the
    folder and are removed here, because a killed server cannot remove them."""
    shutil.rmtree(_temporary(folder), ignore_errors=True)
    _temporary(folder).mkdir()
    loggers = (
        f"logger.{number}.name = {name}\nlogger.{number}.level = {level}\n"
        for number, (name, level) in enumerate(levels.items())
    )
    (folder / "log4j2.properties").write_text(_LOG4J + "".join(loggers))


def java_command(folder: Path, class_path: str, *arguments: str) -> list[str]:
    """The command to run in the folder, once it is prepared."""
    options = ["-XX:-UsePerfData", "-Djava.awt.headless=true", "-Dlog4j2.configurationFile=log4j2.properties"]
    return [need_java(), *options, f"-Djava.io.tmpdir={_temporary(folder)}", "-cp", class_path, *arguments]


def _temporary(folder: Path) -> Path:
    return folder / "tmp"


def java_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("CLASSPATH", "JAVA_TOOL_OPTIONS")}


def properties(config: Mapping[str, str]) -> str:
    """A Java properties file; only backslashes need escaping in our values."""
    return "".join(f"{name}={value}\n".replace("\\", "\\\\") for name, value in config.items())
