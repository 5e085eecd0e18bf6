"""What a table was like when it was examined, so that a block can tell whether it still is. Pure.

An ALTER under a running driver changes what values become (a number in another type, digits that are rounded), which row a change finds
(another unique key) and whether anything rolls back (another engine). A table that takes the place of another may be like it in all of
that, so which table it is (`identity`) is compared, too. A block's transaction first keeps the table from being altered, then compares
it with what the driver examined. YDB is not asked.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import Statement, Words, words_of

_POSTGRES = """
WITH RECURSIVE told AS (SELECT CAST(to_regclass({name}) AS oid) AS id), parts AS (
    SELECT id FROM told UNION SELECT h.inhrelid FROM pg_inherits AS h JOIN parts ON h.inhparent = parts.id
)
SELECT concat_ws(' ', c.oid, c.relkind, c.relpersistence, c.relhasrules, c.relrowsecurity, c.relforcerowsecurity)
FROM pg_class AS c WHERE c.oid = (SELECT id FROM told)
UNION ALL
SELECT concat_ws(' ', 'column', a.attnum, quote_ident(a.attname), a.atttypid, a.atttypmod, a.attcollation, a.attnotnull,
    a.atthasdef, a.attidentity, a.attgenerated, t.typnotnull,
    (SELECT string_agg(quote_literal(e.enumlabel), ',' ORDER BY e.enumsortorder) FROM pg_enum AS e
     WHERE e.enumtypid IN (t.oid, t.typbasetype)))
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = (SELECT id FROM told) AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT concat_ws(' ', 'unique', i.indkey, i.indcollation, i.indclass, i.indisvalid, i.indimmediate, i.indpred IS NULL)
FROM pg_index AS i WHERE i.indrelid = (SELECT id FROM told) AND i.indisunique
UNION ALL
SELECT concat_ws(' ', 'trigger', quote_ident(g.tgname), g.tgtype, g.tgenabled)
FROM pg_trigger AS g WHERE g.tgrelid = (SELECT id FROM told) AND NOT g.tgisinternal
UNION ALL
SELECT concat_ws(' ', 'partition', p.oid, p.relkind, p.relpersistence)
FROM parts JOIN pg_class AS p ON p.oid = parts.id
WHERE p.relispartition AND (p.relkind NOT IN ('r', 'p') OR p.relpersistence <> 'p')
"""
"""By number, not by name, where names depend on the session. Of partitions only those that none should be: others come and go."""
_SQLITE = (
    "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = ? COLLATE NOCASE "
    "UNION ALL SELECT 'schema', schema_version, '' FROM pragma_schema_version"
)
_MYSQL = (
    "SELECT create_time FROM information_schema.tables "
    "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"
)
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")


def holding(words: Words, table: str) -> str:
    """Keeps the table from being altered until the transaction ends, as the first touch does in MySQL, and in SQLite the write lock."""
    if words.dialect == "postgresql":
        return f"LOCK TABLE ONLY {words.table(table)} IN ROW EXCLUSIVE MODE"
    return f"SELECT 1 FROM {words.table(table)} LIMIT 0"  # noqa: S608  (a quoted name)


def asking(sink: SqlSink, mark: str = "") -> tuple[Statement, ...]:
    """What the table is like. `mark`: a parameter of PostgreSQL, where it is not ADBC that asks."""
    words = words_of(sink.dialect)
    if sink.dialect == "postgresql":
        return ((_POSTGRES.format(name=f"CAST({mark or words.parameter(1)} AS text)"), (words.table(sink.table),)),)
    if sink.dialect == "sqlite":
        return ((_SQLITE, (sink.name,)),)
    return (f"SHOW CREATE TABLE {words.table(sink.table)}", ()), (_MYSQL, (sink.schema, sink.name))


def likeness(answer: Iterable[Sequence[Any]]) -> str:
    """Of all answers, in few characters. How far a table has counted says nothing of what it is."""
    told = sorted(_COUNTER.sub("", repr(tuple(row))) for row in answer)
    return hashlib.sha256("\n".join(told).encode()).hexdigest()
