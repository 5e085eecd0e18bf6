"""Tables whose rows records change by a key: a ReplacingMergeTree with a version and a mark of deletions, or a CollapsingMergeTree.

    change             row in a ReplacingMergeTree                               rows in a CollapsingMergeTree
    ─────────────────  ────────────────────────────────────────────────────────  ────────────────────────────────────────
    insert             its values; version: its position; not deleted            the new row, sign 1
    update             the same                                                  the row before, sign -1; the new row, sign 1
    deletion           its key, defaults; version: its position; deleted         the row before, sign -1

**Replacing.** Every change is a row of its own with its coordinates, also where a block changes a key several times: so each record that
landed can be looked for, and counted. ClickHouse keeps the row with the highest version of each key, at the latest in a query with FINAL, and
FINAL leaves out the deleted ones. The version is a pure function of the position, and grows with the order of a key's changes: the offset,
above it how often the topic was created again (`generation_of`). So a row that is sent again, under any token, never wins over a later one.
That ends where ClickHouse removes deleted rows for good (CLEANUP, TTL): an older row that is sent afterwards would come back to life. Such
tables are refused.

**Collapsing.** A block is reduced to what it changes of each key: the row before its first change, and the row after its last. So no two rows
of a block are taken away by each other, and the newest row of a key stays until a later block takes it away. A row that landed twice would be
counted twice, so every block lands exactly once: it is one insert into a table without partitions, and blocks of a partition land one after
the other. After a doubt the newest rows prove the block; a block of deletions has landed if the rows that it takes away are gone
(`still_there`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.errors import TargetRefused
from landonce.protocol.ranges import generation_of
from landonce.read.changes import BEFORE
from landonce.read.envelopes import DELETE, OPERATION
from landonce.read.rows import ends_by_key
from landonce.sinks.clickhouse.address import quoted
from landonce.sinks.clickhouse.connection import Connection, Rows
from landonce.sinks.clickhouse.table import COLLAPSING, Column, Table, as_inserted, fitted, tables_of, words
from landonce.sinks.clickhouse.types import split_list, unquote
from landonce.sinks.contract import COORDINATES, Finding, Level

_refused = partial(Finding, Level.REFUSED)
_OFFSET_BITS = 48
"""Offsets up to 281 trillion, and 65,535 times that a topic is created again."""
_CLEANUP = ("allow_experimental_replacing_merge_with_cleanup", "clean_deleted_rows")
_OFF = ("", "0", "false", "never")
_MOVES = ("TO DISK", "TO VOLUME", "RECOMPRESS")
"""TTL rules that remove nothing."""


def as_rows(changes: pa.Table, table: Table) -> pa.Table:
    """Changes as rows of the table: with a version and a mark, or with a sign, instead of the operation."""
    if table.sign_column:
        return _signed(changes, table)
    deleted = pc.equal(changes.column(OPERATION), DELETE).cast(pa.uint8())
    rows = changes.drop_columns([OPERATION]).append_column(table.version_column, versions(changes))
    return rows.append_column(table.deleted_column, deleted)


def versions(rows: pa.Table) -> pa.UInt64Array:
    """The version of each row."""
    topics = rows.column("_topic").combine_chunks().dictionary_encode()
    generations = np.array([generation_of(label) for label in topics.dictionary.to_pylist()], np.uint64)
    offsets = np.asarray(rows.column("_offset").to_numpy(), np.uint64)
    if rows.num_rows and (int(offsets.max()) >> _OFFSET_BITS or int(generations.max()) >> (64 - _OFFSET_BITS)):
        raise TargetRefused(
            f"a version has room for offsets below 2^{_OFFSET_BITS}, and for {2 ** (64 - _OFFSET_BITS) - 1} rebases of a topic.",
            safe="Nothing of this block was sent.",
            command="give the pipeline another `pipeline` name and an empty table in {file}, then: landonce run {file}",
        )
    at = np.asarray(topics.indices.to_numpy(), np.int64)
    return pa.array((generations[at] << np.uint64(_OFFSET_BITS)) | offsets, pa.uint64())


def _signed(changes: pa.Table, table: Table) -> pa.Table:
    """What the changes of a block come to, row by row: first what they take away, then what they add."""
    first, last = ends_by_key(changes, table.key)
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
    return pa.concat_tables(
        rows.append_column(table.sign_column, pa.array(np.full(rows.num_rows, sign, np.int8))) for rows, sign in pieces
    )


def with_deletions(columns: Sequence[Column], key: Sequence[str]) -> tuple[Column, ...]:
    """The columns as they are sent: a deletion holds nothing but its key, and takes defaults for all others."""
    if not key:
        return tuple(columns)
    kept = (*key, *COORDINATES)
    return tuple(each if each.name in kept or each.optional else replace(each, lacking=True) for each in columns)


# What of some rows is there.


def replaced(connection: Connection, table: Table, rows: pa.Table) -> pa.Table:
    """The coordinates of those of these rows whose keys have a newer row in the table."""
    version = quoted(table.version_column)
    keys, source, sent = _keys_of(table, rows, table.version_column)
    there = f"SELECT {keys}, max({version}) AS landonce_newest FROM {table.name.sql}"  # noqa: S608
    sql = (
        f"SELECT toString(_topic) AS topic, toInt32(_partition) AS number, toInt64(_offset) AS offset FROM {source} AS landonce_sent "  # noqa: S608
        f"INNER JOIN ({there} WHERE ({keys}) IN (SELECT {keys} FROM {source}) GROUP BY {keys}) AS landonce_there USING ({keys}) "
        f"WHERE landonce_newest >= {version}"
    )
    return connection.ask(sql, rows=sent).rename_columns(list(COORDINATES))


def still_there(connection: Connection, table: Table, rows: pa.Table) -> bool:
    """Whether a row that these take away is still there."""
    keys, source, sent = _keys_of(table, rows)
    sql = (
        f"SELECT count() FROM (SELECT {keys} FROM {table.name.sql} WHERE ({keys}) IN (SELECT {keys} FROM {source}) "  # noqa: S608
        f"GROUP BY {keys} HAVING sum({quoted(table.sign_column)}) > 0)"
    )
    return bool(connection.ask(sql, rows=sent).column(0)[0].as_py())


def _keys_of(table: Table, rows: pa.Table, *more: str) -> tuple[str, str, tuple[Rows, ...]]:
    """The key's columns as SQL, the FROM clause of the keys of these rows, and what is sent for it."""
    sent = [each for each in table.columns if each.name in (*table.key, *COORDINATES, *more)]
    source = as_inserted([each for each in sent if each.name in table.key], sent)
    chosen = fitted(rows.select([each.name for each in sent]), sent, table.name)
    return ", ".join(map(quoted, table.key)), source, tables_of(chosen, sent)


# Whether a table can be changed by its key.


def check_planned(connection: Connection, table: Table) -> Iterator[Finding]:
    """What keeps a table that is to be created, whose columns are not known yet, from showing the last change of every key."""
    if table.sign_column:
        yield from _collapsing(table)
    elif table.family != "ReplacingMergeTree":
        yield _refused(
            f"engine {table.engine}: `mode: upsert` needs an engine that keeps the newest row of a key",
            "use ReplacingMergeTree(_version, _is_deleted); with `create: true` and without `engine`, landonce does",
        )
        return
    elif not table.deleted_column or {table.version_column, table.deleted_column} & {*COORDINATES}:
        yield _needs_marks(table)
    yield from _keys(table)
    if not table.sign_column:
        yield from _cleaned(connection, table)


def check(connection: Connection, table: Table) -> Iterator[Finding]:
    """The same of a table that is there."""
    faults = list(check_planned(connection, table))
    types = {each.name: f"{each.default_kind} {each.type}".strip() for each in table.columns}
    if table.sign_column and types.get(table.sign_column) != "Int8":
        what = f"the sign {table.sign_column} must be an Int8 without a default"
        faults.append(_refused(what, "make the table with such a column"))
    marks, needs_marks = (types.get(table.version_column), types.get(table.deleted_column)), _needs_marks(table)
    if table.deleted_column and marks != ("UInt64", "UInt8") and needs_marks not in faults:
        faults.append(needs_marks)
    absent = [name for name in table.key if name not in types]
    if absent and table.family == "ReplacingMergeTree":
        what = f"the table has no column {', '.join(absent)}, which `key` names"
        faults.append(_refused(what, "correct `key` in {file}"))
    yield from faults
    if not faults:
        yield Finding(Level.OK, f"engine {table.engine}: FINAL shows the last change of each {', '.join(table.key)}")


def _needs_marks(table: Table) -> Finding:
    return _refused(
        f"engine {table.engine}({table.version_column}{', ' if table.deleted_column else ''}{table.deleted_column}): `mode: upsert` "
        "needs a version UInt64 and a mark of deletions UInt8 that landonce fills",
        "make the table with the columns _version UInt64, _is_deleted UInt8 and ENGINE = ReplacingMergeTree(_version, _is_deleted)",
    )


def _collapsing(table: Table) -> Iterator[Finding]:
    """What keeps a block from landing whole, or its rows from staying."""
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


def _keys(table: Table) -> Iterator[Finding]:
    """Rows of one key must be in one place: FINAL compares rows with the same sorting key, in the same table partition."""
    columns = {each.name for each in table.columns}
    plain = {unquote(each.strip("()")) for each in split_list(table.sorting_key)}  # newer servers write `(id)`
    others = (words(table.sorting_key) & columns) - set(table.key)
    if not set(table.key) <= plain or others:
        yield _refused(
            f"ORDER BY ({table.sorting_key}): rows are replaced by their sorting key, which must be the key ({', '.join(table.key)})",
            f"make the table with ORDER BY ({', '.join(map(quoted, table.key))})",
        )
    moving = (words(table.partition_key) & columns) - set(table.key)
    if moving:
        yield _refused(
            f"PARTITION BY {table.partition_key}: {', '.join(sorted(moving))} may change, and rows of one key in two table partitions "
            "do not replace each other",
            "partition by columns of `key` only, or not at all",
        )


def _cleaned(connection: Connection, table: Table) -> Iterator[Finding]:
    """What removes the mark of a deletion: an older row that is sent again would come back to life."""
    for name in _CLEANUP:
        value = table.setting(name)
        if value is None:
            sql = "SELECT value FROM system.merge_tree_settings WHERE name = {name:String}"
            rows = connection.ask_if_allowed(sql, {"name": name})
            value = str(rows.column(0)[0].as_py()) if rows is not None and rows.num_rows else ""
        if value.lower() not in _OFF:
            yield _refused(
                f"{name} = {value}: a merge may remove the marks of deletions, and a row that is sent again after a doubt would "
                "come back to life",
                f"ALTER TABLE {table.name.sql} RESET SETTING {name}",
            )
    expiring = [each for each in split_list(table.ttl) if not any(f" {word} " in each for word in _MOVES)]
    if table.ttl and expiring:
        yield _refused(
            f"the table has a TTL ({table.ttl}): it may remove the mark of a deletion before the rows that it deletes",
            f"ALTER TABLE {table.name.sql} REMOVE TTL, and delete rows by records instead",
        )
