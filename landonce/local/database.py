"""What local SQL servers have in common: a port, a data folder that is created once, and a password.

Only the owner of the folder can read the password.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from landonce.errors import LocalStackError
from landonce.local.server import LocalServer

USER = DATABASE = "landonce"


class LocalDatabase(LocalServer):
    """One server. The same folder means the same data, port and password."""

    port_names = ("sql",)
    made: ClassVar[str]
    """A file that the data folder holds once it is complete."""

    def __init__(self, folder: Path, *, port: int | None = None, die_with_parent: bool = True) -> None:
        super().__init__(folder, ports={"sql": port}, die_with_parent=die_with_parent)

    @property
    def port(self) -> int:
        return self._port("sql")

    @property
    def password(self) -> str:
        return self._password_file.read_text().strip()

    @abstractmethod
    def _init_data(self) -> None:
        """Creates the data, in an existing empty folder."""

    def _prepare(self) -> None:
        if (self._data / self.made).exists():
            return
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_hex(16))
        shutil.rmtree(self._data, ignore_errors=True)  # left by an interrupted start
        self._data.mkdir(mode=0o700)
        self._init_data()

    def _make_with(self, command: Sequence[str], **how: Any) -> None:
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, **how)
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip()[-600:]
            raise LocalStackError(f"{Path(command[0]).name} could not create {self._data}: {output}")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"
