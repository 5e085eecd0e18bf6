"""What a query may write to, as a user names it. Picklable, and quiet about passwords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import SecretStr, ValidationError

from landonce.config import secrets
from landonce.errors import ConfigError
from landonce.sinks.clickhouse.sink import ClickHouseSink, read_authority
from landonce.sinks.iceberg.config import Catalog, Iceberg
from landonce.sinks.sql.config import Sql
from landonce.sinks.sql.databases import parsed
from landonce.sinks.sql.sink import SqlSink
from landonce.sinks.wrapped.sink import WrappedSink


@dataclass(frozen=True)
class ClickHouseTable:
    """A table in ClickHouse that keeps coordinates."""

    url: str = field(repr=False)
    table: str
    create: bool = False
    order_by: str | None = None
    partition_by: str | None = None
    deadline: float = 15.0
    cluster: str = ""
    settings: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)
    compression: str | None = None
    authority: str = field(default="", repr=False)

    def named(self, name: str) -> ClickHouseSink:
        return ClickHouseSink(
            self.url,
            self.table,
            name,
            cluster=self.cluster,
            settings=self.settings,
            compression=self.compression,
            authority=self.authority,
        )


@dataclass(frozen=True)
class SqlTable:
    """A table in an SQL database, which also keeps the ledger."""

    url: str = field(repr=False)
    table: str
    create: bool = False

    def named(self, name: str) -> SqlSink:
        return SqlSink(self.url, self.table, name)


@dataclass(frozen=True)
class IcebergTable:
    """One table of an Iceberg catalog, which is its own ledger."""

    told: Iceberg

    @property
    def table(self) -> str:
        return str(self.told.table)


Sink = ClickHouseTable | SqlTable | IcebergTable | WrappedSink


def clickhouse(
    url: str,
    table: str,
    *,
    create: bool = False,
    order_by: str | None = None,
    partition_by: str | None = None,
    deadline: float = 15.0,
    cluster: str = "",
    settings: Mapping[str, object] | None = None,
    compression: Literal["lz4", "zstd"] | None = None,
    ca_cert: str | Path | None = None,
) -> ClickHouseTable:
    """A table in ClickHouse, for `exactly_once`. `deadline`: how many seconds an insert has before ClickHouse refuses it. `ca_cert`: the
    certificate of the authority that signed the server's, where the system does not know it."""
    if not 1 <= deadline <= 3600:
        raise ConfigError(f"deadline: between 1 and 3600 seconds, not {deadline}.")
    secrets.remember_url(url)
    made = ClickHouseTable(
        url,
        table,
        create,
        order_by,
        partition_by,
        deadline,
        cluster,
        dict(settings or {}),
        compression,
        read_authority(ca_cert),
    )
    made.named("check")
    return made


def sql(url: str, table: str, *, create: bool = False) -> SqlTable:
    """A table in PostgreSQL, SQLite, MySQL, MariaDB or YDB, for `exactly_once`. Rows are added to it.

    A relative path of a SQLite file is taken from the current folder.
    """
    told = Sql(url=SecretStr(url), table=table).beside(Path.cwd())
    made = SqlTable(told.url.get_secret_value(), table, create)
    parsed(made.url)
    return made


def iceberg(
    table: str,
    catalog: Mapping[str, object] | None = None,
    *,
    create: bool = False,
    partition_by: str | tuple[str, ...] = (),
    properties: Mapping[str, str | int | float | bool] | None = None,
) -> IcebergTable:
    """A table of Apache Iceberg, for `exactly_once`. Rows are added to it, and it keeps the position itself.

    `catalog` as in a pipeline file; without it, a SQLite catalog and a warehouse in the folder `lake` of the current one.
    `partition_by` and `properties` are for a table that is made.
    """
    told = {"table": table, "create": create, "partition_by": partition_by, "properties": dict(properties or {})}
    try:
        where = Catalog.model_validate(dict(catalog or {})).beside(Path.cwd())
        made = Iceberg.model_validate({**told, "catalog": where})
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, found["loc"])) or "iceberg"
        raise ConfigError(secrets.redact(f"{place}: {found['msg'].removeprefix('Value error, ')}.")) from None
    if not made.one_table:
        raise ConfigError(
            f"table: a query is delivered to one table, and {table!r} stands for many.",
            command="name one table, or write a pipeline file, which routes records to tables",
        )
    return IcebergTable(made)
