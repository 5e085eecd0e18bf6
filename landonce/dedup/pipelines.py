"""The two pipelines of a file with `dedup`: accept (Kafka to the store) and push (the store to the target).

Each is a pipeline of its own, with `Parts` of its own: its position, its epoch and its recovery are those of every pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from landonce.config.dedup import Dedup
from landonce.config.model import MOST_BLOCK_ROWS, Batch, Transform
from landonce.config.source import KafkaStart
from landonce.dedup.accept import AcceptSink, StoreTable
from landonce.dedup.chunks import StoredRecords, StoredTopics
from landonce.dedup.comparing import Staged
from landonce.dedup.look import Kept
from landonce.dedup.rule import PUSHED, key_rule, with_doubles
from landonce.dedup.store import StorePlace
from landonce.errors import ConfigError, NothingToDo
from landonce.read.decoding import Decoding
from landonce.read.formats import RecordType
from landonce.read.schema.fields import Schema
from landonce.sinks.declared import declared_schema
from landonce.sinks.operations import UNCHANGED, Operations, Sessions
from landonce.sinks.operations import LedgerAddress as KeptIn
from landonce.sinks.parts import Parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.snapshot import TableLedger


def refuse_target(parts: Parts) -> None:
    """Raises for a target that could not tell a stored block that it has from one that it lacks."""
    if parts.sink.changes_rows:
        raise ConfigError("dedup: the sink changes rows by a key, and `dedup` is for events that are only added.")
    if parts.sink.commits_batches and not parts.config.own_ledger:
        raise ConfigError(
            "ledger: with `dedup`, the table must keep the position itself, in the commits that add the rows: with a ledger elsewhere, a batch "
            "that was committed and not recorded would land twice.",
            safe="Nothing was read or written.",
            command="remove `ledger` from {file}; if the store is in that database, name it in `dedup.store`",
        )


def pushing_parts(parts: Parts) -> Parts:
    """The ends of the pipeline that pushes: its workers read from the store."""
    config = pushing_config(parts.config)
    if parts.sink.large_blocks:
        config = config.model_copy(update={"batch": one_block(config.batch)})
    return replace(parts, config=config, stored=StoredRecords(StorePlace.of(config), config.pipeline))


def one_block(batch: Batch) -> Batch:
    """Of which a batch is one block of each table, as large as one insert can be. A file that names `block_rows` says otherwise."""
    if "block_rows" in batch.model_fields_set:
        return batch
    rows = min(batch.max_rows, MOST_BLOCK_ROWS)
    return batch.model_copy(
        update={"max_rows": rows, "block_rows": rows, "max_bytes": min(batch.max_bytes, batch.block_bytes)}
    )


def pushing_config(config: Pipeline) -> Pipeline:
    """Its dead letters have a folder of their own: both drivers number their batches by themselves. It begins where accepting began."""
    dead = config.dead_letters.model_copy(update={"path": config.dead_letters.path / PUSHED})
    kafka = config.source.kafka.model_copy(update={"start": KafkaStart()})
    source = config.source.model_copy(update={"kafka": kafka})
    return config.model_copy(update={"dead_letters": dead, "source": source})


def accept_sink(
    dedup: Dedup,
    place: StorePlace,
    pipeline: str,
    source: Schema,
    declared: Schema | None = None,
    decoding: Decoding | None = None,
    types: Sequence[RecordType] = (),
    *,
    of_query: bool = False,
) -> AcceptSink:
    """The store as a sink. `source`: what records are decoded to; of a query, the columns of the target. `declared`: all fields of records,
    where a file says them. `decoding`: of records. `types`: what schemas say of the key."""
    rule = key_rule(dedup, source, decoding, types)
    return AcceptSink(
        place=place,
        pipeline=pipeline,
        rule=rule,
        source=with_doubles(source, rule),
        target=source,
        shards=dedup.shards,
        ttl=int(dedup.ttl),
        late=dedup.late,
        payloads_for=int(dedup.ttl) if dedup.payloads == "ttl" else 0,
        cache=dedup.cache,
        keep_copies=dedup.copies == "keep",
        version=(declared or source).fingerprint()[:12],
        of_query=of_query,
    )


def accepting_parts(parts: Parts, dedup: Dedup, source: Schema, types: Sequence[RecordType] = ()) -> Parts:
    """The ends of the pipeline that accepts: the same topics, and the store. Expressions are for rows of the target. Kafka's tools show what
    has landed, and not what is accepted."""
    config = parts.config
    sink = accept_sink(
        dedup, StorePlace.of(config), config.pipeline, source, declared_schema(config), parts.decoding, types
    )
    ledger = TableLedger(sink.open_table(), config.pipeline)
    kafka = config.source.kafka.model_copy(update={"mirror_group": False})
    topics = config.source.model_copy(update={"kafka": kafka})
    own = config.model_copy(update={"transform": Transform(), "source": topics})
    return Parts(own, parts.broker, ledger, sink)


@dataclass
class AcceptOperations(Operations):
    """The pipeline that accepts. Its position is in the store, with the keys."""

    place: StorePlace
    no_fill = "there is nothing to fill: the store accepts a batch whole, or not at all."

    def kept(self) -> KeptIn:
        where = Kept.of(self.parts).store.database.place
        return KeptIn(f"the store of scope {self.place.scope}, {where}", {"store": where, "scope": self.place.scope})


def accepting(parts: Parts, sessions: Sessions) -> AcceptOperations:
    """What may be decided about the pipeline that accepts."""
    ledger = accepting_ledger(parts)
    return AcceptOperations(
        Parts(parts.config, parts.broker, ledger, parts.sink), sessions, StorePlace.of(parts.config)
    )


def accepting_ledger(parts: Parts) -> TableLedger[Staged]:
    """The ledger of the pipeline that accepts."""
    return TableLedger(StoreTable(StorePlace.of(parts.config), parts.config.pipeline), parts.config.pipeline)


def pushing(parts: Parts) -> Parts:
    """The ends of the pipeline that pushes: to it, the store looks like the topics."""
    topics = StoredTopics(StorePlace.of(parts.config), parts.config.pipeline)
    return replace(parts, config=pushing_config(parts.config), broker=topics)  # type: ignore[arg-type]  # it is asked for the topics only


_REFUSED = {
    "rebase": (
        "a pipeline with `dedup` cannot be bound to other topics: the store holds events by the offsets of the old ones.",
        "let the producer use a topic with a new name, and write a new `pipeline` and `dedup.scope: {scope}` in {{file}}: the keys stay",
    ),
    "seek": (
        "a pipeline with `dedup` cannot go back or skip records: the store knows which events it has accepted, and would take them for "
        "copies.",
        "land the topic under a new `pipeline` name, in another table",
    ),
    "accept-change": (
        "nothing has to be accepted: a stored block is sent as it is, and one that is not stored was never sent.",
        "landonce run {{file}}",
    ),
    "import": (
        "the position of another writer says nothing about the keys of what it wrote.",
        "import the position without `dedup`, then add `dedup` and take the keys from the target: landonce dedup rebuild {{file}}",
    ),
}


def refuse(parts: Parts, command: str) -> None:
    """Raises if an operator's command does not suit a pipeline with `dedup`."""
    if parts.config.dedup is not None and command in _REFUSED:
        what, instead = _REFUSED[command]
        raise NothingToDo(what, safe=UNCHANGED, command=instead.format(scope=StorePlace.of(parts.config).scope))
