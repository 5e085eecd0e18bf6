"""What a pipeline file may say. Unknown keys are errors; every default that a user may rely on stands here and in `sinks`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from landonce.config import secrets
from landonce.config.part import Part, SecretUrl, remember_secrets
from landonce.config.values import Duration, Size
from landonce.sinks.config import Sink

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
_RESERVED = {
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "isolation.level",
    "auto.offset.reset",
    "enable.partition.eof",
    "group.instance.id",
}


def pipeline_name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("must be 1 to 100 letters, digits, '_', '.' or '-', and begin with a letter or digit")
    return value


class Kafka(Part):
    """Where records come from."""

    bootstrap_servers: str = Field(min_length=1)
    topics: tuple[str, ...] = Field(min_length=1)
    format: Literal["json"] = "json"
    start: Literal["earliest", "latest"] = "earliest"
    schema_: str | dict[str, str] | None = Field(default=None, alias="schema")
    max_record_bytes: Size = Field(default=16 * 2**20, gt=0)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _sound(self) -> Kafka:
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("topics: a topic is named twice")
        for name in sorted(_RESERVED & set(self.options)):
            raise ValueError(f"options: {name} is set by landonce itself, because the guarantee rests on it")
        for name, value in self.options.items():
            if any(word in name for word in ("password", "secret", "key.pem", "sasl.oauthbearer.config")):
                secrets.remember(str(value))
        return self


class Source(Part):
    kafka: Kafka


class Transform(Part):
    """Row-wise Spark SQL: a filter, and the columns to land."""

    select: tuple[str, ...] = ()
    where: str | None = None

    @property
    def empty(self) -> bool:
        return not self.select and self.where is None


class LedgerPlugin(Part):
    """A ledger that another package offers, by entry point in the group `landonce.ledgers`."""

    name: str = Field(min_length=1)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    """What the plug-in is opened with."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _sound(self) -> LedgerPlugin:
        remember_secrets(self.options)
        return self

    @property
    def folder(self) -> Path:
        """What relative paths in the options are relative to."""
        return self._folder

    def beside(self, folder: Path) -> LedgerPlugin:
        made = self.model_copy()
        made._folder = folder.absolute()
        return made


class Ledger(Part):
    """Where the position is kept: one of the three."""

    sqlite: Path | None = None
    postgres: SecretUrl | None = None
    plugin: LedgerPlugin | None = None

    @model_validator(mode="after")
    def _one(self) -> Ledger:
        if sum(each is not None for each in (self.sqlite, self.postgres, self.plugin)) != 1:
            raise ValueError("name one ledger: sqlite, postgres or plugin")
        return self

    @property
    def place(self) -> Path | str:
        """The file, or the URL with its password."""
        return self.postgres.get_secret_value() if self.postgres is not None else self.sqlite or Path()


class Batch(Part):
    """How large a micro-batch and a block may become, and how often there is one."""

    interval: Duration = Field(default=1.0, ge=0)
    max_rows: int = Field(default=1_000_000, gt=0)
    max_bytes: Size = Field(default=2**30, gt=0)
    block_rows: int = Field(default=200_000, gt=0, le=1_000_000)
    block_bytes: Size = Field(default=128 * 2**20, gt=0)


class DeadLetters(Part):
    """Where records go that cannot land. `shared`: the path is the same folder on every machine of the cluster."""

    path: Path
    shared: bool = False


class Spark(Part):
    """The Spark session, unless one is there already (spark-submit)."""

    master: str | None = None
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict)


class Pipeline(Part):
    """A whole pipeline file."""

    pipeline: Annotated[str, AfterValidator(pipeline_name)]
    source: Source
    transform: Transform = Transform()
    sink: Sink
    ledger: Ledger | None = None
    """Without a word: the table itself if it is one Iceberg table, the target if it is an SQL database, else the SQLite file
    `landonce.ledger`."""
    batch: Batch = Batch()
    dead_letters: DeadLetters = DeadLetters(path=Path("dead"))
    stall: Duration = Field(default=300.0, gt=0)
    """How long an error that may pass is waited for before the run ends with an exit code."""
    spark: Spark = Spark()

    @model_validator(mode="after")
    def _sound(self) -> Pipeline:
        told = self.sink.iceberg
        if told is not None and not self.transform.empty and (told.changes is not None or told.evolve):
            raise ValueError("transform: goes with neither `changes` nor `evolve`, which take records as they are")
        table = self.sink.sql
        if table is not None and not self.transform.empty and (table.key or table.evolve):
            raise ValueError("transform: goes with neither `mode: upsert` nor `evolve`, which take records as they are")
        if table is not None and self.ledger is not None:
            raise ValueError("ledger: with `sink.sql` the position is kept in the target database, beside the table")
        if self.sink.wrapped is not None and self.ledger is not None and self.ledger.plugin is not None:
            raise ValueError(
                "ledger: with `sink.wrapped` every push is claimed in the ledger's database: sqlite or postgres"
            )
        return self

    @property
    def own_ledger(self) -> bool:
        """The table is the ledger."""
        return self.ledger is None and self.sink.iceberg is not None and self.sink.iceberg.one_table

    @property
    def ledger_in_target(self) -> bool:
        """The target database holds the ledger's tables."""
        return self.sink.sql is not None

    @property
    def outside_ledger(self) -> Ledger:
        return self.ledger or Ledger(sqlite=Path("landonce.ledger"))

    def beside(self, folder: Path) -> Pipeline:
        """The same, with relative paths taken from the file's own folder, wherever the command is run."""
        ledger = None if self.own_ledger or self.ledger_in_target else self.outside_ledger
        if ledger is not None and ledger.sqlite is not None:
            ledger = ledger.model_copy(update={"sqlite": folder / ledger.sqlite})
        if ledger is not None and ledger.plugin is not None:
            ledger = ledger.model_copy(update={"plugin": ledger.plugin.beside(folder)})
        dead = self.dead_letters.model_copy(update={"path": folder / self.dead_letters.path})
        sink = self.sink
        if sink.clickhouse is not None:
            sink = sink.model_copy(update={"clickhouse": sink.clickhouse.beside(folder)})
        if sink.iceberg is not None:
            catalog = sink.iceberg.catalog.beside(folder)
            sink = sink.model_copy(update={"iceberg": sink.iceberg.model_copy(update={"catalog": catalog})})
        if sink.sql is not None:
            sink = sink.model_copy(update={"sql": sink.sql.beside(folder)})
        if sink.wrapped is not None:
            sink = sink.model_copy(update={"wrapped": sink.wrapped.beside(folder)})
        return self.model_copy(update={"ledger": ledger, "dead_letters": dead, "sink": sink})
