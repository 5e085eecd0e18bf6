"""What stands in a pipeline file for a value from elsewhere: `${NAME}`, the environment's; `${file:PATH}`, a file's text; `${command:WORDS}`, what a
command prints.

The text of a file and the output of a command are secrets, whatever they hold. No error shows them, nor the words of a command after the
first, nor what it writes to its standard error.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from landonce.config import secrets
from landonce.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(?:(?P<kind>file|command):(?P<what>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*))\}")
_USERINFO = re.compile(r"://[^/\s]*@")
_SECRET_NAME = re.compile(r"pass|secret|token|key|credential", re.IGNORECASE)
_SECRET_KEY = re.compile(r"pass|secret|token|credential", re.IGNORECASE)
_LARGEST = 2**20
_SECONDS = 30.0
_REMEMBERED = 60.0
"""Seconds. A command line reads its pipeline file more than once, and a command runs once for all of them."""
_printed: dict[tuple[str, Path], tuple[float, str]] = {}


class References:
    """Of one pipeline file."""

    def __init__(self, file: Path) -> None:
        self._file, self._folder = file, file.resolve().parent
        self._missing: set[str] = set()

    def filled(self, document: Any) -> Any:
        """The document with its values. Raises `ConfigError`: for variables, one error names all that are missing."""
        found = self._fill(document, "")
        if self._missing:
            names = ", ".join(sorted(self._missing))
            raise self._error(f"the environment does not have {names}", f"export {names.split(',')[0]}=…")
        return found

    def _fill(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: self._fill(each, str(name)) for name, each in value.items()}
        if isinstance(value, list):
            return [self._fill(each, key) for each in value]
        if not isinstance(value, str):
            return value
        userinfo = _USERINFO.search(_REFERENCE.sub(lambda found: "x" * len(found[0]), value))
        first, end = userinfo.span() if userinfo else (0, 0)
        return _REFERENCE.sub(lambda found: self._value(found, key, percent=first <= found.start() < end), value)

    def _value(self, found: re.Match[str], key: str, *, percent: bool) -> str:
        """Percent-encoded inside a URL's `user:password@`, so that a password may hold any character."""
        name = found["name"]
        if name is None:
            if found["kind"] == "file":
                value = self._text_of(Path(found["what"]))
            else:
                command = found["what"], self._folder
                at, value = _printed.get(command, (0.0, ""))
                if not value or time.monotonic() - at > _REMEMBERED:
                    value = self._run(found["what"])
                    _printed[command] = time.monotonic(), value
            secrets.remember_text(value)
        else:
            value = os.environ.get(name, "")
            if name not in os.environ:
                self._missing.add(name)
            elif percent or _SECRET_NAME.search(name) or _SECRET_KEY.search(key):
                secrets.remember_text(value)
        return quote(value, safe="") if percent else value

    def _text_of(self, named: Path) -> str:
        path = self._folder / named
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST + 1)
            text = data.decode("utf-8").rstrip("\r\n")
        except FileNotFoundError:
            raise self._error(f"${{file:{named}}}: there is no file {path}", "make it, or correct its path") from None
        except UnicodeDecodeError:
            raise self._error(
                f"${{file:{named}}}: {path} is not UTF-8 text", "name a file that holds the value alone"
            ) from None
        except OSError as error:
            problem = error.strerror or type(error).__name__
            raise self._error(
                f"${{file:{named}}}: {path} cannot be read: {problem}", "give this user the right to read it"
            ) from None
        if not text or len(data) > _LARGEST:
            problem = "is empty" if not text else f"holds more than {_LARGEST} bytes"
            raise self._error(f"${{file:{named}}}: {path} {problem}", "name a file that holds the value alone")
        return text

    def _run(self, command: str) -> str:
        """Without a shell, in the folder of the file."""
        try:
            words = shlex.split(command)
        except ValueError:
            words = []
        if not words:
            raise self._error("${command:…}: the command cannot be split into words", "close its quotation marks")
        who = f"${{command:{words[0]} …}}"
        by_hand = "run the command by hand, as this user and in the folder of the file, to see why"
        try:
            code, printed = _ended(words, self._folder)
            text = printed.decode("utf-8").rstrip("\r\n")
        except FileNotFoundError:
            raise self._error(f"{who}: there is no such command", "install it, or name it by its path") from None
        except subprocess.TimeoutExpired:
            raise self._error(f"{who}: the command did not end within {_SECONDS:.0f} s", by_hand) from None
        except UnicodeDecodeError:
            raise self._error(f"{who}: the command printed what is not UTF-8 text", by_hand) from None
        except OSError as error:
            problem = error.strerror or type(error).__name__
            raise self._error(f"{who}: the command cannot be run: {problem}", by_hand) from None
        if code != 0:
            raise self._error(f"{who}: the command ended with exit code {code}", by_hand)
        if not text:
            raise self._error(f"{who}: the command printed nothing", by_hand)
        return text

    def _error(self, what: str, command: str) -> ConfigError:
        return ConfigError(secrets.redact(f"{self._file}: {what}."), command=command)


def _ended(words: list[str], folder: Path) -> tuple[int, bytes]:
    """The exit code of a command, and what it printed. One that takes too long is ended with everything that it started."""
    with subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=_SECONDS)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, printed
