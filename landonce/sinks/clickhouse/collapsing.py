"""Tables in which later rows take earlier ones away: a CollapsingMergeTree.

    change      rows
    ──────────  ───────────────────────────────────────────────────────────────
    insert      the new row, sign 1
    update      the row before, sign -1; the new row, sign 1
    deletion    the row before, sign -1

A block is reduced to what it changes of each key: the row before its first change, and the row after its last. So no two rows of a block are
taken away by each other, and the newest row of a key stays until a later block takes it away.

A row that landed twice would be counted twice, so every block lands exactly once: it is one insert into a table without partitions, and
blocks of a partition land one after the other. After a doubt the newest rows prove the block; a block of deletions has landed if the rows
that it takes away are gone (`still_there`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.read.before import BEFORE
from landonce.read.changes import DELETE, OPERATION
from landonce.sinks.clickhouse.address import quoted
from landonce.sinks.clickhouse.connection import Connection
from landonce.sinks.clickhouse.table import COLLAPSING, Table, as_inserted, fitted, tables_of
from landonce.sinks.contract import COORDINATES, Finding, Level

_refused = partial(Finding, Level.REFUSED)
_AT = "__landonce_at"


def as_rows(changes: pa.Table, table: Table) -> pa.Table:
    """What the changes of a block come to, row by row: first what they take away, then what they add."""
    sign = table.sign_column
    first, last = _ends(changes, table.key)
    before = changes.column(BEFORE).combine_chunks()
    gone = first[np.asarray(before.is_valid().to_numpy(zero_copy_only=False))[first]]
    deleted = np.asarray(pc.equal(changes.column(OPERATION), DELETE).to_numpy(), np.bool_)
    new = last[~deleted[last]]
    plain = changes.drop_columns([OPERATION, BEFORE])
    old = plain.take(pa.array(gone))
    for at, field in enumerate(plain.schema):
        if field.name not in COORDINATES:
            old = old.set_column(at, field, before.field(field.name).take(pa.array(gone)))
    pieces = ((old, -1), (plain.take(pa.array(new)), 1))
    signed = [rows.append_column(sign, pa.array(np.full(rows.num_rows, of, np.int8))) for rows, of in pieces]
    return pa.concat_tables(signed)


def _ends(changes: pa.Table, key: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last change of each key, by their index. Arrow cannot group by an extension type: a UUID is grouped by its bytes."""
    keyed = pa.table({_AT: pa.array(np.arange(changes.num_rows))})
    for name in key:
        column = changes.column(name)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([each.storage for each in column.chunks], column.type.storage_type)
        keyed = keyed.append_column(name, column)
    found = keyed.group_by(list(key)).aggregate([(_AT, "min"), (_AT, "max")])
    first, last = (np.sort(np.asarray(found.column(f"{_AT}_{each}").to_numpy())) for each in ("min", "max"))
    return first, last


def still_there(connection: Connection, table: Table, rows: pa.Table) -> bool:
    """Whether a row that these take away is still there."""
    sent = [each for each in table.columns if each.name in (*table.key, *COORDINATES)]
    keys, source = (
        ", ".join(map(quoted, table.key)),
        as_inserted([each for each in sent if each.name in table.key], sent),
    )
    sql = (
        f"SELECT count() FROM (SELECT {keys} FROM {table.name.sql} WHERE ({keys}) IN (SELECT {keys} FROM {source}) "  # noqa: S608
        f"GROUP BY {keys} HAVING sum({quoted(table.sign_column)}) > 0)"
    )
    chosen = rows.select([each.name for each in sent])
    answer = connection.ask(sql, rows=tables_of(fitted(chosen, sent, table.name), sent))
    return bool(answer.column(0)[0].as_py())


def check_planned(table: Table) -> Iterator[Finding]:
    """What keeps a block from landing whole, or its rows from staying, in a table that is to be created."""
    if table.partition_key:
        yield _refused(
            f"PARTITION BY {table.partition_key}: in a {COLLAPSING} a block must land whole, and does so in a table without partitions only",
            "make the table without PARTITION BY, or use a ReplacingMergeTree",
        )
    if table.ttl:
        yield _refused(
            f"the table has a TTL ({table.ttl}): it would remove rows that later ones take away once more",
            f"ALTER TABLE {table.name.sql} REMOVE TTL, and delete rows by records instead",
        )


def check(table: Table) -> Iterator[Finding]:
    """The same of a table that is there."""
    types = {each.name: each.type for each in table.columns if not each.default_kind}
    if table.sign_column and types.get(table.sign_column) != "Int8":
        yield _refused(
            f"the sign {table.sign_column} must be an Int8 without a default", "make the table with such a column"
        )
