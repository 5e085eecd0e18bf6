"""Each block becomes a file of JSON lines that is named by its key. Pushed again, it is the same file with the same
bytes.

In a pipeline file: sink: {wrapped: {sink: "file_per_block:sink", options: {folder: /data/orders}}}
"""

import os
import uuid
from pathlib import Path

import landonce


class Files:
    """Idempotent: a file gets its name by a rename, and the name says what is in it."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def push(self, block: landonce.PushedBlock) -> None:
        aside = self.folder / f".{block.key}.{uuid.uuid4().hex[:8]}"
        with aside.open("wb") as file:
            file.write(block.json_lines())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.folder / f"{block.key}.jsonl")
        self._sync()

    def _sync(self) -> None:
        """Nobody checks a push after it returned, so the new name must survive a power cut."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sink(folder: str) -> landonce.WrappedSink:
    return landonce.wrap(Files(folder), idempotent=True, name=f"files in {folder}")
