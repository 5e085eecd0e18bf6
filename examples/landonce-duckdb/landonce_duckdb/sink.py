"""The sink: a table in a DuckDB file, and landonce's ledger beside it. A block's rows and its row in the ledger are one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from landonce import plugin
from landonce.errors import TargetUnavailable
from landonce.plugin import COORDINATES, Field, Schema
from landonce_duckdb.file import Connection, connect, transaction

_COORDINATES = pa.schema([("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())])
_RANGE = "_topic = ? AND _partition = ? AND _offset >= ?"


class DuckDbLedger(plugin.PlainSqlLedger):
    """landonce's ledger in plain SQL, in the file of the table."""

    def __init__(self, path: Path, pipeline: str) -> None:
        super().__init__(pipeline)
        self._path = path

    @contextmanager
    def writing(self) -> Iterator[plugin.Execute]:
        with transaction(self._path) as connection:
            yield connection.execute

    @contextmanager
    def reading(self) -> Iterator[plugin.Execute | None]:
        if not self._path.exists():
            yield None
            return
        with transaction(self._path) as connection:
            yield connection.execute if connection.has("landonce_blocks") else None


class DuckDbTable(plugin.TransactionalTable):
    """The table as the driver sees it. Each question opens the file, and closes it again."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    def exists(self) -> bool:
        if not self._path.exists():
            return False
        with transaction(self._path) as connection:
            return connection.has(self._name)

    def create(self, columns: Schema) -> None:
        """DuckDB takes the types from Arrow."""
        empty = pa.schema([*_COORDINATES, *columns.arrow]).empty_table()
        with transaction(self._path) as connection:
            if connection.has(self._name):
                return
            connection.sql.register("columns_to_make", empty)
            connection.execute(f"CREATE TABLE {quoted(self._name)} AS SELECT * FROM columns_to_make")
            for each in (*_COORDINATES.names, *(field.name for field in columns.fields if field.required)):
                connection.execute(f"ALTER TABLE {quoted(self._name)} ALTER {quoted(each)} SET NOT NULL")

    def creation(self, columns: Schema) -> str:
        return f"{self._name} ({', '.join([*COORDINATES, *(each.name for each in columns.fields)])})"

    def schema(self) -> Schema:
        with transaction(self._path) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = connection.execute(f"DESCRIBE {quoted(self._name)}")
            arrow = connection.sql.sql(f"SELECT * FROM {quoted(self._name)} LIMIT 0").to_arrow_table().schema
        types = {name: pa.uuid() if type_ == "UUID" else arrow.field(name).type for name, type_, *_ in found}
        required = {name: nullable == "NO" for name, _, nullable, *_ in found}
        return Schema(tuple(Field(each, types[each], required[each]) for each in types if each not in COORDINATES))

    def check(self) -> tuple[plugin.Finding, ...]:
        with transaction(self._path) as connection:
            types = {name: type_ for name, type_, *_ in connection.execute(f"DESCRIBE {quoted(self._name)}")}
        wanted = {"_topic": "VARCHAR", "_partition": "INTEGER", "_offset": "BIGINT"}
        lacking = [f"{name} {type_}" for name, type_ in wanted.items() if types.get(name) != type_]
        what = f"{self._name} lacks the columns {', '.join(lacking)}"
        change = "; ".join(f"ALTER TABLE {quoted(self._name)} ADD COLUMN {each}" for each in lacking)
        return (plugin.Finding(plugin.Level.REFUSED, what, change),) if lacking else ()

    def look(self, floors: Iterable[tuple[plugin.Partition, int]]) -> plugin.TargetView:
        asked = f"SELECT max(_offset) FROM {quoted(self._name)} WHERE {_RANGE}"
        with transaction(self._path) as connection:
            found = [(each, connection.execute(asked, [each.topic, each.number, at])[0][0]) for each, at in floors]
        return plugin.TargetView(tuple((each, last + 1) for each, last in sorted(found) if last is not None))

    def count(self, ranges: Iterable[plugin.Range]) -> int:
        asked = f"SELECT count(*) FROM {quoted(self._name)} WHERE {_RANGE} AND _offset < ?"
        values = [(each.partition.topic, each.partition.number, each.first, each.end) for each in ranges]
        with transaction(self._path) as connection:
            return sum(connection.execute(asked, each)[0][0] for each in values)


class DuckDbBlock(plugin.BlockTransaction):
    """One block's transaction. The file is open, and locked, from `flip` to `close`."""

    def __init__(self, path: Path, table: str, place: plugin.BlockKey) -> None:
        self._path = path
        self._table = table
        self._place = place
        self._opened: Connection | None = None

    @property
    def _connection(self) -> Connection:
        if self._opened is None:
            self._opened = connect(self._path)
            self._opened.execute("BEGIN")
        return self._opened

    def flip(self, claim: plugin.Claim, receipt: str) -> bool:
        with telling():
            return plugin.flip_block(self._connection.execute, self._place, claim, receipt)

    def read(self) -> plugin.BlockRow | None:
        with telling():
            return plugin.read_block(self._connection.execute, self._place)

    def write(self, rows: pa.Table) -> None:
        with telling():
            self._connection.sql.register("block_rows", rows)
            self._connection.execute(f"INSERT INTO {quoted(self._table)} BY NAME SELECT * FROM block_rows")

    def commit(self) -> None:
        with telling(answered=False):
            self._connection.execute("COMMIT")

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


@dataclass(frozen=True)
class DuckDbSink(plugin.TransactionalSink):
    """A table in a file. Holds names, and nothing that is open."""

    path: Path
    table: str
    create: bool = False

    @property
    def identity(self) -> str:
        return f"duckdb {self.path}#{self.table}"

    def open_table(self) -> DuckDbTable:
        return DuckDbTable(self.path, self.table)

    def open_block(self, place: plugin.BlockKey) -> DuckDbBlock:
        return DuckDbBlock(self.path, self.table, place)

    def open_ledger(self, config: Any) -> DuckDbLedger:
        return DuckDbLedger(self.path, config.pipeline)

    def open_query_ledger(self, where: object, name: str) -> DuckDbLedger:
        del where
        return DuckDbLedger(self.path, name)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def telling(*, answered: bool = True) -> Iterator[None]:
    """DuckDB's errors, as the port wants them. `answered`: the transaction is certainly over, and nothing of it holds."""
    try:
        yield
    except duckdb.ConstraintException as error:
        raise plugin.Trouble(str(error), passing=False, answered=answered, blame=plugin.Blame.ROW) from error
    except (duckdb.IOException, duckdb.TransactionException, TargetUnavailable) as error:
        raise plugin.Trouble(str(error), passing=True, answered=answered) from error
    except duckdb.Error as error:
        raise plugin.Trouble(str(error), passing=False, answered=answered) from error
