"""The section `dedup`: which events are copies of each other, for how long, and where their keys are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WrapValidator, model_validator

from landonce.config.model import Duration, Size, pipeline_name
from landonce.config.part import Part, SecretUrl, secret_beside

OTHERS = "*"
"""The rule for every value that has no rule of its own."""
SCHEMA: tuple[KeyPart, ...] = ()
"""A key whose fields are marked in the schema of records: the word `schema` in a file."""
RECORD_TYPE = "_record_type"
"""The column that holds the type of a record, as its schema names it."""
MOST_CACHED = 4 << 30
_DAY = 86_400.0
_MAX_SHARDS = 1024
_PARTS = "a part of a key is one of NAME, {field: NAME}, {kafka_key: true} and {header: NAME}"


class KeyPart(Part):
    """One part of a key: a field of the record, the Kafka key, or a header. A plain name is a field."""

    field: str | None = Field(default=None, min_length=1)
    """Dots lead into nested fields: `order.id`."""
    kafka_key: bool = False
    header: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _plain_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"field": value}
        if not isinstance(value, KeyPart) and not (isinstance(value, dict) and value.keys() <= cls.model_fields.keys()):
            raise ValueError(_PARTS)
        return value

    @model_validator(mode="after")
    def _one(self) -> KeyPart:
        if (self.field is not None) + self.kafka_key + (self.header is not None) != 1:
            raise ValueError(_PARTS)
        return self

    def __str__(self) -> str:
        return self.field or ("the Kafka key" if self.kafka_key else f"header {self.header!r}")


def _key(value: Any, parse: Callable[[Any], tuple[KeyPart, ...]]) -> tuple[KeyPart, ...]:
    if value in ("schema", SCHEMA):
        return SCHEMA
    parts = parse(value)
    if not parts:
        raise ValueError("must not be empty")
    for each in parts:
        if parts.count(each) > 1:
            raise ValueError(f"names {each} twice")
    return parts


Key = Annotated[tuple[KeyPart, ...], WrapValidator(_key)]


class DedupStore(Part):
    """The database of keys and new events: one of these."""

    sqlite: Path | None = None
    postgres: SecretUrl | None = None
    mysql: SecretUrl | None = None
    ydb: SecretUrl | None = None

    @model_validator(mode="after")
    def _one(self) -> DedupStore:
        if sum(each is not None for each in (self.sqlite, self.postgres, self.mysql, self.ydb)) != 1:
            raise ValueError("name one store: sqlite, postgres, mysql or ydb")
        return self

    @property
    def place(self) -> Path | str:
        """The file, or the URL with its password."""
        url = self.postgres or self.mysql or self.ydb
        return url.get_secret_value() if url is not None else self.sqlite or Path()


class Dedup(Part):
    """Content deduplication: of events with the same key, the first one lands.

    With `by`, an event is judged by the rule that has the name of its value in that field, or by `*`. That value is part
    of the key, so events with different values are never copies of each other.
    """

    key: Key | None = None
    by: str | None = Field(default=None, min_length=1)
    rules: dict[str, Key] | None = Field(default=None, min_length=1)
    scope: Annotated[str, AfterValidator(pipeline_name)] | None = None
    """Events are unique inside a scope, which several pipelines may share. None: the pipeline's name."""
    ttl: Duration = Field(default=60 * _DAY, gt=0)
    """How long the key of an accepted event is remembered."""
    late: Literal["dead_letter", "accept", "drop"] = "dead_letter"
    """What happens to an event that is older than the keys that are remembered."""
    on_null: Literal["dead_letter", "unique", "value"] = "dead_letter"
    """What happens to an event with a null in its key. `unique`: it is no copy of any event. `value`: null equals null."""
    shards: int = Field(default=16, ge=1, le=_MAX_SHARDS)
    payloads: Literal["ttl", "sent"] = "ttl"
    """How long the payloads of accepted events are kept: as long as their keys, or until they are sent."""
    keep_sent: Duration = Field(default=_DAY, ge=0)
    """How long batches are kept after they were sent."""
    cache: Size = Field(default=MOST_CACHED, gt=0)
    """The bytes of keys that a machine keeps in files. What was not used for longest is removed first."""
    copies: Literal["count", "keep"] = "count"
    """What is remembered of copies: how many there were, or also where each was found, and where its original is."""
    store: DedupStore | None = None
    """None: the ledger's database."""

    @model_validator(mode="after")
    def _sound(self) -> Dedup:
        if self.key is not None and (self.by is not None or self.rules is not None):
            raise ValueError("write key, or by and rules, not both")
        if self.key is None and self.by is None and self.rules is None:
            raise ValueError("needs a key: [FIELD, …], or by: FIELD and rules: {VALUE: [FIELD, …]}")
        if self.key is None and self.by is None:
            raise ValueError("by is missing: the field whose value chooses one of the rules")
        if self.key is None and self.rules is None:
            raise ValueError(
                f"rules is missing: a key for each value of {self.by}, for example {{click: [id], '*': [id]}}"
            )
        if "" in (self.rules or {}):
            raise ValueError("rules: the name of a rule must not be empty")
        if self.rules is not None and self.marked and (self.by != RECORD_TYPE or OTHERS in self.marked):
            raise ValueError(f"rules: `schema` is for types of records by their names, with by: {RECORD_TYPE}")
        if self.shards & (self.shards - 1):
            raise ValueError(f"shards: must be a power of two from 1 to {_MAX_SHARDS}, not {self.shards}")
        return self

    @property
    def keys(self) -> dict[str, tuple[KeyPart, ...]]:
        """The keys by the names of their rules; a key without `by` has the name ``""``."""
        return {"": self.key} if self.key is not None else self.rules or {}

    @property
    def marked(self) -> tuple[str, ...]:
        """The rules whose key is marked in schemas."""
        return tuple(name for name, key in self.keys.items() if key == SCHEMA)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of records that keys are made of."""
        named = [part.field for key in self.keys.values() for part in key if part.field is not None]
        return tuple(dict.fromkeys([*([self.by] if self.by is not None else []), *named]))

    def beside(self, folder: Path) -> Dedup:
        """The same, with the path of the store taken from this folder."""
        if self.store is None:
            return self
        store = self.store
        moved: dict[str, object] = {"sqlite": folder / store.sqlite if store.sqlite is not None else None}
        moved |= {name: secret_beside(getattr(store, name), folder) for name in ("postgres", "mysql", "ydb")}
        return self.model_copy(update={"store": store.model_copy(update=moved)})
