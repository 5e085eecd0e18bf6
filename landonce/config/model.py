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
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    field_validator,
    model_validator,
)

from landonce.config import secrets
from landonce.config.part import Part, SecretUrl
from landonce.config.source import Convert, KafkaStart, RecordFormat

_SECRET_PROPERTY = re.compile(r"password|secret|token|credential|key|auth|sas|header|connection-string", re.IGNORECASE)
_ADDRESS = re.compile(r"(https?://[^@]*|true|false)$", re.IGNORECASE)
"""Not a secret, whatever the property's name: an address without a password, `true`, `false`."""
_OPEN_NAMES = ("type", "impl", "user", "username")
"""Not secret either, beside one."""
_OPEN_ENDS = re.compile(
    r"(^|[.-])(\w*type|impl|user|username|\w*accountname|provider|keytab|enabled|authentication|keylength|\w*algorithm)$",
    re.IGNORECASE,
)
"""How a login is made, and not with what. Of headers nobody knows."""
_NUMBER = re.compile(r"\d+(\.\d+)?$")
_SECRET_END = re.compile(r"(password|secret|token|credential|key|auth|sas)s?$", re.IGNORECASE)
"""Names that may have a number for their secret."""
_URL_USER = re.compile(r"(?<=://)[^/@]*@")


def remember_secrets(properties: Mapping[str, Any], above: str = "") -> None:
    """Remembers the values of properties whose name, or whose parent's name, suggests a secret."""
    for name, value in properties.items():
        path = f"{above}.{name}"
        if isinstance(value, list):
            raise ValueError(f"{name}: a catalog property is one value, or several with names of their own")
        if isinstance(value, Mapping):
            remember_secrets(value, path)
        elif isinstance(value, str) and _SECRET_PROPERTY.search(path) and not _is_open(path, name, value):
            for part in (value, *value.split(":")[1:], *value.split()[1:]):
                secrets.remember(part)


def _is_open(path: str, name: str, value: str) -> bool:
    """Whether a value is no secret though its path suggests one. An ordinary word that is taken for a secret is hidden in every message."""
    if name in _OPEN_NAMES or _ADDRESS.match(value):
        return True
    if "header" in path.lower():
        return False
    return bool(_OPEN_ENDS.search(name) or (_NUMBER.match(value) and not _SECRET_END.search(name)))


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


def share(value: Any) -> float:
    """`1%`, `0.5 %`, or a number from 0 to 1."""
    found = _SHARE.match(str(value)) if not isinstance(value, bool) else None
    part = float(found[1]) / (100 if found[2] else 1) if found is not None else -1.0
    if not 0 <= part <= 1:
        raise ValueError("is not a share of the records; write for example 1% or 0.01, from 0% to 100%")
    return part


Share = Annotated[float, BeforeValidator(share)]
Duration = Annotated[float, BeforeValidator(seconds)]
Size = Annotated[int, BeforeValidator(byte_size)]


_SHARE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*$")
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_RESERVED = {
    "bootstrap.servers",
    "metadata.broker.list",  # librdkafka's other name for them
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "isolation.level",
    "auto.offset.reset",
    "enable.partition.eof",
    "group.instance.id",
}


_OPTION_FILES = re.compile(r"(ssl|https)\..*\.location|.*\.file|sasl\.kerberos\.keytab")
"""Options of librdkafka that name files."""


def _remember_options(options: Mapping[str, Any]) -> None:
    """The secrets among options of Kafka's client. Others, such as the file of a key, are none."""
    for name, value in options.items():
        if any(word in name for word in ("pass", "secret", "key.pem", "sasl.oauthbearer.config")):
            secrets.remember_text(str(value))


def files_in(options: Mapping[str, Any]) -> dict[str, str]:
    """Options of Kafka's client that name files, and the files. `probe` is none."""
    return {
        name: value
        for name, value in options.items()
        if isinstance(value, str) and _OPTION_FILES.fullmatch(name) and value not in ("", "probe")
    }


def options_beside(options: dict[str, Any] | None, folder: Path) -> dict[str, Any] | None:
    """Options of Kafka's client, with files taken from this folder if their paths are relative."""
    if options is None:
        return None
    return {**options, **{name: str(folder / path) for name, path in files_in(options).items()}}


def pipeline_name(value: str) -> str:
    if not _PIPELINE_NAME.fullmatch(value):
        raise ValueError("must be 1 to 100 letters, digits, '_', '.' or '-', and begin with a letter or digit")
    return value


class TopicMatch(Part):
    """All topics whose whole name matches a regular expression, and those that appear later. Never Kafka's own, which begin with `__`."""

    match: str = Field(min_length=1)

    @model_validator(mode="after")
    def _sound(self) -> TopicMatch:
        try:
            re.compile(self.match)
        except re.error as error:
            raise ValueError(f"match: is not a regular expression: {error}") from None
        return self

    def takes(self, topic: str) -> bool:
        return not topic.startswith("__") and re.fullmatch(self.match, topic) is not None


Topics = Annotated[
    Annotated[tuple[str, ...], Field(min_length=1), Tag("(names)")] | Annotated[TopicMatch, Tag("(match)")],
    Discriminator(lambda given: "(match)" if isinstance(given, dict | TopicMatch) else "(names)"),
]
"""Which topics: a list of names, or `{match: …}`."""


def takes_topic(topics: tuple[str, ...] | TopicMatch, topic: str) -> bool:
    return topics.takes(topic) if isinstance(topics, TopicMatch) else topic in topics


def topics_text(topics: tuple[str, ...] | TopicMatch) -> str:
    """For people."""
    return f"topics that match {topics.match}" if isinstance(topics, TopicMatch) else ", ".join(topics)


class Kafka(Part):
    """Where records come from."""

    bootstrap_servers: str = Field(min_length=1)
    topics: Topics
    format: RecordFormat = RecordFormat.model_validate("json")
    key_format: RecordFormat = RecordFormat.model_validate("json")
    """Of keys that become a struct."""
    convert: Convert = Convert()
    """What becomes of values that are written in another way than their types."""
    record_columns: tuple[Literal["_key", "_headers", "_timestamp", "_value", "_record_type"], ...] = ()
    """Columns of a table that is made from a sample, beside the fields of records."""
    start: KafkaStart = KafkaStart()
    mirror_group: str | bool = True
    """The consumer group that shows the position to Kafka's own tools. True: one with the pipeline's name."""
    schema_: str | dict[str, str] | None = Field(default=None, alias="schema")
    max_record_bytes: Size = Field(default=16 * 2**20, gt=0)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _sound(self) -> Kafka:
        if isinstance(self.topics, tuple) and len(set(self.topics)) != len(self.topics):
            raise ValueError("topics: a topic is named twice")
        if self.mirror_group == "":
            raise ValueError("mirror_group: must not be empty; `false` turns it off")
        if self.convert.fits and self.format.is_plain:
            raise ValueError("convert: records of the formats raw and string have no fields to convert")
        for name in sorted(_RESERVED & set(self.options)):
            raise ValueError(f"options: {name} is set by landonce itself, because the guarantee depends on it")
        _remember_options(self.options)
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


class KeeperMap(Part):
    """A table with the engine KeeperMap, on the target's own servers. `path`: where Keeper holds it. `table`: its name; it is made if it is
    not there."""

    path: str = Field(pattern=r"^/.*[^/]$")
    table: str = Field(default="landonce_ledger", min_length=1)


class LedgerSection(Part):
    """Where the position is kept: one of these. `memory`: nowhere, so that it is lost when the process ends."""

    sqlite: Path | None = None
    postgres: SecretUrl | None = None
    keeper_map: KeeperMap | None = None
    plugin: LedgerPlugin | None = None
    memory: Literal[True] | None = None

    @model_validator(mode="after")
    def _one(self) -> LedgerSection:
        named = (self.sqlite, self.postgres, self.keeper_map, self.plugin, self.memory)
        if sum(each is not None for each in named) != 1:
            raise ValueError("name one ledger: sqlite, postgres, keeper_map, plugin or memory")
        return self

    @property
    def is_database(self) -> bool:
        """Whether it is a database of landonce's own, which can hold more than positions."""
        return self.sqlite is not None or self.postgres is not None

    @property
    def place(self) -> Path | str:
        """The file, or the URL with its password."""
        return self.postgres.get_secret_value() if self.postgres is not None else self.sqlite or Path()


MOST_BLOCK_ROWS = 1_000_000
"""ClickHouse makes one part of up to 1,048,449 rows by default."""


class Batch(Part):
    """The largest size of a micro-batch and of a block, and the interval between batches."""

    interval: Duration = Field(default=1.0, ge=0)
    """Without it, the sink says (`Sink.interval`)."""
    commit_timeout: Duration | None = Field(default=None, gt=0)
    """After this time, blocks that are ready are committed without those that are not. None: a batch is committed whole."""
    max_rows: int = Field(default=1_000_000, gt=0)
    max_bytes: Size = Field(default=2**30, gt=0)
    block_rows: int = Field(default=200_000, gt=0, le=MOST_BLOCK_ROWS)
    block_bytes: Size = Field(default=128 * 2**20, gt=0)

    def every(self, interval: float) -> Batch:
        """The same with this interval, unless the file has its own."""
        return self if "interval" in self.model_fields_set else self.model_copy(update={"interval": interval})


class DeadLetters(Part):
    """The place of records that cannot land, and how many there may be. `shared`: the path is the same folder on every machine of the
    cluster. `limit`: a share of the records, from 0 to 1. `floor`: fewer letters are never too many. `topic`: letters are sent there, too;
    `bootstrap_servers` and `options` are the source's unless they are given."""

    path: Path = Path("dead")
    shared: bool = False
    on_bad: Literal["divert", "halt"] = "divert"
    limit: Share = 0.1
    floor: int = Field(default=100, ge=1)
    topic: str | None = Field(default=None, min_length=1)
    bootstrap_servers: str | None = Field(default=None, min_length=1)
    options: dict[str, str | int | float | bool] | None = Field(default=None, repr=False)

    @field_validator("path", mode="before")
    @classmethod
    def _folder(cls, given: Any) -> Any:
        if isinstance(given, str) and "://" in given:
            raise ValueError("is a folder; landonce does not write dead letters to other storage")
        return given

    @model_validator(mode="after")
    def _sound(self) -> DeadLetters:
        if self.topic is None and (self.bootstrap_servers is not None or self.options is not None):
            raise ValueError("bootstrap_servers and options are for a `topic`, and none is named")
        for name in sorted((_RESERVED | {"transactional.id", "enable.idempotence"}) & set(self.options or ())):
            raise ValueError(f"options: {name} is set by landonce itself, because the guarantee depends on it")
        _remember_options(self.options or {})
        return self


class Spark(Part):
    """The Spark session, if there is none yet (spark-submit creates one)."""

    master: str | None = None
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _sound(self) -> Spark:
        remember_secrets(self.conf)
        return self
