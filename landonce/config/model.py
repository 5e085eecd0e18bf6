"""What a pipeline file may say. Unknown keys are errors; every default that a user may rely on stands here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from landonce.config import secrets
from landonce.config.values import Duration, Size

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
_SECRET_PROPERTY = re.compile(r"password|secret|token|credential|key|auth|sas|header|connection-string", re.IGNORECASE)
_ADDRESS = re.compile(r"(https?://[^@]*|true|false)$", re.IGNORECASE)
"""What is no secret, whatever the property is called: an address without a password, a word."""
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
    compression: Literal["lz4", "zstd"] | None = None
    ca_cert: Path | None = None
    """The certificate of the authority that signed the server's, where the system does not know it."""

    def beside(self, folder: Path) -> ClickHouse:
        return self.model_copy(update={"ca_cert": folder / self.ca_cert}) if self.ca_cert is not None else self


def _remember_secrets(properties: Mapping[str, Any], above: str = "") -> None:
    """Of properties whose name is like a secret's, or that lie below such a one."""
    for name, value in properties.items():
        path = f"{above}.{name}"
        if isinstance(value, list):
            raise ValueError(f"{name}: a catalog property is one value, or several with names of their own")
        if isinstance(value, Mapping):
            _remember_secrets(value, path)
        elif isinstance(value, str) and _SECRET_PROPERTY.search(path) and not _ADDRESS.match(value):
            for part in (value, *value.split(":")[1:], *value.split()[1:]):
                secrets.remember(part)


def _by_place(value: Any) -> Any:
    """Options of a plug-in may hold lists: each value by its place in it, so that secrets in them are found too."""
    if isinstance(value, list):
        value = {str(place): each for place, each in enumerate(value)}
    return {name: _by_place(each) for name, each in value.items()} if isinstance(value, Mapping) else value


def _as_text(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_text(value) if isinstance(value, Mapping) else str(value) for name, value in properties.items()}


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
        _remember_secrets({**(self.model_extra or {}), **self.spark})
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


class Iceberg(Part):
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
    coordinates: bool = True
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


class Sql(Part):
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
    coordinates: bool = True

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
        _remember_secrets(_by_place(self.options))
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


class LedgerPlugin(Part):
    """A ledger that another package offers, by entry point in the group `landonce.ledgers`."""

    name: str = Field(min_length=1)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    """What the plug-in is opened with."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _sound(self) -> LedgerPlugin:
        _remember_secrets(self.options)
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
