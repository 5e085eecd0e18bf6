"""Names of data files: they say which pipeline, epoch, batch and block wrote a file, so that orphans can be told from
files in flight."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

_NAME = re.compile(r"landonce-(?P<pipeline>.+)-e(?P<epoch>\d+)-b(?P<batch>\d+)-(?P<block>\d+)-[0-9a-f]{16}\.[a-z]+$")


@dataclass(frozen=True)
class Origin:
    """Who wrote a file, and for what."""

    pipeline: str
    epoch: int
    batch: int
    block: int

    def file_name(self, extension: str = "parquet") -> str:
        """A new name, never used before: a task that Spark runs again writes other files."""
        return f"landonce-{self.pipeline}-e{self.epoch}-b{self.batch}-{self.block}-{uuid.uuid4().hex[:16]}.{extension}"


def origin_of(path: str) -> Origin | None:
    """What a file's name says; None for files of others."""
    found = _NAME.search(path.rpartition("/")[2])
    if found is None:
        return None
    return Origin(found["pipeline"], int(found["epoch"]), int(found["batch"]), int(found["block"]))
