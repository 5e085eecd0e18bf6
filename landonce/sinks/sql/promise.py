"""What a pipeline to an SQL database is promised. Pure."""

from __future__ import annotations

from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.promise import READ_IN_TIME, Promise, transform_condition


def promise(config: Pipeline, *, keyed: bool) -> Promise:
    """Rows and the ledger change in one transaction."""
    what = "change is applied to the table once" if keyed else "record is in the table once"
    conditions = [
        "the tables landonce_* are kept, backed up and restored together with the table",
        "nothing but this pipeline writes rows with these " + ("keys" if keyed else "coordinates"),
    ]
    if keyed:
        conditions.append("changes of one key come in one partition of a topic: their order is that of its offsets")
    return Promise(
        f"exactly once: every {what}, or in the dead letters once, or filtered",
        (
            "every batch is planned in the ledger before the first row is written, and is replayed literally after a crash",
            "a block's rows and its row in the ledger change in one transaction: neither is ever there without the other",
            "that transaction holds only while the block is claimed by its driver: whoever starts claims all blocks, waits for "
            "transactions that are open, and makes every later one of an earlier driver roll back",
            "a COMMIT without an answer is never guessed: the block's row says what became of it",
        ),
        (*conditions, *transform_condition(config), READ_IN_TIME),
    )
