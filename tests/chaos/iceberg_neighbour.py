"""Another writer beside landonce: appends rows of its own and deletes rows, its own and others', until a test stops it.

Run as a process of its own. What it did, it writes down once it is done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import iceberg_oracle
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, EqualTo
from pyiceberg.table import Table
from sqlalchemy.exc import OperationalError

EACH = 3
"""Rows that it appends at a time, of which it deletes one."""


def main(folder: str, name: str, stop: str, journal: str) -> None:
    """Until the file `stop` exists. `folder` is that of the pipeline."""
    catalog = iceberg_oracle.embedded(Path(folder))
    kept: list[int] = []
    removed: list[tuple[str, int, int]] = []
    conflicts, number = 0, 0

    def patiently(act: Callable[[Table], object]) -> None:
        nonlocal conflicts
        while True:
            try:
                act(catalog.load_table(name))
                return
            except (CommitFailedException, OperationalError):
                conflicts += 1

    while not Path(stop).exists():
        first = number
        patiently(lambda table, first=first: table.append(iceberg_oracle.strangers(table, first, EACH)))
        patiently(lambda table, first=first: table.delete(_at(iceberg_oracle.ELSEWHERE, 0, first)))
        kept += range(first + 1, first + EACH)
        number += EACH
        there = iceberg_oracle.rows(catalog.load_table(name))
        if there:
            victim = min(there)[:3]
            patiently(lambda table, victim=victim: table.delete(_at(*victim)))
            removed.append(victim)
    Path(journal).write_text(json.dumps({"kept": kept, "removed": removed, "conflicts": conflicts}))


def _at(topic: str, partition: int, offset: int) -> And:
    return And(EqualTo("_topic", topic), EqualTo("_kafka_partition", partition), EqualTo("_offset", offset))


if __name__ == "__main__":
    main(*sys.argv[1:])
