"""What a pipeline is promised, why it holds, and under which conditions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from landonce.sinks.pipeline_file import Pipeline


@dataclass(frozen=True)
class Promise:
    """The guarantee in words."""

    what: str
    why: tuple[str, ...]
    conditions: tuple[str, ...]


READ_IN_TIME = "the pipeline never stands longer than Kafka keeps records; if it does, it halts and says so"


def of_deduplicating(config: Pipeline) -> Promise:
    """Tokens, deadlines and a probe."""
    why = (
        "every batch is planned in the ledger before the first byte is written, and is replayed literally after a crash",
        "a second driver fences the first by its epoch",
        "one block is one insert, which carries a token against races and a deadline against inserts that come late",
    )
    conditions = (
        ledger_condition(config),
        "nothing but this pipeline writes rows with these coordinates",
        *transform_condition(config),
    )
    return Promise(
        "exactly once: every record is in the table once, or in the dead letters once, or filtered by `where`",
        (*why, "after any doubt the table is asked which coordinates it holds, and only what is missing is sent"),
        (*conditions, READ_IN_TIME),
    )


def of_snapshots(config: Pipeline) -> Promise:
    """Rows and position are one commit of a table."""
    rest = "or in the dead letters once, or filtered" + ("" if config.transform.empty else " by `where`")
    return Promise(
        f"exactly once: every record is in the table once, {rest}",
        (
            "rows and position are one atomic commit: neither is ever in the table without the other",
            "every attempt of a commit takes effect only on the version of the table that position and epoch were read from",
            "files of tasks and drivers that died were never committed, and count for nothing",
            "the table is its own ledger: whoever starts takes it with a commit, and fences every earlier driver",
        ),
        (
            "the sink passes the contract (landonce.testing.SnapshotContract)",
            "nothing but this pipeline writes rows with these coordinates",
            *transform_condition(config),
            READ_IN_TIME,
        ),
    )


def transform_condition(config: Pipeline) -> tuple[str, ...]:
    return () if config.transform.empty else ("select and where are deterministic, which is examined at every start",)


def ledger_condition(config: Pipeline) -> str:
    if config.outside_ledger.sqlite is not None:
        return f"every driver of this pipeline uses the one ledger file {config.outside_ledger.sqlite}, on a local disk"
    if config.outside_ledger.plugin is not None:
        return f"the ledger plug-in {config.outside_ledger.plugin.name} passes the contract (landonce.testing.LedgerContract)"
    return "every driver of this pipeline uses the one PostgreSQL ledger"
