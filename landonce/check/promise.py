"""What a pipeline is promised, why it holds, and under which conditions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from landonce.config.model import Pipeline
from landonce.write.sink import Guarantee


@dataclass(frozen=True)
class Promise:
    """The guarantee in words."""

    what: str
    why: tuple[str, ...]
    conditions: tuple[str, ...]


def promise(config: Pipeline, guarantee: Guarantee) -> Promise:
    """What holds for this pipeline once it starts."""
    why = (
        "every batch is planned in the ledger before the first byte is written, and is replayed literally after a crash",
        "a second driver fences the first by its epoch",
        "one block is one insert, which carries a token against races and a deadline against inserts that come late",
    )
    conditions = [_ledger_condition(config), "nothing but this pipeline writes rows with these coordinates"]
    if not config.transform.empty:
        conditions.append("select and where are deterministic, which is examined at every start")
    if guarantee is Guarantee.DEDUPLICATING:
        conditions.append("the pipeline never stands longer than Kafka keeps records; if it does, it halts and says so")
        return Promise(
            "exactly once: every record is in the table once, or in the dead letters once, or filtered by `where`",
            (*why, "after any doubt the table is asked which coordinates it holds, and only what is missing is sent"),
            tuple(conditions),
        )
    conditions.append("after a crash the pipeline starts again before ClickHouse forgets the tokens of the last batch")
    return Promise(
        "tokens only: a block that is sent twice lands once, as long as ClickHouse remembers its token",
        why,
        (*conditions, "a ClickHouse server that dies between noting a token and keeping its rows can lose a block"),
    )


def _ledger_condition(config: Pipeline) -> str:
    if config.ledger.sqlite is not None:
        return f"every driver of this pipeline uses the one ledger file {config.ledger.sqlite}, on a local disk"
    return "every driver of this pipeline uses the one PostgreSQL ledger"
