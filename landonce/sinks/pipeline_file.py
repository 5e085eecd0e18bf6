"""The pipeline file: YAML, loaded safely, checked whole before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from landonce.config.dedup import Dedup, DedupStore
from landonce.config.load import keys_of, read, validated
from landonce.config.model import (
    Batch,
    DeadLetters,
    Duration,
    LedgerSection,
    Source,
    Spark,
    Transform,
    options_beside,
    pipeline_name,
    takes_topic,
)
from landonce.config.part import Part, secret_beside
from landonce.config.source import beside
from landonce.sinks import registry
from landonce.sinks.section import LedgerPlace, SinkSection


class Pipeline(Part):
    """A whole pipeline file."""

    pipeline: Annotated[str, AfterValidator(pipeline_name)]
    source: Source
    transform: Transform = Transform()
    sink: Annotated[SinkSection, BeforeValidator(registry.section_of)]
    """One kind of sink, by its name: `sink: {clickhouse: {…}}`."""
    ledger: LedgerSection | None = None
    """Without a word: the table itself if it is one Iceberg table, the target if it is an SQL database, else the SQLite file
    `landonce.ledger`."""
    dedup: Dedup | None = None
    """Events are unique by a key. Without it, each record lands once, whatever it holds."""
    batch: Batch = Batch()
    dead_letters: DeadLetters = DeadLetters()
    stall: Duration = Field(default=300.0, gt=0)
    """How long an error that may pass is waited for before the run ends with an exit code."""
    spark: Spark = Spark()

    @model_validator(mode="after")
    def _sound(self) -> Pipeline:
        self.sink.refuse(self.transform, self.ledger)
        self.sink.refuse_topics(self.source.kafka.topics)
        letters, kafka = self.dead_letters, self.source.kafka
        near = letters.bootstrap_servers in (None, kafka.bootstrap_servers)
        if letters.topic is not None and near and takes_topic(kafka.topics, letters.topic):
            raise ValueError(f"dead_letters.topic: {letters.topic} is a topic that the pipeline reads")
        names, format_ = self.sink.reads_names, self.source.kafka.format
        if names and not format_.shows_fields:
            raise ValueError(f"source.kafka.format: `{names}` of the sink is for JSON, Avro and Protobuf")
        if self.sink.change_mode and format_.is_plain:
            raise ValueError(
                "source.kafka.format: raw and string have no fields, so no record can name the row it changes"
            )
        if self.sink.change_mode == "dms" and format_.json_ is None:
            raise ValueError("source.kafka.format: AWS DMS writes its records as JSON")
        if self.sink.change_mode in ("upsert", "operation") and self.source.kafka.key_format.is_plain:
            raise ValueError(
                "source.kafka.key_format: a tombstone names its row in its key, and raw and string have no fields"
            )
        if self.dedup is not None and self.dedup.marked and not format_.has_schema:
            raise ValueError("dedup: only the schemas of Avro and Protobuf mark a key; name its fields")
        if self.dedup is not None and self.batch.commit_timeout is not None:
            raise ValueError(
                "batch.commit_timeout: does not go with `dedup`, which stores what each block of a batch accepts; leave one of them out"
            )
        if self.dedup is not None and self.sink.no_dedup:
            raise ValueError(f"dedup: {self.sink.no_dedup}")
        if (
            self.dedup is not None
            and self.dedup.store is None
            and self.ledger is not None
            and not self.ledger.is_database
        ):
            raise ValueError("dedup.store: is missing, and only a ledger in SQLite or PostgreSQL can hold it")
        return self

    @property
    def store_place(self) -> Path | str:
        """The database of `dedup`: the one that is named; else the ledger's, if it has one; else a file."""
        if self.dedup is not None and self.dedup.store is not None:
            return self.dedup.store.place
        if self.ledger_place is LedgerPlace.OUTSIDE:
            return self.outside_ledger.place
        return self.sink.position_place

    @property
    def ledger_place(self) -> LedgerPlace:
        """Where the position is kept."""
        return self.sink.ledger_place(named=self.ledger is not None)

    @property
    def own_ledger(self) -> bool:
        """The table is the ledger."""
        return self.ledger_place is LedgerPlace.IN_COMMIT

    @property
    def outside_ledger(self) -> LedgerSection:
        return self.ledger or LedgerSection(sqlite=Path("landonce.ledger"))

    def beside(self, folder: Path) -> Pipeline:
        """The same, with relative paths taken from the file's own folder, wherever the command is run."""
        ledger = self.outside_ledger if self.ledger_place is LedgerPlace.OUTSIDE else None
        if ledger is not None and ledger.sqlite is not None:
            ledger = ledger.model_copy(update={"sqlite": folder / ledger.sqlite})
        if ledger is not None and ledger.postgres is not None:
            ledger = ledger.model_copy(update={"postgres": secret_beside(ledger.postgres, folder)})
        if ledger is not None and ledger.plugin is not None:
            ledger = ledger.model_copy(update={"plugin": ledger.plugin.beside(folder)})
        letters, kafka = self.dead_letters, self.source.kafka
        moved = {"path": folder / letters.path, "options": options_beside(letters.options, folder)}
        dead = letters.model_copy(update=moved)
        formats = {name: beside(getattr(kafka, name), folder) for name in ("format", "key_format")}
        options = {"options": options_beside(kafka.options, folder)}
        source = self.source.model_copy(update={"kafka": kafka.model_copy(update={**formats, **options})})
        changed: dict[str, Any] = {"ledger": ledger, "dead_letters": dead, "sink": self.sink.beside(folder)}
        changed["source"] = source
        if self.dedup is not None:
            in_file = self.ledger_place is LedgerPlace.IN_COMMIT and self.dedup.store is None
            store = DedupStore(sqlite=Path("landonce.dedup")) if in_file else self.dedup.store
            changed["dedup"] = self.dedup.model_copy(update={"store": store}).beside(folder)
        return self.model_copy(update=changed)


def load(path: Path) -> Pipeline:
    """The pipeline of this file, or a `ConfigError` that names every mistake in it."""
    return parse(read(path), path)


def parse(text: str, path: Path) -> Pipeline:
    """As `load`, from text; `path` is for messages and for relative paths."""
    return validated(text, path, Pipeline, keys_of_section).beside(path.resolve().parent)


def keys_of_section(where: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that a section may have; `where` is its place in the file."""
    if where[:1] != ("sink",):
        return keys_of(Pipeline, where)
    if where == ("sink",):
        return registry.names()
    return keys_of(registry.section(where[1]), where[2:]) if where[1] in registry.names() else ()
