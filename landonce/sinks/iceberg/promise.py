"""What a pipeline to Iceberg is promised. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.promise import READ_IN_TIME, Promise, ledger_condition, transform_condition


def promise(config: Pipeline, told: Iceberg) -> Promise:
    """Rows and position are one atomic commit."""
    return Promise(
        _what(config, told),
        (
            "rows and position are one atomic commit: neither is ever in a table without the other",
            "inside every attempt of a commit, position and epoch of the table are the ones that the batch was planned "
            "from, or nothing is committed: a driver that comes late is refused",
            "files of tasks and drivers that died were never committed, and count for nothing",
            _recovery(config),
        ),
        (*_snapshot_conditions(config, told), *transform_condition(config), READ_IN_TIME),
    )


def _what(config: Pipeline, told: Iceberg) -> str:
    where = "in the table once" if told.one_table else "once in each table that it is meant for"
    if told.changes is not None:
        where = f"applied {where}"
    rest = "or in the dead letters once, or filtered" + ("" if config.transform.empty else " by `where`")
    return f"exactly once: every {'record' if told.changes is None else 'change'} is {where}, {rest}"


def _recovery(config: Pipeline) -> str:
    if config.own_ledger:
        return "the table is its own ledger: whoever starts takes it with a snapshot, and fences every earlier driver"
    return (
        "every batch is planned in the ledger before its first commit, and each table says itself which batch it holds: "
        "after a crash only those are committed to that lack it"
    )


def _snapshot_conditions(config: Pipeline, told: Iceberg) -> Iterator[str]:
    if not config.own_ledger:
        yield ledger_condition(config)
    if not told.one_table:
        yield "a batch becomes visible in one table after another; each of them is exact at every moment"
    yield "the catalog swaps a table's metadata only if it is still what was read (REST, SQL, Hive and Glue catalogs do)"
    yield (
        f"nobody removes the marks: snapshots may expire, but the table property landonce.{config.pipeline}.{told.branch} "
        "stays"
    )
    yield "nothing but this pipeline writes rows with these coordinates"
    if told.changes is not None:
        yield "changes of one row come in one partition of a topic: their order is that of its offsets"
    yield (
        "a table that is rolled back gets the removed ranges again, as far as Kafka still has them"
        if told.rollback == "follow"
        else "a table that is rolled back is a reason to halt (`rollback: refuse`)"
    )
