"""Sinks whose transaction covers the rows of a block and its row in the ledger.

A worker opens a `BlockTransaction`, and `settle_block` drives it as `protocol.transact` says. The driver opens a `TransactionalTable`. The
ledger is in the same database, and has a row for each block of the pending plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from landonce import errors
from landonce.config.secrets import redact
from landonce.failpoints import reach
from landonce.ledger.plain_sql import BlockKey
from landonce.protocol import transact
from landonce.protocol.block_rows import BlockRow, Claim
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Fate, Receipt, Want, unbalanced
from landonce.protocol.target import TargetView
from landonce.protocol.transact import Transacting, TransactStage
from landonce.read.block import ReadBlock, Reader
from landonce.read.decoding import decode_by
from landonce.read.rows import fit_to
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import CreatedTable, Guarantee, PlacedRows, Sink
from landonce.sinks.run import Columns, OpenSink, Run, SourceAndTarget, SparkNeeds, refuse_unfit
from landonce.sinks.worker import BlockWorker, OneTable, Refuse, Task

if TYPE_CHECKING:
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.promise import Promise

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


class ExamineAgain(Want):
    """The table was altered, and has to be examined again."""


class BlockTransaction(ABC):
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


Opened = Callable[[], BlockTransaction]


def settle_block(opened: Opened, claim: Claim, receipt: str, rows: pa.Table, where: str) -> Transacting:
    """Returns once the block's fate is known. Raises `Altered` if the driver has to examine the table first."""
    try:
        return settle_rows(opened, claim, receipt, rows, where)
    except Trouble as trouble:
        raise as_error(trouble, where) from None


def settle_rows(opened: Opened, claim: Claim, receipt: str, rows: pa.Table, where: str) -> Transacting:
    """As `settle_block`, but raises `Trouble` itself if rows are to blame, so that the caller can search for them."""
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
    raise errors.TargetUnavailable(f"{where}: {_UNANSWERED} times in a row, COMMIT was not answered.")


def _through(
    writer: BlockTransaction, settling: Transacting, claim: Claim, receipt: str, rows: pa.Table
) -> Transacting:
    """One transaction, up to a fate or an unanswered COMMIT."""
    while settling.fate is None:
        if settling.stage is TransactStage.FLIP:
            reach("flip.before")
            settling = transact.after_flip(settling, flipped=writer.flip(claim, receipt))
            reach("flip.after")
        elif settling.stage is TransactStage.READ:
            settling = transact.after_read(settling, writer.read(), claim)
            if settling.stage is TransactStage.FLIP:
                return settling
        elif settling.stage is TransactStage.ROWS:
            if not writer.unaltered():
                raise Altered
            if rows.num_rows:
                writer.write(rows)
            settling = transact.after_rows(settling)
            reach("rows.after")
        else:
            answered = True
            try:
                writer.commit()
            except Trouble as trouble:
                if trouble.answered:  # the database answered with an error: the transaction is rolled back
                    raise
                answered = False
            settling = transact.after_commit(settling, answered=answered)
            if not answered:
                return settling
            reach("landed.after")
    return settling


def as_error(trouble: Trouble, where: str) -> errors.LandonceError:
    """As the error that the user sees. `where`: the block, or the record in it that the database blames."""
    if trouble.passing:
        return errors.TargetUnavailable(f"{where}: {trouble.said}")
    if trouble.blame is Blame.TWICE:
        return errors.DuplicatePresent(
            f"{where}: {trouble.said}.",
            safe="Nothing of the block was written. Something else wrote a row with these coordinates, or with the same "
            "value under a unique key.",
            command="landonce verify {file}   (lists coordinates that are already there; remove the row, then run "
            "again)",
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


# The sink, on the driver and on a worker.


class TransactionalTable(PlacedRows, CreatedTable):
    """One table of a database, as the driver sees it."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether the table is there."""

    def close(self) -> None:
        """Gives connections back."""


@runtime_checkable
class LedgerOfBlocks(Protocol):
    """What a ledger beside the rows has, beyond `Ledger`: a row for each block of the pending plan (`PlainSqlLedger`)."""

    def blocks(self, batch: int) -> tuple[BlockRow, ...]: ...

    def make_tables(self) -> bool: ...


class TransactionalSink(Sink):
    """A table in a database whose transaction covers the rows of a block and its row in the ledger.

    `open_ledger` and `open_query_ledger` return a `Ledger` in the same database that is a `LedgerOfBlocks`, too.
    """

    guarantee = Guarantee.TRANSACTIONAL
    table: str
    key: tuple[str, ...] = ()
    """The columns by which rows are changed; empty where rows are only added. Then blocks of a partition come in order."""

    @abstractmethod
    def open_table(self) -> TransactionalTable:
        """On the driver."""

    @abstractmethod
    def open_block(self, block: BlockKey) -> BlockTransaction:
        """On a worker, for one block: one connection."""

    def open(self, run: Run) -> OpenTransactional:
        return OpenTransactional(self, run)

    def promise(self, config: Pipeline) -> Promise:
        from landonce.sinks.promise import of_transactional

        return of_transactional(config, keyed=bool(self.key))

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks import checking

        return checking.of_transactional(run, self)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.operations import TransactionalOperations

        return TransactionalOperations(parts, sessions, self)


@dataclass(frozen=True, kw_only=True)
class TransactionTask(Task):
    """One block to be landed in a transaction."""

    claim: Claim
    final: bool = False
    """Columns were added already: what the table does not know now is left out."""


@dataclass(frozen=True, kw_only=True)
class TransactionRecipe(OneTable[TransactionTask]):
    """Of a table in a database."""

    sink: TransactionalSink

    def worker(self, task: TransactionTask) -> BlockWorker:
        return TransactionWorker(self, task)


@dataclass(frozen=True)
class TransactionWorker(BlockWorker):
    """Lands one block in one transaction. A task that Spark runs again does the same again: the block's row says whether it landed."""

    recipe: TransactionRecipe
    task: TransactionTask

    def reader(self) -> Reader:
        recipe = self.recipe
        decode = decode_by(recipe.source, recipe.decoding)
        return Reader.of_one(recipe.sink.table, decode, fit_to(recipe.target))

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        del refuse
        rows = block.rows(self.recipe.sink.table)
        receipt = replace(receipt, landed=rows.num_rows)
        if not receipt.balanced:
            raise unbalanced(self.task.block, receipt)
        try:
            settled = settle_block(self.open, self.task.claim, receipt.to_json(), rows, self.where)
        except Altered:
            return self.waiting()
        return self.result(settled, receipt)

    def waiting(self) -> BlockResult:
        """Nothing was written: the table was altered, and the driver examines it again."""
        return BlockResult(self.task.index, Fate.WAITING, wants=(ExamineAgain(),))

    def open(self) -> BlockTransaction:
        block = BlockKey(self.recipe.pipeline, self.task.batch, self.task.block.number)
        return self.recipe.sink.open_block(block)

    @property
    def where(self) -> str:
        return f"block {self.task.block}"

    def result(self, settled: Transacting, receipt: Receipt) -> BlockResult:
        """An earlier run of the task may have landed the block: then its receipt counts."""
        if settled.fate is not Fate.LANDED:
            return BlockResult(self.task.index, Fate.HALTED, error=fenced(self.recipe.pipeline, self.task))
        known = Receipt.from_json(settled.settled) if settled.settled else receipt
        return BlockResult(self.task.index, Fate.LANDED, known)


def fenced(pipeline: str, task: TransactionTask) -> errors.Fenced:
    """What a worker hears whose block is another driver's by now."""
    return errors.Fenced(
        f"pipeline {pipeline!r} was taken over: block {task.block} of batch {task.batch} is not claimed by epoch "
        f"{task.claim.epoch} any more.",
        safe="Its transaction was rolled back, and this driver stops. Nothing is lost: the newer driver continues.",
    )


class OpenTransactional(OpenSink):
    """A table, opened on the driver: `recipe`, `look`, and the blocks' rows."""

    recipe: TransactionRecipe

    def __init__(self, sink: TransactionalSink, run: Run) -> None:
        super().__init__(run)
        if not isinstance(run.ledger, LedgerOfBlocks):
            raise TypeError("the ledger of a database is in it, and keeps a row for each block")
        self.sink, self.ledger = sink, run.ledger
        self.table = sink.open_table()

    def columns_to_make(self) -> Columns | None:
        if not self.sink.create or self.table.exists():
            return None
        return self.run.columns(self.table.creation)

    def spark(self) -> SparkNeeds:
        return SparkNeeds((self.sink.__class__.__module__, "landonce.sinks.transactional"))

    def make_ready(self, columns: Columns | None) -> None:
        if columns is not None:
            self.make(columns())
        self.recipe = self.examined()
        if self.ledger.make_tables():
            self.recipe = self.examined()

    def make(self, columns: Schema) -> None:
        """Makes the table, once the expressions are known to be sound."""
        self.table.creation(columns)
        basics = self.run.basics
        if basics["select"] or basics["where"] is not None:
            source = self.run.declared or columns
            self.run.examine(SourceAndTarget(source, columns, basics["select"], basics["where"]))
        self.table.create(columns)

    def examined(self) -> TransactionRecipe:
        """The recipe for the table as it is now, if it is fit."""
        refuse_unfit(self.table.check())
        taken = self.table.schema()
        self.run.refuse_misfits(taken, self.sink.table)
        return TransactionRecipe(**self.run.basics, source=self.run.source(taken), target=taken, sink=self.sink)

    def examine_again(self) -> None:
        """The table was altered while the pipeline runs."""
        self.recipe = self.examined()

    def add(self, wants: Iterable[Want]) -> None:
        """Adds the columns that blocks wait for (`BlockWorker.wants`), and examines the table again."""
        del wants
        self.examine_again()

    def blocks(self, batch: int) -> tuple[BlockRow, ...]:
        """What the ledger says of the blocks of a pending batch."""
        return self.ledger.blocks(batch)

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        return self.table.look(floors)

    def close(self) -> None:
        self.table.close()
