"""A ledger in YDB, for pipelines whose table is in YDB too. YDB does not count the rows that an update
found, so landonce reads first.

Transactions are serializable and optimistic: no transaction waits for a row, but if two touch the same row, the
later COMMIT is refused. So what a transaction has read still holds when it commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import URL, ColumnElement, Connection, Engine, Executable, Select, create_engine, select, update
from sqlalchemy.exc import DBAPIError

from landonce.errors import LandonceError
from landonce.ledger.database import Database, first_line, refused
from landonce.ledger.tables import SCHEMA_VERSION, pipeline_table, position_table, schema_table

_REFUSED = ("IntegrityError", "ProgrammingError", "DataError", "NotSupportedError")


class YdbDatabase(Database):
    """One database."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._engine: Engine | None = None
        self.place = f"ydb://{url.host or ''}/{url.database or ''}"
        self._secrets = (str(url.password),) if url.password else ()

    @property
    def engine(self) -> Engine:
        """Created at first use: the dialect is an extra."""
        if self._engine is None:
            self._engine = create_engine(self._url.set(drivername="yql+ydb"), hide_parameters=True)
        return self._engine

    def reading(self) -> AbstractContextManager[Connection]:
        return self._transaction("SNAPSHOT READONLY")

    def writing(self) -> AbstractContextManager[Connection]:
        return self._transaction("SERIALIZABLE")

    def creating(self) -> AbstractContextManager[Connection]:
        """YDB creates tables outside transactions; creating an existing one does no harm."""
        return self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def updated(self, connection: Connection, comparison: ColumnElement[bool], values: Mapping[str, Any]) -> bool:
        *mine, _ = comparison.get_children()  # the last one compares the version of the tables, which is read below
        found = connection.execute(select(pipeline_table.c.pipeline).where(*mine)).first()  # type: ignore[arg-type]
        if found is None or connection.scalar(select(schema_table.c.version)) != SCHEMA_VERSION:
            return False
        connection.execute(update(pipeline_table).where(pipeline_table.c.pipeline == found[0]).values(values))
        return True

    def locking(self, rows: Select[Any]) -> Select[Any]:
        """Does not wait: if another transaction changes what was read, the COMMIT fails."""
        return rows

    def upsert_positions(self) -> Executable:
        from ydb_sqlalchemy import upsert

        statement: Executable = upsert(position_table)
        return statement

    def reason(self, failure: DBAPIError) -> str:
        return first_line(failure, self._secrets)

    def fault(self, failure: DBAPIError) -> LandonceError | None:
        return refused(self.place, self.reason(failure)) if type(failure).__name__ in _REFUSED else None

    def no_tables(self, failure: DBAPIError) -> bool:
        return "Cannot find table" in str(failure.orig)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    @contextmanager
    def _transaction(self, isolation: str) -> Iterator[Connection]:
        with self.engine.connect().execution_options(isolation_level=isolation) as connection, connection.begin():
            yield connection
