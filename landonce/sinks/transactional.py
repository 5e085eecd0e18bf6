"""The port: one block's transaction on one connection, and the one way to drive it (`protocol.transact`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

import pyarrow as pa

from landonce import errors
from landonce.config.secrets import redact
from landonce.failpoints import reach
from landonce.protocol import transact
from landonce.protocol.block_rows import BlockRow, Claim
from landonce.protocol.transact import Stage, Transacting

_UNANSWERED = 5
"""Commits in a row that were not answered, before the driver is told."""


class Blame(str, Enum):
    """What is at fault when a database refuses rows."""

    ROW = "a row, which can never be there: a CHECK, a NULL, a value out of range"
    OTHERS = (
        "a row beside what is there now: a foreign key without its row, or the other way around; no partition for it"
    )
    TWICE = "a row that is there already, by its coordinates or another unique key"
    ELSE = "something else"


class Trouble(Exception):
    """The database, or the way to it, failed. `answered`: the database itself said so, and the transaction is over. `missing`: there is
    no such table."""

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
    """The table is not what it was when it was examined. Nothing was written."""


class BlockTransaction(ABC):
    """One connection. Every method but `close` may raise `Trouble`; what is open then is rolled back."""

    @abstractmethod
    def flip(self, claim: Claim, receipt: str) -> bool:
        """Begins the transaction with the block's row. False: it was not claimed so, or is flipped already."""

    @abstractmethod
    def read(self) -> BlockRow | None:
        """What the block's row holds."""

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """The rows, in the transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Returns once it is answered that the transaction holds."""

    @abstractmethod
    def close(self) -> None:
        """Ends the connection, and with it what is open."""

    def unaltered(self) -> bool:
        """In the transaction, before any row: whether the table is as it was examined. From here on it stays so until the end."""
        return True

    def savepoint(self, statement: str) -> None:
        """`SAVEPOINT …`, or back to it. Only where the database blames rows."""
        raise NotImplementedError(statement)


Opened = Callable[[], BlockTransaction]


def settle_block(opened: Opened, claim: Claim, receipt: str, rows: pa.Table, where: str) -> Transacting:
    """Until the block's fate is known."""
    try:
        return settle_rows(opened, claim, receipt, rows, where)
    except Trouble as trouble:
        raise named(trouble, where) from None
    except Altered:
        raise errors.TableUnfit(
            f"{where}: the table was altered since it was examined.",
            safe="Nothing of the block was written; the position did not move.",
            command="start again: the table is examined anew",
        ) from None


def settle_rows(opened: Opened, claim: Claim, receipt: str, rows: pa.Table, where: str) -> Transacting:
    """As `settle_block`, but `Altered` is raised as it is, and so is the `Trouble` where rows are to blame: they can be searched for."""
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
            raise named(trouble, where) from None
        if settling.fate is not None:
            return settling
    raise errors.TargetUnavailable(f"{where}: COMMIT is not answered, again and again.")


def _through(
    writer: BlockTransaction, settling: Transacting, claim: Claim, receipt: str, rows: pa.Table
) -> Transacting:
    """One transaction: to a fate, or to a COMMIT without an answer."""
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


def _commit(writer: BlockTransaction) -> bool:
    """Whether it was answered that the transaction holds. An error of the database itself is an answer too: it does not."""
    try:
        writer.commit()
    except Trouble as trouble:
        if trouble.answered:
            raise
        return False
    return True


def named(trouble: Trouble, where: str) -> errors.LandonceError:
    """`where`: the block, or the record in it that the database blames."""
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
            safe="Nothing of the block was written; the position did not move. The row may be welcome later, so it is no dead "
            "letter.",
            command="add what it lacks (the row that it refers to, a partition for it), or drop the foreign key, then: "
            "landonce run {file}",
        )
    return errors.TargetRefused(
        f"{where}: the database refused its rows: {trouble.said}.",
        safe="Nothing of the block was written; the position did not move.",
        command="mend what the database names, then: landonce run {file}",
    )


def swallowed(taken: int, told: int) -> Trouble:
    """The database said nothing, and did not take all of the rows."""
    return Trouble(
        f"the database took {taken} of {told} rows without a word: a trigger leaves rows out",
        passing=False,
        answered=True,
        blame=Blame.ROW,
    )
