"""The sections of a pipeline file that are the same for every sink, and what sections consist of: durations, sizes, secrets.

Unknown keys are errors. Every default that a user may rely on is here or in the `config.py` of a sink.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    model_validator,
)

from landonce.config import secrets
from landonce.config.convert import Convert
from landonce.config.formats import RecordFormat
from landonce.config.part import Part, SecretUrl

_SECRET_PROPERTY = re.compile(r"password|secret|token|credential|key|auth|sas|header|connection-string", re.IGNORECASE)
_ADDRESS = re.compile(r"(https?://[^@]*|true|false)$", re.IGNORECASE)
"""Not a secret, whatever the property's name: an address without a password, `true`, `false`."""
_URL_USER = re.compile(r"(?<=://)[^/@]*@")


def remember_secrets(properties: Mapping[str, Any], above: str = "") -> None:
    """Remembers the values of properties whose name, or whose parent's name, suggests a secret."""
    for name, value in properties.items():
        path = f"{above}.{name}"
        if isinstance(value, list):
            raise ValueError(f"{name}: a catalog property is one value, or several with names of their own")
        if isinstance(value, Mapping):
            remember_secrets(value, path)
        elif isinstance(value, str) and _SECRET_PROPERTY.search(path) and not _ADDRESS.match(value):
            for part in (value, *value.split(":")[1:], *value.split()[1:]):
                secrets.remember(part)


def without_secrets(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that stay the same when a password changes: without names that suggest a secret, and without user and
    password in URLs."""
    return {
        name: without_secrets(value)
        if isinstance(value, Mapping)
        else _URL_USER.sub("", value)
        if isinstance(value, str)
        else value
        for name, value in properties.items()
        if not _SECRET_PROPERTY.search(name)
    }


def by_place(value: Any) -> Any:
    """Turns lists in a plug-in's options into mappings by position, so that secrets in them are found too."""
    if isinstance(value, list):
        value = {str(place): each for place, each in enumerate(value)}
    return {name: by_place(each) for name, each in value.items()} if isinstance(value, Mapping) else value


_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmg]i?b|b)?\s*$", re.IGNORECASE)
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def seconds(value: Any) -> float:
    """`500ms`, `15s`, `2m`, `1h`, `60d`, or a plain number of seconds."""
    found = _DURATION.match(str(value)) if not isinstance(value, bool) else None
    if found is None:
        raise ValueError("is not a duration; write for example 500ms, 15s, 2m, 1h or 60d")
    return float(found[1]) * _SECONDS[found[2]]


def duration_words(length: float) -> str:
    """For people: `60 days`."""
    for name, unit in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if length >= 2 * unit:
            return f"{length / unit:.4g} {name}"
    return f"{length:.4g} seconds"


def byte_size(value: Any) -> int:
    """`64MB`, `256MiB`, or a plain number of bytes."""
    found = _SIZE.match(str(value)) if not isinstance(value, bool) else None
    if found is None:
        raise ValueError("is not a size; write for example 64MB or 256MiB")
    return int(float(found[1]) * _BYTES[(found[2] or "b").lower()])


Duration = Annotated[float, BeforeValidator(seconds)]
Size = Annotated[int, BeforeValidator(byte_size)]


_PIPELINE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
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
    if not _PIPELINE_NAME.match(value):
        raise ValueError("must be 1 to 100 letters, digits, '_', '.' or '-', and begin with a letter or digit")
    return value


class Kafka(Part):
    """Where records come from."""

    bootstrap_servers: str = Field(min_length=1)
    topics: tuple[str, ...] = Field(min_length=1)
    format: RecordFormat = RecordFormat.model_validate("json")
    key_format: RecordFormat = RecordFormat.model_validate("json")
    """Of keys that become a struct."""
    convert: Convert = Convert()
    """What becomes of values that are written in another way than their types."""
    record_columns: tuple[Literal["_key", "_headers", "_timestamp", "_value"], ...] = ()
    """Columns of a table that is made from a sample, beside the fields of records."""
    start: Literal["earliest", "latest"] = "earliest"
    schema_: str | dict[str, str] | None = Field(default=None, alias="schema")
    max_record_bytes: Size = Field(default=16 * 2**20, gt=0)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _sound(self) -> Kafka:
        if len(set(self.topics)) != len(self.topics):
            raise ValueError("topics: a topic is named twice")
        if self.convert.fits and not self.format.named.keys() & {"json_", "csv", "tsv"}:
            raise ValueError("convert: is for the formats json, csv and tsv; values of others have types of their own")
        for name in sorted(_RESERVED & set(self.options)):
            raise ValueError(f"options: {name} is set by landonce itself, because the guarantee depends on it")
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
    """A ledger of another package, by entry point in the group `landonce.ledgers`."""

    name: str = Field(min_length=1)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    """The arguments of the plug-in's function."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _sound(self) -> LedgerPlugin:
        remember_secrets(self.options)
        return self

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the options start from."""
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
    """The largest size of a micro-batch and of a block, and the interval between batches."""

    interval: Duration = Field(default=1.0, ge=0)
    max_rows: int = Field(default=1_000_000, gt=0)
    max_bytes: Size = Field(default=2**30, gt=0)
    block_rows: int = Field(default=200_000, gt=0, le=1_000_000)
    block_bytes: Size = Field(default=128 * 2**20, gt=0)


class DeadLetters(Part):
    """The place of records that cannot land. `shared`: the path is the same folder on every machine of the cluster."""

    path: Path
    shared: bool = False


class Spark(Part):
    """The Spark session, if there is none yet (spark-submit creates one)."""

    master: str | None = None
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict)
