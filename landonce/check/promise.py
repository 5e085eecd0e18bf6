"""What a pipeline is promised, why it holds, and under which conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from landonce.sinks.contract import Guarantee
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.sql.config import Sql


@dataclass(frozen=True)
class Promise:
    """The guarantee in words."""

    what: str
    why: tuple[str, ...]
    conditions: tuple[str, ...]


_READ_IN_TIME = "the pipeline never stands longer than Kafka keeps records; if it does, it halts and says so"


def promise(config: Pipeline, guarantee: Guarantee) -> Promise:
    """What holds for this pipeline once it starts."""
    if isinstance(config.sink, Iceberg):
        return _snapshots(config, config.sink)
    if isinstance(config.sink, Sql):
        return _transactions(config, config.sink)
    if guarantee is Guarantee.WRAPPED:
        return _wrapped(config)
    why = (
        "every batch is planned in the ledger before the first byte is written, and is replayed literally after a crash",
        "a second driver fences the first by its epoch",
        "one block is one insert, which carries a token against races and a deadline against inserts that come late",
    )
    conditions = (
        _ledger_condition(config),
        "nothing but this pipeline writes rows with these coordinates",
        *_transform_condition(config),
    )
    return Promise(
        "exactly once: every record is in the table once, or in the dead letters once, or filtered by `where`",
        (*why, "after any doubt the table is asked which coordinates it holds, and only what is missing is sent"),
        (*conditions, _READ_IN_TIME),
    )


def _snapshots(config: Pipeline, told: Iceberg) -> Promise:
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
        (*_snapshot_conditions(config, told), *_transform_condition(config), _READ_IN_TIME),
    )


def _transactions(config: Pipeline, told: Sql) -> Promise:
    """Rows and the ledger change in one transaction."""
    what = "change is applied to the table once" if told.key else "record is in the table once"
    conditions = [
        "the tables landonce_* are kept, backed up and restored together with the table",
        "nothing but this pipeline writes rows with these " + ("keys" if told.key else "coordinates"),
    ]
    if told.key:
        conditions.append("changes of one key come in one partition of a topic: their order is that of its offsets")
    return Promise(
        f"exactly once: every {what}, or in the dead letters once, or filtered",
        (
            "every batch is planned in the ledger before the first row is written, and is replayed literally after a crash",
            "a block's rows and its row in the ledger change in one transaction: neither is ever there without the other",
            "that transaction holds only while the block is claimed by its driver: whoever starts claims all blocks, waits for "
            "transactions that are open, and makes every later one of an earlier driver roll back",
            "a COMMIT without an answer is never guessed: the block's row says what became of it",
        ),
        (*conditions, *_transform_condition(config), _READ_IN_TIME),
    )


def _wrapped(config: Pipeline) -> Promise:
    """The target is a user's own, and its part is what its sink declares."""
    return Promise(
        "exactly once: every record is pushed and takes effect once, or is in the dead letters once, or filtered; or the pipeline "
        "halts and says which block is in doubt",
        (
            "every batch is planned in the ledger before the first block is pushed, and a block is the same bytes under the same key "
            "on every retry",
            "before an attempt is made, it is claimed in the ledger by compare-and-set; after it, the ledger says what became of it",
            "an outcome that nobody knows is never guessed: where pushing again is harmless the block is pushed again; else the "
            "attempt is waited out and the probe is asked, or a person",
            "a second driver fences the first by its epoch",
        ),
        (
            "what the sink declares is true: `idempotent`, the probe, `settles_within`, and that NotPushed means that nothing arrived",
            _ledger_condition(config),
            "the ledger is not lost or restored: the target cannot be asked how far it is, so its records would be pushed again",
            *_transform_condition(config),
            _READ_IN_TIME,
        ),
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
        yield _ledger_condition(config)
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


def _transform_condition(config: Pipeline) -> tuple[str, ...]:
    return () if config.transform.empty else ("select and where are deterministic, which is examined at every start",)


def _ledger_condition(config: Pipeline) -> str:
    if config.outside_ledger.sqlite is not None:
        return f"every driver of this pipeline uses the one ledger file {config.outside_ledger.sqlite}, on a local disk"
    if config.outside_ledger.plugin is not None:
        return f"the ledger plug-in {config.outside_ledger.plugin.name} passes the contract (landonce.testing.LedgerContract)"
    return "every driver of this pipeline uses the one PostgreSQL ledger"
