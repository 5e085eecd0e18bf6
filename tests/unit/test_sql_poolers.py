"""What PgBouncer says in PostgreSQL's name: the server is away, and no row is to blame."""

from __future__ import annotations

import adbc_driver_manager
import pytest

from landonce.sinks.sql.postgres import trouble_of
from landonce.sinks.transactional import Blame


def said(text: str, state: str) -> adbc_driver_manager.Error:
    return adbc_driver_manager.OperationalError(
        text, status_code=adbc_driver_manager.AdbcStatusCode.IO, sqlstate=state, details=[]
    )


@pytest.mark.parametrize(
    "text", ["ERROR:  server conn crashed?", "FATAL:  pgbouncer cannot connect to server", "FATAL:  query_wait_timeout"]
)
def test_a_server_that_the_pooler_lost_is_waited_for(text: str) -> None:
    trouble = trouble_of(said(text, "08P01"))
    assert trouble.passing
    assert not trouble.answered, "whether the COMMIT held is not known"
    assert trouble.blame is Blame.ELSE


def test_bytes_that_are_not_of_a_columns_type_are_not_tried_again() -> None:
    trouble = trouble_of(said("ERROR:  insufficient data left in message", "08P01"))
    assert not trouble.passing
    assert trouble.answered
