"""The ledger's tables, and the conversion of a state to rows and back. No I/O.

    landonce_schema     one row: the version of these tables
    landonce_pipeline   one row per pipeline: epoch, owner, version and everything that is not per partition
    landonce_position   one row per pipeline and partition: first and committed
    landonce_journal    decisions outside the normal flow, in order
    landonce_block      if the ledger is in the target: one row per block of a pending plan
    landonce_push       for wrapped sinks: one row per block of a pending plan, with its last attempt

Rows must convert back to exactly the same state: after a lost answer, landonce compares whole states. Python sorts the
rows, because each database sorts text in its own way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Integer, MetaData, Row, Table, Text, and_, exists
from sqlalchemy.dialects import mysql

from landonce.errors import LedgerTooNew, LedgerUnreadable
from landonce.protocol.blocks import Plan
from landonce.protocol.ledger import LedgerState, Position, TableMark, Totals
from landonce.protocol.ranges import Partition

SCHEMA_VERSION = 2

metadata = MetaData()
block_metadata = MetaData()
push_metadata = MetaData()

_BIN = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_NAME = Text().with_variant(mysql.VARCHAR(255, **_BIN), "mysql", "mariadb")
"""MySQL limits the length of keys, and would treat names that differ only in case as equal."""
_LONG = Text().with_variant(mysql.LONGTEXT(**_BIN), "mysql", "mariadb")
ENGINE: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
"""Whatever the server's default: without transactions, a block could be marked as landed and be absent."""

schema_table = Table(
    "landonce_schema",
    metadata,
    Column("only", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    **ENGINE,
)

pipeline_table = Table(
    "landonce_pipeline",
    metadata,
    Column("pipeline", _NAME, primary_key=True),
    Column("lineage", _NAME, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", _NAME, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("cluster_id", _NAME, nullable=False),
    Column("topic_ids", _LONG, nullable=False),
    Column("labels", _LONG, nullable=False),
    Column("tables", _LONG, nullable=False),
    Column("pending", _LONG),
    Column("batch", BigInteger, nullable=False),
    Column("landed", BigInteger, nullable=False),
    Column("dead_lettered", BigInteger, nullable=False),
    Column("filtered", BigInteger, nullable=False),
    **ENGINE,
)

position_table = Table(
    "landonce_position",
    metadata,
    Column("pipeline", _NAME, primary_key=True),
    Column("topic", _NAME, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("committed", BigInteger, nullable=False),
    **ENGINE,
)

journal_table = Table(
    "landonce_journal",
    metadata,
    Column("pipeline", _NAME, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", _NAME, nullable=False),
    Column("action", _NAME, nullable=False),
    Column("detail", _LONG, nullable=False),
    **ENGINE,
)


def _block_columns() -> tuple[Column[Any], ...]:
    return (
        Column("pipeline", _NAME, primary_key=True),
        Column("batch", BigInteger, primary_key=True, autoincrement=False),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("epoch", BigInteger, nullable=False),
        Column("owner", _NAME, nullable=False),
        Column("state", _NAME, nullable=False),
    )


block_table = Table(
    "landonce_block",
    block_metadata,
    *_block_columns(),
    Column("receipt", _LONG),
    **ENGINE,
)

push_table = Table(
    "landonce_push",
    push_metadata,
    *_block_columns(),
    Column("attempt", Integer, nullable=False),
    Column("nonce", _NAME, nullable=False),
    Column("claimed_at", BigInteger, nullable=False),
    Column("wait", BigInteger, nullable=False),
    Column("receipt", _LONG),
    **ENGINE,
)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _tables_to_json(tables: Iterable[tuple[str, TableMark]], lately: Totals) -> str:
    """The column holds `lately`, too, while there is any: tables that an earlier landonce made have no column for it."""
    marks = [[table, mark.uuid, mark.batch, *([mark.columns] if mark.columns else [])] for table, mark in tables]
    return _json({"tables": marks, "lately": lately.listed} if lately.read else marks)


def _tables_of(text: str) -> tuple[tuple[tuple[str, TableMark], ...], Totals]:
    held = json.loads(text)
    marks, lately = (held["tables"], held["lately"]) if isinstance(held, dict) else (held, ())
    return tuple(
        (table, TableMark(uuid, batch, *map(tuple, columns))) for table, uuid, batch, *columns in marks
    ), Totals(*lately)


_ENCODE: Mapping[str, Callable[[Any], str | None]] = {
    "topic_ids": _json,
    "labels": _json,
    "tables": lambda both: _tables_to_json(*both),
    "pending": lambda plan: None if plan is None else plan.to_json(),
}
"""The columns that hold JSON. The others hold the state's value as it is."""


def _columns(state: LedgerState) -> dict[str, Any]:
    totals = ("landed", "dead_lettered", "filtered")
    columns = {
        each.name: getattr(state.totals if each.name in totals else state, each.name) for each in pipeline_table.c
    }
    return {**columns, "tables": (state.tables, state.lately)}


def _encoded(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _ENCODE[name](value) if name in _ENCODE else value for name, value in columns.items()}


def pipeline_row(state: LedgerState) -> dict[str, Any]:
    return _encoded(_columns(state))


def changed_columns(old: LedgerState, new: LedgerState) -> dict[str, Any]:
    """Only the columns that differ: a pending plan of megabytes is not rewritten when another column changes."""
    before = _columns(old)
    return _encoded({name: value for name, value in _columns(new).items() if value != before[name]})


def unchanged(old: LedgerState) -> ColumnElement[bool]:
    """The comparison of the compare-and-set: `protocol.ledger.key`, and a table version that this landonce knows."""
    row = pipeline_table.c
    return and_(
        row.pipeline == old.pipeline,
        row.epoch == old.epoch,
        row.owner == old.owner,
        row.version == old.version,
        row.lineage == old.lineage,
        exists().where(schema_table.c.version == SCHEMA_VERSION),
    )


def moved_positions(old: LedgerState, new: LedgerState) -> list[dict[str, Any]]:
    """Rows to insert or update."""
    if old.positions is new.positions:
        return []
    before = dict(old.positions)
    return position_rows(new.pipeline, (each for each in new.positions if before.get(each[0]) != each[1]))


def dropped_positions(old: LedgerState, new: LedgerState) -> list[Partition]:
    """Partitions that the new state no longer has."""
    if old.positions is new.positions:
        return []
    return sorted(dict(old.positions).keys() - dict(new.positions).keys())


def position_rows(pipeline: str, positions: Iterable[tuple[Partition, Position]]) -> list[dict[str, Any]]:
    return [
        {
            "pipeline": pipeline,
            "topic": partition.topic,
            "partition": partition.number,
            "first": position.first,
            "committed": position.committed,
        }
        for partition, position in positions
    ]


def state_of(row: Row[Any], positions: Iterable[Row[Any]]) -> LedgerState:
    """The state that these rows were made from."""
    try:
        tables, lately = _tables_of(row.tables)
        committed = sorted((each.topic, each.partition, each.first, each.committed) for each in positions)
        return LedgerState(
            pipeline=row.pipeline,
            lineage=row.lineage,
            epoch=row.epoch,
            owner=row.owner,
            version=row.version,
            cluster_id=row.cluster_id,
            topic_ids=_pairs_of(row.topic_ids),
            positions=tuple((Partition(topic, at), Position(first, end)) for topic, at, first, end in committed),
            pending=None if row.pending is None else Plan.from_json(row.pending),
            batch=row.batch,
            totals=Totals(row.landed, row.dead_lettered, row.filtered),
            labels=_pairs_of(row.labels),
            tables=tables,
            lately=lately,
        )
    except (ValueError, KeyError, TypeError) as failure:
        raise LedgerUnreadable(
            f"the ledger's entry of pipeline {row.pipeline!r} cannot be read ({type(failure).__name__}): it is damaged, "
            "or was edited by hand.",
            safe="Nothing was changed.",
            command="restore the ledger from a backup, then: landonce run {file}",
        ) from failure


def _pairs_of(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in json.loads(text))


def check_schema(version: int | None, place: str) -> None:
    """Refuses tables that this landonce does not understand."""
    if version == SCHEMA_VERSION:
        return
    if version is not None and version > SCHEMA_VERSION:
        raise LedgerTooNew(
            f"the ledger {place} was written by a newer landonce: its tables have version {version}, and this landonce "
            f"knows versions up to {SCHEMA_VERSION}.",
            safe="Nothing was changed.",
            command="pip install --upgrade landonce",
        )
    if version is not None:
        raise LedgerUnreadable(
            f"the ledger {place} was written by an older landonce: its tables have version {version}, and this landonce "
            f"reads only version {SCHEMA_VERSION}.",
            safe="Nothing was changed.",
            command="continue with the landonce that wrote it; or, to land everything again, give the pipeline in {file} "
            "another name, another ledger and an empty target",
        )
    raise LedgerUnreadable(
        f"the ledger {place} has tables without a version.",
        safe="Nothing was changed.",
        command="restore the ledger from a backup, then: landonce run {file}",
    )
