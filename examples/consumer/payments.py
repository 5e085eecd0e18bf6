"""Adds up payments per account, each exactly once: KAFKA and DATABASE in the environment, then `python payments.py`.

It may be killed, paused and started twice at any moment. It ends when no payment has come for five seconds.
"""

import json
import os
import sys
import time

from sqlalchemy import create_engine, text

from landonce.consumer import Fenced, OffsetStore, SqlOffsets

ADD = text(
    "INSERT INTO balance VALUES (:account, :amount) "
    "ON CONFLICT (account) DO UPDATE SET amount = balance.amount + excluded.amount"
)


def main() -> None:
    engine = create_engine(os.environ["DATABASE"])
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS balance (account VARCHAR(40) PRIMARY KEY, amount BIGINT)"))
    config = {"bootstrap.servers": os.environ["KAFKA"], "group.id": "payments"}
    with OffsetStore.connect(config, ["payments"], SqlOffsets(engine)) as store:
        heard = time.monotonic()
        while time.monotonic() - heard < 5:
            try:
                messages = store.consume(500, timeout=0.5)
                if not messages:
                    continue
                with store.transaction() as connection:
                    for each in messages:
                        connection.execute(ADD, json.loads(each.value()))
                    store.save_many(messages, connection)
                heard = time.monotonic()
                print(f"{len(messages)} payments", flush=True)
            except Fenced as refused:  # another consumer has the partition; the transaction was rolled back
                print(refused, file=sys.stderr)


if __name__ == "__main__":
    main()
