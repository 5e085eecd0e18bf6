"""The sections of a pipeline file that are the same for every sink. Unknown keys are errors; every default that a user may rely on
stands here and in the `config.py` of each sink."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr, model_validator

from landonce.config import secrets
from landonce.config.part import Part, SecretUrl, remember_secrets
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
