"""The port to a database: one block's transaction on one connection, and the loop that drives it as `protocol.transact` decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from landonce import errors
from landonce.config.secrets import redact
from landonce.failpoints import reach
from landonce.protocol import transact
from landonce.protocol.block_rows import BlockRow, Claim, Mark
from landonce.protocol.transact import Stage, Transacting
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.sinks.contract import COORDINATES
from landonce.sinks.sql.fingerprint import fingerprint_statements, lock_statement, table_fingerprint
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.sql.statements import BlockKey, Syntax, read_statement

_UNANSWERED = 5
"""After so many unanswered commits in a row the worker gives up, and the driver decides."""


class Blame(str, Enum):
    """What is at fault when a database refuses rows."""

    ROW = "a row, which can never be there: a CHECK, a NULL, a value out of range"
    OTHERS = (
        "a row beside what is there now: a foreign key without its row, or the other way around; no partition for it"
    )
    TWICE = "a row that is there already, by its coordinates or another unique key"
    ELSE = "something else"


class Trouble(Exception):
    """The database or the connection failed. `passing`: it may work later. `answered`: the database itself said so, and the transaction
    is over. `missing`: there is no such table."""

    def __init__(
        self, said: str, *, passing: bool, answered: bool, blame: Blame = Blame.ELSE, missing: bool = False
    ) -> None:
        super().__init__(redact(said))
        self.said = redact(said)
        self.passing = passing
        self.answered = answered
        self.blame = blame
        self.missing = missing


class Altered(Exception):
    """The table was altered after the driver examined it. Nothing was written."""


class BlockWriter(ABC):
    """One connection. Every method except `close` may raise `Trouble`; the open transaction is then rolled back."""

    @abstractmethod
    def flip(self, claim: Claim, receipt: str) -> bool:
        """Begins the transaction and flips the block's row to AFTER. False: the row has another claim, or is flipped already."""

    @abstractmethod
    def read(self) -> BlockRow | None:
        """The block's row."""

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Writes the rows, in the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Returns once the database confirmed the commit."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection, and with it an open transaction."""

    def unaltered(self) -> bool:
        """Whether the table is as it was examined. Called in the transaction, before any row; from then on the table cannot be altered
        until the transaction ends."""
        return True

    def savepoint(self, statement: str) -> None:
        """Runs `SAVEPOINT …`, `ROLLBACK TO …` or `RELEASE …`. Needed only if `Trouble` blames rows."""
        raise NotImplementedError(statement)


class StatementWriter(BlockWriter):
    """A database that takes SQL as text: what PostgreSQL, SQLite, MySQL and MariaDB have in common."""

    syntax: Syntax
    failures: type[Exception]
    """What the Python driver raises."""

    def __init__(self, sink: SqlSink, block: BlockKey) -> None:
        self._sink, self._block = sink, block

    @abstractmethod
    def _ask(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        """Runs a statement that yields rows."""

    @abstractmethod
    def _do(self, statement: str) -> None:
        """Runs a statement that yields none."""

    @abstractmethod
    def _trouble(self, error: Any) -> Trouble: ...

    @abstractmethod
    def _add(self, rows: pa.Table) -> None:
        """Adds rows."""

    @abstractmethod
    def _change(self, rows: pa.Table, deleted: pa.Table) -> None:
        """Changes rows by their key. `deleted`: keys and coordinates of deletions.

        Deletes first: a deleted row may hold a value under another unique key that a new row needs. Deletes again afterwards, because the
        table may take two different keys of this block for one (CITEXT, collations): coordinates say which change is later.
        """

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise self._trouble(error) from None

    def unaltered(self) -> bool:
        if not self._sink.examined:
            return True
        try:
            self._do(lock_statement(self.syntax, self._sink.table))
            rows = [row for each in fingerprint_statements(self._sink) for row in self._ask(*each)]
        except Trouble as trouble:
            if trouble.missing:
                return False
            raise
        return table_fingerprint(rows) == self._sink.examined

    def read(self) -> BlockRow | None:
        for number, epoch, owner, mark, receipt in self._ask(*read_statement(self.syntax, self._block)):
            return BlockRow(number, Claim(epoch, owner), Mark(mark), receipt)
        return None

    def write(self, rows: pa.Table) -> None:
        if not self._sink.key:
            self._add(rows)
            return
        gone = pc.equal(rows.column(OPERATION), DELETE)
        rows = rows.drop_columns([OPERATION])
        self._change(rows.filter(pc.invert(gone)), rows.filter(gone).select([*self._sink.key, *COORDINATES]))

    def savepoint(self, statement: str) -> None:
        self._do(statement)


Opened = Callable[[], BlockWriter]


def settle_block(opened: Opened, claim: Claim, receipt: str, rows: pa.Table, where: str) -> Transacting:
    """Returns once the block's fate is known."""
    try:
        return settle_rows(opened, claim, receipt, rows, where)
    except Trouble as trouble:
        raise as_error(trouble, where) from None
    except Altered:
        raise errors.TableUnfit(
            f"{where}: the table was altered since it was examined.",
            safe="Nothing of the block was written; the position did not move.",
            command="start again: the table is examined again",
        ) from None


def settle_rows(opened: Opened, claim: Claim, receipt: str, rows: pa.Table, where: str) -> Transacting:
    """As `settle_block`, but raises `Altered` itself, and `Trouble` itself if rows are to blame, so that the caller can search for them."""
    settling = transact.begin()
    for _ in range(_UNANSWERED):
        try:
            writer = opened()
            try:
                settling = _through(writer, settling, claim, receipt, rows)
            finally:
                writer.close()
        except Trouble as trouble:
            if trouble.blame is not Blame.ELSE:
                raise
            raise as_error(trouble, where) from None
        if settling.fate is not None:
            return settling
    raise errors.TargetUnavailable(f"{where}: {_UNANSWERED} times COMMIT was not answered.")


def _through(writer: BlockWriter, settling: Transacting, claim: Claim, receipt: str, rows: pa.Table) -> Transacting:
    """One transaction, up to a fate or an unanswered COMMIT."""
    while settling.fate is None:
        if settling.stage is Stage.FLIP:
            reach("flip.before")
            settling = transact.after_flip(settling, flipped=writer.flip(claim, receipt))
            reach("flip.after")
        elif settling.stage is Stage.READ:
            settling = transact.after_read(settling, writer.read(), claim)
            if settling.stage is Stage.FLIP:
                return settling
        elif settling.stage is Stage.ROWS:
            if not writer.unaltered():
                raise Altered
            if rows.num_rows:
                writer.write(rows)
            settling = transact.after_rows(settling)
            reach("rows.after")
        else:
            answered = _commit(writer)
            settling = transact.after_commit(settling, answered=answered)
            if not answered:
                return settling
            reach("landed.after")
    return settling


def _commit(writer: BlockWriter) -> bool:
    """Whether the commit was confirmed. Raises if the database answered with an error: then the transaction is rolled back."""
    try:
        writer.commit()
    except Trouble as trouble:
        if trouble.answered:
            raise
        return False
    return True


def as_error(trouble: Trouble, where: str) -> errors.LandonceError:
    """As the error that the user sees. `where`: the block, or the record in it that the database blames."""
    if trouble.passing:
        return errors.TargetUnavailable(f"{where}: {trouble.said}")
    if trouble.blame is Blame.TWICE:
        return errors.DuplicatePresent(
            f"{where}: {trouble.said}.",
            safe="Nothing of the block was written. Something else wrote a row with these coordinates, or with the same "
            "value under a unique key.",
            command="landonce verify {file}   (names coordinates that are there already; remove the row, then run again)",
        )
    if trouble.blame is Blame.OTHERS:
        return errors.TargetRefused(
            f"{where}: {trouble.said}.",
            safe="Nothing of the block was written; the position did not move. The database may accept the row later, so it is not "
            "a dead letter.",
            command="add what it lacks (the row that it refers to, a partition for it), or drop the foreign key, then: "
            "landonce run {file}",
        )
    return errors.TargetRefused(
        f"{where}: the database refused its rows: {trouble.said}.",
        safe="Nothing of the block was written; the position did not move.",
        command="fix what the database names, then: landonce run {file}",
    )


def rows_left_out(taken: int, sent: int) -> Trouble:
    """The database reported no error and did not take all rows."""
    return Trouble(
        f"the database took {taken} of {sent} rows and reported no error: a trigger leaves rows out",
        passing=False,
        answered=True,
        blame=Blame.ROW,
    )


def open_writer(sink: SqlSink, block: BlockKey) -> BlockWriter:
    """Opens one connection for one block. Only the driver of this database is imported."""
    if sink.dialect == "postgresql":
        from landonce.sinks.sql.postgres import PostgresWriter

        return PostgresWriter(sink, block)
    if sink.dialect == "sqlite":
        from landonce.sinks.sql.rows import SqliteWriter

        return SqliteWriter(sink, block)
    if sink.dialect == "yql":
        from landonce.sinks.sql.ydb import YdbWriter

        return YdbWriter(sink, block)
    from landonce.sinks.sql.mysql import MySqlWriter

    return MySqlWriter(sink, block)
