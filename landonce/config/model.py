"""What a pipeline file may say. Unknown keys are errors; every default that a user may rely on stands here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from landonce.config import secrets
from landonce.config.values import Duration, Size

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


def _pipeline_name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("must be 1 to 100 letters, digits, '_', '.' or '-', and begin with a letter or digit")
    return value


def _known_secret(value: SecretStr) -> SecretStr:
    secrets.remember_url(value.get_secret_value())
    return value


SecretUrl = Annotated[SecretStr, AfterValidator(_known_secret)]


class Part(BaseModel):
    """A section of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


class ClickHouse(Part):
    """Where records land."""

    url: SecretUrl
    table: str = Field(min_length=1)
    create: bool = False
    order_by: str | None = None
    partition_by: str | None = None
    deadline: Duration = Field(default=15.0, ge=1, le=3600)
    coordinates: bool = True
    cluster: str = ""
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict)


class Sink(Part):
    clickhouse: ClickHouse


class Ledger(Part):
    """Where the position is kept: one of the two."""

    sqlite: Path | None = None
    postgres: SecretUrl | None = None

    @model_validator(mode="after")
    def _one(self) -> Ledger:
        if (self.sqlite is None) == (self.postgres is None):
            raise ValueError("name one ledger: sqlite or postgres")
        return self


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

    pipeline: Annotated[str, AfterValidator(_pipeline_name)]
    source: Source
    transform: Transform = Transform()
    sink: Sink
    ledger: Ledger = Ledger(sqlite=Path("landonce.ledger"))
    batch: Batch = Batch()
    dead_letters: DeadLetters = DeadLetters(path=Path("dead"))
    stall: Duration = Field(default=300.0, gt=0)
    """How long an error that may pass is waited for before the run ends with an exit code."""
    spark: Spark = Spark()

    def beside(self, folder: Path) -> Pipeline:
        """The same, with relative paths taken from the file's own folder, wherever the command is run."""
        ledger = self.ledger
        if ledger.sqlite is not None:
            ledger = ledger.model_copy(update={"sqlite": folder / ledger.sqlite})
        dead = self.dead_letters.model_copy(update={"path": folder / self.dead_letters.path})
        return self.model_copy(update={"ledger": ledger, "dead_letters": dead})
