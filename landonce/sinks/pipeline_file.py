"""The pipeline file: YAML, loaded safely, checked whole before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from landonce.config.dedup import Dedup, DedupStore
from landonce.config.formats import beside
from landonce.config.load import keys_of, read, validated
from landonce.config.model import Batch, DeadLetters, Duration, Ledger, Source, Spark, Transform, pipeline_name
from landonce.config.part import Part
from landonce.sinks import registry
from landonce.sinks.section import LedgerPlace, SinkSection


class Pipeline(Part):
    """A whole pipeline file."""

    pipeline: Annotated[str, AfterValidator(pipeline_name)]
    source: Source
    transform: Transform = Transform()
    sink: Annotated[SinkSection, BeforeValidator(registry.section_of)]
    """One kind of sink, by its name: `sink: {clickhouse: {…}}`."""
    ledger: Ledger | None = None
    """Without a word: the table itself if it is one Iceberg table, the target if it is an SQL database, else the SQLite file
    `landonce.ledger`."""
    dedup: Dedup | None = None
    """Events are unique by a key. Without it, each record lands once, whatever it holds."""
    batch: Batch = Batch()
    dead_letters: DeadLetters = DeadLetters(path=Path("dead"))
    stall: Duration = Field(default=300.0, gt=0)
    """How long an error that may pass is waited for before the run ends with an exit code."""
    spark: Spark = Spark()

    @model_validator(mode="after")
    def _sound(self) -> Pipeline:
        self.sink.refuse(self.transform, self.ledger)
        if self.sink.needs_json and not self.source.kafka.format.is_plain_json:
            raise ValueError(f"source.kafka.format: `{self.sink.needs_json}` of the sink is for plain JSON records")
        if self.sink.needs_json and self.source.kafka.convert.fits:
            raise ValueError(
                f"source.kafka.convert: `{self.sink.needs_json}` of the sink takes values as they are: strict"
            )
        if self.dedup is not None and self.dedup.store is None and self.ledger is not None and self.ledger.plugin:
            raise ValueError("dedup.store: is missing, and the ledger of a plug-in cannot hold it")
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
    def outside_ledger(self) -> Ledger:
        return self.ledger or Ledger(sqlite=Path("landonce.ledger"))

    def beside(self, folder: Path) -> Pipeline:
        """The same, with relative paths taken from the file's own folder, wherever the command is run."""
        ledger = self.outside_ledger if self.ledger_place is LedgerPlace.OUTSIDE else None
        if ledger is not None and ledger.sqlite is not None:
            ledger = ledger.model_copy(update={"sqlite": folder / ledger.sqlite})
        if ledger is not None and ledger.plugin is not None:
            ledger = ledger.model_copy(update={"plugin": ledger.plugin.beside(folder)})
        dead = self.dead_letters.model_copy(update={"path": folder / self.dead_letters.path})
        kafka = self.source.kafka
        formats = {name: beside(getattr(kafka, name), folder) for name in ("format", "key_format")}
        source = self.source.model_copy(update={"kafka": kafka.model_copy(update=formats)})
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
