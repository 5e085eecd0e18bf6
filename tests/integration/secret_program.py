"""A program that is given secrets: it pushes into ClickHouse and PostgreSQL, and consumes with tokens of an endpoint. Then it does so with
wrong ones. It says all that it can: reprs, results, logs, errors with their causes.

Its settings come in the variable GIVEN, as JSON; when everything has succeeded, it waits for a line of its input.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from typing import Any

import pyarrow as pa
from sqlalchemy import create_engine, text

import landonce
from landonce.consumer import OffsetStore, SqlOffsets

SCHEMA = pa.schema([("id", pa.int64())])


def pushed(given: dict[str, Any], sink: Any, ledger: str | None) -> None:
    print(repr(sink))
    with landonce.ExactlyOnceSink(sink, ledger, name=given["name"], schema=SCHEMA, stall=10) as once:
        print(repr(once), once.push("p", [{"id": 1}, {"id": 2}], first=0))


def into_clickhouse(given: dict[str, Any]) -> None:
    sink = landonce.clickhouse(given["clickhouse"], "pushed", create=True, ca_cert=given["ca_cert"])
    pushed(given, sink, given["ledger"])


def into_postgres(given: dict[str, Any]) -> None:
    pushed(given, landonce.sql(given["target"], "pushed", create=True), None)


def consumed(given: dict[str, Any]) -> None:
    """Into the database of the target."""
    engine = create_engine(given["target"].replace("postgresql:", "postgresql+psycopg:"))
    handler = SqlOffsets(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS consumed (value TEXT)"))
    seen, until = list[Any](), time.monotonic() + given["seconds"]
    with OffsetStore.connect(given["kafka"], [given["topic"]], handler) as store:
        print(repr(handler), repr(store))
        while len(seen) < 6:
            if time.monotonic() > until:
                raise TimeoutError("no more records came")
            messages = store.consume(10, timeout=0.2)
            with store.transaction() as connection:
                for each in messages:
                    connection.execute(text("INSERT INTO consumed VALUES (:value)"), {"value": str(each.value())})
                store.save_many(messages, connection, metadata=given["name"])
            seen += messages
        print(store.origins(), store.assignment())
    engine.dispose()


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    given = json.loads(os.environ["GIVEN"])
    logging.debug("this is %s", given["name"])
    for act in (into_clickhouse, into_postgres, consumed):
        act(given)
    print("all of it succeeded", flush=True)
    sys.stdin.readline()
    for act, what in ((into_clickhouse, "clickhouse"), (into_clickhouse, "ledger"), (into_postgres, "target"),
                      (consumed, "target"), (consumed, "kafka")):  # fmt: skip
        try:
            act({**given, what: given["wrong"][what], "seconds": 3, "name": f"{given['name']}-again"})
            print("a wrong secret was right:", what)
        except Exception:
            traceback.print_exc()
    print("the end")


if __name__ == "__main__":
    main()
