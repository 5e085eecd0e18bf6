"""Files that are slow to write, for one block of one batch: what a stalled storage does to the worker of that block.

    catalog: {py-io-impl: slow_files.SlowFiles, slow.folder: /tmp/slow}

`hold` has the next writer of a block of this number stop, before it has written anything. It goes on when it is released, or is
never heard of again. Later batches, and other attempts at the same one, are not slow.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

_BLOCK = re.compile(r"-b\d+-(\d+)-[0-9a-f]{16}\.")
_POLL = 0.02


class SlowFiles(PyArrowFileIO):
    """PyIceberg's own files, one of which waits."""

    def new_output(self, location: str) -> PyArrowFile:
        found = _BLOCK.search(location)
        if found is not None:
            _wait(Path(self.properties["slow.folder"]), found[1])
        return super().new_output(location)


def _wait(folder: Path, block: str) -> None:
    held = folder / f"held-{block}"
    try:
        (folder / f"hold-{block}").rename(held)
    except FileNotFoundError:
        return
    while held.exists():
        time.sleep(_POLL)


def properties(folder: Path) -> dict[str, Any]:
    """Of a catalog with such files."""
    folder.mkdir(exist_ok=True)
    return {"py-io-impl": f"{__name__}.SlowFiles", "slow.folder": str(folder)}


def hold(folder: Path, block: int) -> None:
    """The next writer of such a block is slow."""
    (folder / f"hold-{block}").touch()


def is_held(folder: Path, block: int) -> bool:
    return (folder / f"held-{block}").exists()


def anybody_waits(recipe: Any) -> bool:
    """Whether the writer of one of the blocks of this recipe is held."""
    shapes = [each.shape for each in getattr(recipe, "tables", ()) if each.shape is not None]
    folders = {dict(each.io).get("slow.folder") for each in shapes} - {None}
    return any(held for each in folders for held in Path(each).glob("held-*"))


def release(folder: Path) -> None:
    """Whoever waits goes on, if it is still there."""
    for each in folder.glob("held-*"):
        each.unlink()
