"""The errors of a handler that refuses, and two helpers that they need."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from landonce.consumer.handler import Step
from landonce.errors import Fenced, OffsetOutOfStep, TransactionUnsettled
from landonce.protocol.ranges import Partition

_ROLL_BACK = "Nothing of this transaction may be committed: roll it back."


def fenced(*partitions: Partition) -> Fenced:
    return Fenced(
        f"{', '.join(map(str, partitions))}: belongs to another consumer now.",
        safe=_ROLL_BACK,
        command="drop the records of it that you hold, and continue to poll",
    )


def out_of_step(partition: Partition, found: int | None, step: Step) -> OffsetOutOfStep:
    return OffsetOutOfStep(
        f"{partition}: offset {step.offset} was to follow {step.previous}, and the stored offset is {found}: a "
        "transaction was taken for committed and was not, or somebody else changed the offset.",
        safe=_ROLL_BACK,
        command="call store.rewind(), and continue to poll",
    )


def ended_inside() -> TransactionUnsettled:
    return TransactionUnsettled(
        "the transaction was ended inside its block, and its outcome is unknown.",
        safe="Nothing was lost: the next poll continues from the stored offset.",
        command="leave COMMIT and ROLLBACK to store.transaction(), which rolls back after an exception; drop the "
        "records that you hold, and continue to poll",
    )


def behind(failure: DBAPIError) -> str:
    """The database driver's own message, in one line: SQLAlchemy's would contain the statement and its values."""
    lines = str(failure.orig).strip().splitlines()
    return lines[0].strip() if lines else type(failure.orig).__name__


def autocommits(connection: Connection) -> bool:
    """Whether each statement of this connection commits by itself. SQLite engines may send BEGIN in events."""
    if not connection.in_transaction():
        connection.execute(select(1))
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return driver.isolation_level is None and not driver.in_transaction
    return connection.dialect.detect_autocommit_setting(driver)
