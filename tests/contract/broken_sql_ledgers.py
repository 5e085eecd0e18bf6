"""SQL ledgers that each lack one guarantee that only a database has. The kit has a broken ledger for each of its cases."""

from __future__ import annotations

from sqlalchemy import and_, select

from landonce.ledger.sql import SqlLedger
from landonce.ledger.tables import pipeline_table, position_table, state_of
from landonce.protocol.ledger import fenced


def blind_to(part: str) -> type[SqlLedger]:
    """A compare-and-set that leaves out one part of the key."""

    class BlindSql(SqlLedger):
        def _comparison(self, old):
            parts = {name: getattr(old, name) for name in ("pipeline", "epoch", "owner", "version", "lineage")}
            del parts[part]
            return and_(*(pipeline_table.c[name] == value for name, value in parts.items()))

    return BlindSql


class TornReader(SqlLedger):
    """Reads the two tables at two moments."""

    def _read(self):
        with self.database.reading() as connection:
            row = connection.execute(select(pipeline_table)).one()
        with self.database.reading() as connection:
            return state_of(row, connection.execute(select(position_table)).all())


class Forgetful(SqlLedger):
    """Does not settle an attempt without an answer: it just sends again."""

    def _change(self, old, new, note):
        if self._swap(old, new, note):
            return new
        raise fenced(old, self._read())
