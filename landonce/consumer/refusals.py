"""The sentences of a handler that refuses, and the two questions that they rest on."""

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
        command="drop the records that you hold of it, and poll on",
    )


def out_of_step(partition: Partition, found: int | None, step: Step) -> OffsetOutOfStep:
    return OffsetOutOfStep(
        f"{partition}: offset {step.offset} was to follow {step.previous}, and what is stored is {found}: a transaction "
        "was taken for committed and was not, or somebody else changed the offset.",
        safe=_ROLL_BACK,
        command="store.rewind(), and poll on",
    )


def ended_inside() -> TransactionUnsettled:
    return TransactionUnsettled(
        "the transaction was ended inside of its block, and nobody can tell how.",
        safe="Nothing was lost: the next poll goes on from what is stored.",
        command="leave COMMIT and ROLLBACK to store.transaction(), which rolls back after an exception; drop the records "
        "that you hold, and poll on",
    )


def behind(failure: DBAPIError) -> str:
    """The driver's own words, one line: SQLAlchemy's would hold the statement and its values."""
    lines = str(failure.orig).strip().splitlines()
    return lines[0].strip() if lines else type(failure.orig).__name__


def autocommits(connection: Connection) -> bool:
    """Whether statements of this connection are on their own. SQLite's driver may leave BEGIN to the engine's events."""
    if not connection.in_transaction():
        connection.execute(select(1))
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return driver.isolation_level is None and not driver.in_transaction
    return connection.dialect.detect_autocommit_setting(driver)
