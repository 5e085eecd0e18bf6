"""Whether a table can hold the guarantee, and what to change where it cannot. Reads only.

REFUSED   the pipeline does not start
WARNING   the pipeline starts, and the user should know
OK        checked, and fit
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from landonce.errors import TableUnfit, TargetRefused
from landonce.sinks.clickhouse import keyed
from landonce.sinks.clickhouse.address import TableName, literal, quoted, quoted_user
from landonce.sinks.clickhouse.connection import MOST_BYTES_OF_A_FIELD, Connection
from landonce.sinks.clickhouse.table import (
    WINDOW,
    Column,
    Layout,
    Table,
    coordinate_faults,
    describe,
    filled,
    key_columns,
    structure,
    words,
)
from landonce.sinks.clickhouse.types import split_list
from landonce.sinks.contract import Finding, Level

_refused, _warning = partial(Finding, Level.REFUSED), partial(Finding, Level.WARNING)
_SMALLEST_WINDOW = 1_000
_SKEW_MS = 5_000
_SERVER_QUESTIONS = 4
_OLDEST = (24, 10)  # CHECK GRANT

_WRONG_ENGINES = {
    "SummingMergeTree": "adds rows up, so that single coordinates vanish",
    "AggregatingMergeTree": "aggregates rows, so that single coordinates vanish",
    "CollapsingMergeTree": "removes pairs of rows",
    "VersionedCollapsingMergeTree": "removes pairs of rows",
    "GraphiteMergeTree": "rolls rows up",
    "CoalescingMergeTree": "merges rows by key",
    "Distributed": "passes rows on to other tables, in the background and in parts: name the table behind it",
    "Buffer": "keeps rows in memory: name the table behind it",
    "MaterializedView": "is a view: name the table behind it",
    "View": "is a view and holds no rows",
    "Null": "throws every row away",
    "Kafka": "is a queue: writing to it writes to Kafka",
}

_POLICIES = """
SELECT short_name FROM system.row_policies
WHERE database = {database:String} AND table IN ({name:String}, '')
  AND (has(apply_to_list, currentUser()) OR hasAny(apply_to_list, currentRoles())
       OR (apply_to_all AND NOT has(apply_to_except, currentUser())))
"""

_READ_ONLY = """
SELECT replica_name FROM system.replicas WHERE database = {database:String} AND table = {name:String} AND is_readonly
"""


def check(connection: Connection, name: TableName, *, cluster: str, key: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """All findings about a table. `key`: by which records change its rows."""
    table = describe(connection, name, key)
    findings = [*_server(connection), *(keyed.check(connection, table) if key else _engine(table))]
    if any(each.level is Level.REFUSED for each in findings):
        return tuple(findings)
    findings += _columns(table)
    findings += _window(connection, table)
    findings += _partition_key(connection, table)
    findings += _reading(connection, table)
    findings += _replicas(connection, table, cluster)
    findings += _rights(connection, table)
    findings += _servers(connection, table)
    return tuple(findings)


def check_layout(connection: Connection, name: TableName, layout: Layout) -> tuple[Finding, ...]:
    """What keeps a table that would be created like this from holding the guarantee."""
    table = layout.planned(name)
    named = tuple(
        Column(each, "UInt64") for each in table.engine_columns
    )  # those that no record fills are refused with the statement
    engine = keyed.check_planned(connection, table) if layout.key else _engine(replace(table, columns=named))
    findings = [*engine, *_window(connection, table), *_expiry(connection, table)]
    if layout.cluster and not table.replicated:
        findings.append(
            _warning(
                f"engine {table.engine} on cluster {layout.cluster}: every server gets a table of its own, and rows land in that of the url",
                "set engine: ReplicatedMergeTree, or leave `cluster` out",
            )
        )
    return tuple(each for each in findings if each.level is not Level.OK)


def _server(connection: Connection) -> Iterator[Finding]:
    before = time.time()
    now = connection.one("SELECT toUnixTimestamp64Milli(now64(3))")
    skew = now - round((before + time.time()) * 500)
    version = str(connection.one("SELECT version()"))
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < _OLDEST:
        yield _refused(f"ClickHouse {version} is too old", f"use {_OLDEST[0]}.{_OLDEST[1]} or later")
    else:
        yield Finding(Level.OK, f"ClickHouse {version}")
    if abs(skew) > _SKEW_MS:
        yield _warning(
            f"the server's clock is {skew / 1000:+.1f} s off this machine's",
            "deadlines use the server's clock only, so nothing breaks; synchronise the clocks anyway",
        )


def _engine(table: Table) -> Iterator[Finding]:
    family = table.family
    if family == "MergeTree":
        yield Finding(Level.OK, f"engine {table.engine}")
    elif family == "ReplacingMergeTree" and table.resend_harmless:
        yield _warning(
            f"engine {table.engine} by {table.version_column}: rows with an equal sorting key become one",
            "each record lands exactly once; the engine decides which rows stay",
        )
    elif family == "ReplacingMergeTree":
        yield _refused(
            f"engine {table.engine} without a version column that landonce fills: which row stays depends on the order",
            "use MergeTree, or ReplacingMergeTree(version) with a column that comes from the record, such as _offset",
        )
    else:
        why = _WRONG_ENGINES.get(family, "has no deduplication and no atomic inserts")
        yield _refused(f"engine {table.engine} {why}", "use a table of the engine MergeTree")


def _columns(table: Table) -> Iterator[Finding]:
    try:
        mine = filled(table.record_columns)
    except TableUnfit as unfit:
        yield _refused(unfit.what, unfit.command)
    else:
        yield from _filled(table, mine)
    faults = coordinate_faults(table.columns)
    if faults:
        yield _refused(
            f"the coordinates have no column: {', '.join(faults)}",
            f"ALTER TABLE {table.name.sql} ADD COLUMN _topic LowCardinality(String), ADD COLUMN _partition Int32, "
            "ADD COLUMN _offset Int64",
        )
    else:
        yield Finding(Level.OK, "coordinate columns")


def _filled(table: Table, mine: tuple[Column, ...]) -> Iterator[Finding]:
    long = [each.name for each in mine if len(structure([each]).encode()) > MOST_BYTES_OF_A_FIELD]
    if long:
        yield _refused(
            f"the type of column {', '.join(long)} is longer than {MOST_BYTES_OF_A_FIELD} bytes: ClickHouse takes no such request",
            "give the column a DEFAULT and a type that landonce leaves alone, or fewer elements",
        )
    elif mine:
        yield Finding(Level.OK, f"{len(mine)} columns to fill")
    else:
        yield _refused("there is no column to fill", "add a column for at least one field")
    for each in table.columns:
        if each.left_out:
            yield _warning(f"column {each.name} {each.type} always takes its DEFAULT: it cannot be decoded exactly")


def _window(connection: Connection, table: Table) -> Iterator[Finding]:
    name = "replicated_deduplication_window" if table.replicated else "non_replicated_deduplication_window"
    value = table.setting(name)
    if value is None:
        source = "replicated_merge_tree_settings" if table.replicated else "merge_tree_settings"
        sql = f"SELECT value FROM system.{source} WHERE name = {{name:String}}"  # noqa: S608
        rows = connection.ask_if_allowed(sql, {"name": name})
        value = str(rows.column(0)[0].as_py()) if rows is not None and rows.num_rows else ""
    window = int(value or 0)
    change = f"ALTER TABLE {table.name.sql} MODIFY SETTING {name} = {WINDOW}"
    if window == 0:
        yield _refused(f"{name} is 0: ClickHouse ignores tokens", change)
    elif window < _SMALLEST_WINDOW:
        yield _warning(f"{name} is {window}: other writers can push tokens out", change)
    else:
        yield Finding(Level.OK, f"{name} = {window}")


def _partition_key(connection: Connection, table: Table) -> Iterator[Finding]:
    """What could send the same row to another table partition when it is sent again.

    ClickHouse itself refuses a partition key that is not deterministic. What remains are columns that landonce does not send, or that
    take a default: their expressions are followed to the columns of the record.
    """
    expressions = [each for each in key_columns(table) if each.default]
    loose = undetermined(connection, [each.default for each in expressions])
    faults = [each for each in expressions if loose & words(each.default)]
    for each in faults:
        yield _refused(
            f"PARTITION BY {table.partition_key}: column {each.name} takes {each.default_kind} {each.default}, so a row that is sent "
            "again may go to another partition",
            "partition by columns that come from the record",
        )
    if table.partition_key and not faults:
        yield Finding(Level.OK, f"PARTITION BY {table.partition_key}")


def undetermined(connection: Connection, expressions: Sequence[str]) -> frozenset[str]:
    """The functions in these expressions that may give two results for one row."""
    called = sorted({word for each in expressions for word in words(each)})
    if not called:
        return frozenset()
    named = "('deterministic', 'is_deterministic')"
    sql = f"SELECT name FROM system.columns WHERE database = 'system' AND table = 'functions' AND name IN {named}"  # noqa: S608
    known = connection.ask(sql).column(0).to_pylist()
    always = f"ifNull({known[0]}, 1)" if known else "1"
    sql = f"SELECT name FROM system.functions WHERE name IN {{names:Array(String)}} AND NOT {always}"  # noqa: S608
    return frozenset(connection.ask(sql, {"names": called}).column(0).to_pylist())


def _reading(connection: Connection, table: Table) -> Iterator[Finding]:
    """What makes a probe slow, or not enough."""
    sql = "SELECT count() FROM system.data_skipping_indices WHERE database = {d:String} AND table = {t:String} AND expr = '_offset'"
    if not table.sorting_key.replace("`", "").startswith("_topic"):
        indexed = connection.ask_if_allowed(sql, {"d": table.name.database, "t": table.name.name})
        if indexed is not None and not indexed.column(0)[0].as_py():
            yield _warning(
                "_offset has no index: after a doubt the whole table is read",
                f"ALTER TABLE {table.name.sql} ADD INDEX landonce_offset _offset TYPE minmax GRANULARITY 1; "
                f"ALTER TABLE {table.name.sql} MATERIALIZE INDEX landonce_offset",
            )
    if table.ttl:
        ages = _warning(
            f"the table has a TTL ({table.ttl}): a block of which rows have expired cannot be proven after a doubt",
            "keep the TTL well above the age of the records and the longest stop of the pipeline",
        )
        yield from tuple(_expiry(connection, table)) or (ages,)
    for view in table.views:
        yield _warning(
            f"materialized view {view} gets every insert, and is not part of the guarantee: landonce does not read it after a doubt",
            "where it fails the run halts (ViewRefused); after a crash compare it with the table. Its own table needs a deduplication "
            "window, or an insert that is sent again counts twice in it",
        )


def _expiry(connection: Connection, table: Table) -> Iterator[Finding]:
    """Whether the TTL removes a row whose times are all of this moment. Only what deletes rows counts; ClickHouse computes it."""
    types = {each.name: each.type for each in table.columns}
    for rule in split_list(table.ttl):
        expression, _, action = _TTL_ACTION.sub("\0", rule).partition("\0")
        named = [word for word in sorted(words(expression)) if word in types or f"{word}(" not in expression]
        given = ", ".join(f"CAST(now(), {literal(types.get(each, 'DateTime'))}) AS {quoted(each)}" for each in named)
        sql = f"SELECT toDateTime({expression}) <= now() FROM (SELECT {given or '1'})"  # noqa: S608
        try:
            gone = not action.strip() and connection.one(sql)
        except TargetRefused:  # not of times alone: a warning says what a TTL means
            continue
        if gone:
            yield _refused(
                f"the TTL ({rule.strip()}) removes rows as they arrive: a block that landed could not be proven after a doubt",
                "give rows time to stay, such as ts + INTERVAL 30 DAY",
            )


_TTL_ACTION = re.compile(r"\b(DELETE\s+WHERE|GROUP BY|RECOMPRESS|TO DISK|TO VOLUME|WHERE|DELETE)\b", re.IGNORECASE)


def _replicas(connection: Connection, table: Table, cluster: str) -> Iterator[Finding]:
    if not table.replicated:
        return
    if not cluster:
        yield _warning(
            "a replicated table without `cluster`: inserts that run on other replicas are neither seen nor killed",
            "set `cluster`, or name one fixed replica in the url",
        )
    asked = {"database": table.name.database, "name": table.name.name}
    stopped = connection.ask_if_allowed(_READ_ONLY, asked)
    for replica in stopped.column(0).to_pylist() if stopped is not None else ():
        yield _warning(
            f"the replica {replica} is read-only: it is not done starting, or has lost Keeper. A run waits for it, and ends after `stall`",
            "look at system.replicas, at the server's log and at Keeper",
        )
    quorum = connection.one("SELECT value FROM system.settings WHERE name = 'insert_quorum'")
    if quorum in ("0", ""):
        yield _warning(
            "insert_quorum is 0: an acknowledged block is on one replica, and is lost with it",
            "set insert_quorum: auto under `settings` if a lost replica must not lose rows",
        )


def place_of(connection: Connection, name: TableName) -> str:
    """What a table on a server has in common with itself under another name of the server, and with no other."""
    sql = "SELECT concat(toString(serverUUID()), toString(data_paths)) FROM system.tables WHERE database = {database:String} AND name = {name:String}"
    return str(connection.one(sql, {"database": name.database, "name": name.name}))


def _servers(connection: Connection, table: Table) -> Iterator[Finding]:
    """Each request has a connection of its own, so that a load balancer may pass each to another server."""
    answered = {place_of(connection, table.name) for _ in range(_SERVER_QUESTIONS)}
    if len(answered) == 1 or table.engine.startswith("Shared"):
        return
    if not table.replicated:
        yield _refused(
            f"the url stands for several servers, and each has a table {table.name} of its own: rows that one of them holds are not "
            "found on the others, and would be written again",
            "name one server in the url; or the shards, in `endpoints`",
        )
    else:
        yield _warning(
            "the url stands for several servers: after a doubt, one whose replica is behind may not show a block that landed, and the "
            "block would be written again",
            "name one fixed replica in the url",
        )


def _rights(connection: Connection, table: Table) -> Iterator[Finding]:
    """Grants and row policies of the user who asks."""
    user = connection.one("SELECT currentUser()")
    needed = [f"INSERT ON {table.name.sql}", f"SELECT ON {table.name.sql}", "SELECT ON system.processes"]
    if table.replicated:
        needed.append(f"SYSTEM SYNC REPLICA ON {table.name.sql}")
    missing = [right for right in needed if not connection.granted(right)]
    for right in missing:
        yield _refused(f"user {user} lacks {right.replace('`', '')}", f"GRANT {right} TO {quoted_user(user)}")
    if not missing:
        yield Finding(Level.OK, f"user {user} may insert, select, and see running inserts")
    if not connection.granted("KILL QUERY ON *.*"):
        yield _warning(
            f"user {user} lacks KILL QUERY: it can end only inserts that it sent itself",
            f"GRANT KILL QUERY ON *.* TO {quoted_user(user)}, before the pipeline ever changes its user",
        )
    policies = connection.ask_if_allowed(_POLICIES, {"database": table.name.database, "name": table.name.name})
    if policies is None:
        yield _warning(
            f"user {user} may not see row policies: rows could be hidden from it, and would be written again",
            f"GRANT SELECT ON system.row_policies TO {quoted_user(user)}; GRANT SHOW ROW POLICIES ON {table.name.sql} TO {quoted_user(user)}",
        )
    for name in policies.column(0).to_pylist() if policies is not None else ():
        yield _refused(
            f"row policy {name} can hide rows from {user}, which would then be written again",
            f"ALTER ROW POLICY so that it does not apply to {user}",
        )
