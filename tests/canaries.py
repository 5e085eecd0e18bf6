"""Secrets that a test plants, and a search for them on every surface: files, what commands say, processes, web pages.

The search is only worth something if it finds what is there: each test plants a marker, too, where every surface shows it.
"""

from __future__ import annotations

import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil

from landonce.local.server import NO_PROXY

USER = "ann"


class Surfaces:
    """What people and programs may read, by a name of the place."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}

    def add(self, place: str, *texts: str | bytes) -> None:
        data = b"\n".join(each if isinstance(each, bytes) else each.encode() for each in texts)
        self.texts[place] = self.texts.get(place, b"") + b"\n" + data

    def add_files(self, place: str, folder: Path, but: Iterable[Path] = ()) -> None:
        """Names and contents of all files below the folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path not in set(but):
                self.add(place, str(path.relative_to(folder)), path.read_bytes())

    def add_processes(self, root: int, own: Mapping[str, str]) -> None:
        """Command lines and environments of a process and everything below it, without the variables in which secrets were given to it."""
        for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            with suppress(psutil.Error):
                self.add("process list", " ".join(process.cmdline()))
                given = process.environ()
                self.add("environments", *(f"{name}={value}" for name, value in given.items() if name not in own))

    def add_pages(self, place: str, url: str, paths: Iterable[str]) -> None:
        for path in paths:
            with NO_PROXY.open(urllib.request.Request(url + path), timeout=20) as answer:
                self.add(place, answer.read())

    def places_of(self, secret: str) -> set[str]:
        """Where it is: plain, percent-encoded, or as a header of a login has it."""
        forms = {secret, quote(secret, safe=""), b64encode(f"{USER}:{secret}".encode()).decode()}
        return {place for place, text in self.texts.items() if any(each.encode() in text for each in forms)}
