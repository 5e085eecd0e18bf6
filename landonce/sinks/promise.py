"""What a pipeline is promised, why it holds, and under which conditions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from landonce.config.dedup import Dedup
from landonce.config.model import duration_words
from landonce.sinks.pipeline_file import Pipeline


@dataclass(frozen=True)
class Promise:
    """The guarantee in words."""

    what: str
    why: tuple[str, ...]
    conditions: tuple[str, ...]


READ_IN_TIME = "the pipeline is never stopped for longer than Kafka keeps records; otherwise it halts"


ONE_PARTITION = "changes of one key come in one partition of a topic: their order is that of its offsets"


def of_deduplicating(config: Pipeline, *, keyed: bool = False, ordered: bool = False) -> Promise:
    """Tokens, deadlines and a probe."""
    why = (
        "every batch is planned in the ledger before the first byte is written, and is replayed literally after a crash",
        "a second driver fences the first by its epoch",
        "one block is one insert, which carries a token against races and a deadline against inserts that come late",
    )
    conditions = (
        ledger_condition(config),
        f"nothing but this pipeline writes rows with these {'keys' if keyed else 'coordinates'}",
        *((ONE_PARTITION,) if keyed else ()),
        *transform_condition(config),
    )
    if ordered:
        return Promise(
            "exactly once: what every block changes is in the table once, so that a SELECT with FINAL shows the last change of every key, and "
            "sums with the sign are those of the source; other records are in the dead letters once, or filtered",
            (
                *why,
                "blocks of a partition land one after the other; after any doubt the table is asked whether the newest rows are there",
            ),
            (
                *conditions,
                "records hold every change of a row from its insert on, each once: a second snapshot of the source would count twice",
                READ_IN_TIME,
            ),
        )
    if keyed:
        return Promise(
            "exactly once: every change is a row of the table, in the dead letters once, or filtered; a SELECT with FINAL shows the last "
            "change of every key",
            (
                *why,
                "the version of a row is its position, so that a row that is sent again never wins over a later one",
            ),
            (*conditions, READ_IN_TIME),
        )
    return Promise(
        "exactly once: every record is in the table once, or in the dead letters once, or filtered by `where`",
        (*why, "after any doubt the table is asked which coordinates it holds, and only what is missing is sent"),
        (*conditions, READ_IN_TIME),
    )


def of_transactional(config: Pipeline, *, keyed: bool) -> Promise:
    """Rows and the ledger change in one transaction."""
    what = "change is applied to the table once" if keyed else "record is in the table once"
    conditions = [
        "the tables landonce_* are kept, backed up and restored together with the table",
        "nothing but this pipeline writes rows with these " + ("keys" if keyed else "coordinates"),
    ]
    if keyed:
        conditions.append(ONE_PARTITION)
    return Promise(
        f"exactly once: every {what}, or in the dead letters once, or filtered",
        (
            "every batch is planned in the ledger before the first row is written, and is replayed literally after a crash",
            "a block's rows and its row in the ledger change in one transaction: neither is ever there without the other",
            "that transaction holds only while the block is claimed by its driver: a start claims all blocks, waits for "
            "transactions that are open, and makes every later one of an earlier driver roll back",
            "a COMMIT without an answer is never guessed: the block's row says what became of it",
        ),
        (*conditions, *transform_condition(config), READ_IN_TIME),
    )


def of_snapshot(config: Pipeline) -> Promise:
    """Rows and position are one atomic commit, to one table."""
    own = "the table is its own ledger: a start takes it with a commit, and fences every earlier driver"
    outside = "every batch is planned in the ledger before its commit, and the table says itself which batch it holds"
    return Promise(
        "exactly once: every record is in the table once, or in the dead letters once, or filtered by `where`",
        (
            "rows and position are one atomic commit: neither is ever in the table without the other",
            "inside every attempt of a commit, position and epoch of the table are the ones that the batch was planned from, or "
            "nothing is committed: a driver that comes late is refused",
            "files of tasks and drivers that died were never committed, and count for nothing",
            own if config.own_ledger else outside,
        ),
        (
            *(() if config.own_ledger else (ledger_condition(config),)),
            "nobody removes the marks that the commits carry",
            "nothing but this pipeline writes rows with these coordinates",
            *transform_condition(config),
            READ_IN_TIME,
        ),
    )


_LATE = {
    "dead_letter": "is a dead letter: its first copy may be forgotten",
    "accept": "counts as new: a copy of an event that is forgotten lands again",
    "drop": "is dropped: its first copy may be forgotten",
}


def of_events(config: Pipeline, records: Promise) -> Promise:
    """With `dedup`. `records`: what the sink promises of records. It holds for those that are accepted."""
    dedup = config.dedup
    if dedup is None:
        return records
    return Promise(
        f"each event once within ttl ({duration_words(dedup.ttl)}): of records with the same key, the first one is in the target "
        "once, or in the dead letters once, or filtered; its copies count as filtered",
        (
            "ids, new events and the position in the topics change in one transaction of the store, which compares the versions of "
            "what was searched",
            "an event is sent from the store, in blocks that are stored before they are sent; every attempt sends the stored bytes",
            *records.why,
        ),
        (
            f"a copy comes within {duration_words(dedup.ttl)} after its first record was accepted; one that comes later may land again",
            late_words(dedup),
            "no record has a timestamp that is in the future when it is accepted",
            "the store is kept, and all pipelines of the scope use this one: a start that finds it behind the target ends with StoreBehind",
            *records.conditions,
        ),
    )


def late_words(dedup: Dedup) -> str:
    return (
        f"a record whose timestamp is older than all keys that are remembered {_LATE[dedup.late]} (late: {dedup.late})"
    )


def transform_condition(config: Pipeline) -> tuple[str, ...]:
    return () if config.transform.empty else ("select and where are deterministic, which is examined at every start",)


def ledger_condition(config: Pipeline) -> str:
    if config.outside_ledger.sqlite is not None:
        return f"every driver of this pipeline uses the one ledger file {config.outside_ledger.sqlite}, on a local disk"
    if config.outside_ledger.plugin is not None:
        return f"the ledger plug-in {config.outside_ledger.plugin.name} passes the contract (landonce.testing.LedgerContract)"
    if (place := config.outside_ledger.keeper_map) is not None:
        return f"every driver of this pipeline uses the one KeeperMap table {place.table}, at {place.path} in Keeper"
    if config.outside_ledger.memory:
        return "one process runs this pipeline, once: the ledger is in its memory, and the next start compares with the target"
    return "every driver of this pipeline uses the one PostgreSQL ledger"
