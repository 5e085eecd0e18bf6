"""What a pipeline file may say of where records land."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from landonce.config.part import Part, SecretUrl, by_place, remember_secrets
from landonce.config.values import Duration


def _as_text(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_text(value) if isinstance(value, Mapping) else str(value) for name, value in properties.items()}


class Landing(Part):
    """What sinks with a table have in common."""

    @model_validator(mode="before")
    @classmethod
    def _always_kept(cls, given: Any) -> Any:
        if isinstance(given, dict) and "coordinates" in given:
            raise ValueError("coordinates: landonce always keeps the coordinates of rows; delete this key")
        return given


class ClickHouse(Landing):
    """Where records land."""

    url: SecretUrl
    table: str = Field(min_length=1)
    create: bool = False
    order_by: str | None = None
    partition_by: str | None = None
    deadline: Duration = Field(default=15.0, ge=1, le=3600)
    cluster: str = ""
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict)
    compression: Literal["lz4", "zstd"] | None = None
    ca_cert: Path | None = None
    """The certificate of the authority that signed the server's, where the system does not know it."""

    def beside(self, folder: Path) -> ClickHouse:
        return self.model_copy(update={"ca_cert": folder / self.ca_cert}) if self.ca_cert is not None else self


class Catalog(Part):
    """Which Iceberg catalog. Other keys are properties that PyIceberg and Spark both get as they are.

    Without a word: a SQLite file and a warehouse in the folder `lake`, which needs no server.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(default="landonce", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    type: str = "sql"
    uri: SecretUrl | None = None
    warehouse: str | None = None
    spark: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _sound(self) -> Catalog:
        if self.uri is None and self.type == "sql" and self.warehouse is not None:
            raise ValueError("a SQL catalog with a warehouse needs a `uri` too")
        if self.uri is None and self.type == "rest":
            raise ValueError("a REST catalog needs a `uri`")
        remember_secrets({**(self.model_extra or {}), **self.spark})
        return self

    def __repr_args__(self) -> Any:
        """Without the properties that are passed on: they may hold secrets."""
        return [(name, getattr(self, name)) for name in ("name", "type", "uri", "warehouse")]

    @property
    def embedded(self) -> bool:
        return self.uri is None and self.type == "sql"

    def properties(self) -> dict[str, Any]:
        """As PyIceberg takes them."""
        told: dict[str, Any] = {"type": self.type, **_as_text(self.model_extra or {})}
        if self.uri is not None:
            told["uri"] = self.uri.get_secret_value()
        if self.warehouse is not None:
            told["warehouse"] = self.warehouse
        return told

    def beside(self, folder: Path) -> Catalog:
        if not self.embedded:
            return self
        lake = folder / "lake"
        uri = SecretStr(f"sqlite:///{lake / 'catalog.db'}")
        return self.model_copy(update={"uri": uri, "warehouse": f"file://{lake}"})


class Routed(Part):
    """One table of a fan-out. A record goes to it if the routing field says so; without a condition, every record does."""

    table: str = Field(min_length=1)
    equals: tuple[str, ...] = ()
    match: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_value(cls, told: Any) -> Any:
        if isinstance(told, dict) and isinstance(told.get("equals"), str):
            return {**told, "equals": (told["equals"],)}
        return told


class Changes(Part):
    """Records that change rows: where the operation stands, and what it is called."""

    mode: Literal["upsert", "operation", "debezium", "dms"]
    field: str = "op"
    insert: tuple[str, ...] = ("c", "r", "i", "I", "insert", "INSERT")
    update: tuple[str, ...] = ("u", "U", "update", "UPDATE")
    delete: tuple[str, ...] = ("d", "D", "delete", "DELETE")

    @model_validator(mode="after")
    def _sound(self) -> Changes:
        names = [*self.insert, *self.update, *self.delete]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} can only stand for one operation")
        return self


class Iceberg(Landing):
    """Tables of Apache Iceberg: one, several, or one per value of a field."""

    catalog: Catalog = Catalog()
    table: str | None = None
    """`db.events`, or `db.{kind}` for one table per value of the record's field `kind`."""
    tables: tuple[Routed, ...] = ()
    route_field: str | None = None
    branch: str = "main"
    create: bool = False
    partition_by: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Of tables that landonce creates."""
    evolve: bool = False
    case_insensitive: bool = False
    unpartitioned: bool = False
    rollback: Literal["follow", "refuse"] = "follow"
    changes: Changes | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_column(cls, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        alone = {name: (told[name],) for name in ("partition_by", "identity") if isinstance(told.get(name), str)}
        return {**told, **alone}

    @model_validator(mode="after")
    def _sound(self) -> Iceberg:
        for name in (self.table or "x.y", *(each.table for each in self.tables)):
            if "." not in name.strip("."):
                raise ValueError(f"table: {name!r} needs a namespace, for example db.{name}")
        if (self.table is None) == (not self.tables):
            raise ValueError("name one `table`, or a list of `tables`")
        if any(each.equals or each.match for each in self.tables) and self.route_field is None:
            raise ValueError("tables: `equals` and `match` need a `route_field`")
        if self.route_field is not None and not self.tables:
            raise ValueError(
                "route_field: goes with a list of `tables`; for one table per value write `table: db.{field}`"
            )
        if self.evolve and self.changes is not None and self.changes.mode in ("debezium", "dms"):
            raise ValueError(f"evolve: does not look inside the envelopes of {self.changes.mode}")
        if self.changes is not None and not self.identity:
            raise ValueError("changes: rows are found by `identity`, the fields that name one row; it is missing")
        return self

    @property
    def one_table(self) -> bool:
        """Then the table is its own ledger, unless the file names another one."""
        return self.table is not None and "{" not in self.table


class Sql(Landing):
    """A table in PostgreSQL, SQLite, MySQL, MariaDB or YDB, which is also where the position is kept."""

    url: SecretUrl
    table: str = Field(min_length=1)
    """`events`, or `schema.events`."""
    create: bool = False
    mode: Literal["insert", "upsert"] = "insert"
    key: tuple[str, ...] = ()
    """The columns that name one row, where records change rows."""
    changes: Changes | None = None
    """How records say what happened; without a word, each is the new row of its key, and a tombstone deletes it."""
    evolve: bool = False

    @model_validator(mode="before")
    @classmethod
    def _one_column(cls, told: Any) -> Any:
        if isinstance(told, dict) and isinstance(told.get("key"), str):
            return {**told, "key": (told["key"],)}
        return told

    @model_validator(mode="after")
    def _sound(self) -> Sql:
        if (self.mode == "upsert") != bool(self.key):
            raise ValueError("`mode: upsert` and `key`, the columns that name one row, go together")
        if self.changes is not None and self.mode != "upsert":
            raise ValueError("changes: needs `mode: upsert` and a `key`")
        if self.evolve and self.changes is not None and self.changes.mode in ("debezium", "dms"):
            raise ValueError(f"evolve: does not look inside the envelopes of {self.changes.mode}")
        return self

    @property
    def meaning(self) -> Changes | None:
        """How records change rows; None where they are rows."""
        return self.changes or Changes(mode="upsert") if self.mode == "upsert" else None

    def beside(self, folder: Path) -> Sql:
        """A file that is named by a relative path is taken from the folder."""
        scheme, mark, path = self.url.get_secret_value().partition(":///")
        if not (mark and scheme.startswith("sqlite") and path) or path.startswith(("/", ":")):
            return self
        return self.model_copy(update={"url": SecretStr(f"{scheme}:///{folder.absolute() / path}")})


class Wrapped(Part):
    """A sink of the user's own, made by `landonce.wrap`."""

    sink: str | None = None
    """`module:name`, or the name of a plug-in. None where a program hands the sink over itself."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """For a `name` that is a function: what it is called with."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _sound(self) -> Wrapped:
        remember_secrets(by_place(self.options))
        return self

    @property
    def folder(self) -> Path:
        """Where modules are looked for first."""
        return self._folder

    def beside(self, folder: Path) -> Wrapped:
        made = self.model_copy()
        made._folder = folder
        return made


class Sink(Part):
    """Where records land: one of the four."""

    clickhouse: ClickHouse | None = None
    iceberg: Iceberg | None = None
    sql: Sql | None = None
    wrapped: Wrapped | None = None

    @model_validator(mode="after")
    def _one(self) -> Sink:
        if sum(each is not None for each in (self.clickhouse, self.iceberg, self.sql, self.wrapped)) != 1:
            raise ValueError("name one sink: clickhouse, iceberg, sql or wrapped")
        return self
