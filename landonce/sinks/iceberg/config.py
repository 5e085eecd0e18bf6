"""The section of a pipeline file for tables of Apache Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, SecretStr, model_validator

from landonce.config.model import LedgerSection, Transform, remember_secrets
from landonce.config.part import Part, SecretUrl, url_beside
from landonce.errors import ConfigError
from landonce.packages import require
from landonce.sinks.section import ChangesSection, LedgerPlace, RoutedSection, from_program

if TYPE_CHECKING:
    from landonce.sinks.iceberg.sink import IcebergSink


def _as_text(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_text(value) if isinstance(value, Mapping) else str(value) for name, value in properties.items()}


def _files_beside(ssl: Any, folder: Path) -> Any:
    """PyIceberg's `ssl`: `cabundle` and `client` are files, but `cabundle` may also say that nothing is verified."""
    if isinstance(ssl, Mapping):
        return {name: _files_beside(value, folder) for name, value in ssl.items()}
    return str(folder / ssl) if isinstance(ssl, str) else ssl


class Catalog(Part):
    """Which Iceberg catalog. Other keys are properties that PyIceberg and Spark both get unchanged.

    The default is a SQLite file and a warehouse in the folder `lake`, which needs no server.
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
        """Leaves out the other properties: they may hold secrets."""
        return [(name, getattr(self, name)) for name in ("name", "type", "uri", "warehouse")]

    def properties(self) -> dict[str, Any]:
        """As PyIceberg takes them."""
        properties: dict[str, Any] = {"type": self.type, **_as_text(self.model_extra or {})}
        if self.uri is not None:
            properties["uri"] = self.uri.get_secret_value()
        if self.warehouse is not None:
            properties["warehouse"] = self.warehouse
        return properties

    def beside(self, folder: Path) -> Catalog:
        """The default catalog is in the folder of the pipeline file, where files of certificates are looked for, too."""
        if self.uri is not None or self.type != "sql":
            ssl = (self.model_extra or {}).get("ssl")
            uri = SecretStr(url_beside(self.uri.get_secret_value(), folder)) if self.uri is not None else None
            return self.model_copy(update={"uri": uri, **({"ssl": _files_beside(ssl, folder)} if ssl else {})})
        lake = folder / "lake"
        uri = SecretStr(f"sqlite:///{lake / 'catalog.db'}")
        return self.model_copy(update={"uri": uri, "warehouse": f"file://{lake}"})


class Iceberg(RoutedSection):
    """Tables of Apache Iceberg: one, several, or one per value of a field."""

    keeps_position: ClassVar[str] = "with `landonce.iceberg` the position is kept in the table itself, with its rows"
    catalog: Catalog = Catalog()
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
    changes: ChangesSection | None = None
    write: Literal["merge", "equality"] = "merge"
    """How changes are written: by Spark's MERGE, or by the workers, as new rows and equality deletes."""
    inserts: Literal["upsert", "append"] = "upsert"
    """With `write: equality`: whether an insert replaces a row of its identity, or is trusted to be the first one."""

    @model_validator(mode="before")
    @classmethod
    def _one_column(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        alone = {name: (given[name],) for name in ("partition_by", "identity") if isinstance(given.get(name), str)}
        return {**given, **alone}

    @model_validator(mode="after")
    def _sound(self) -> Iceberg:
        for name in self.names:
            if "." not in name.strip("."):
                raise ValueError(f"table: {name!r} needs a namespace, for example db.{name}")
        if self.evolve and self.changes is not None and self.changes.mode in ("debezium", "dms"):
            raise ValueError(f"evolve: does not look inside the envelopes of {self.changes.mode}")
        if self.changes is not None and not self.identity and self.create:
            raise ValueError(
                "changes: a table that is created needs `identity`, the fields that name one row; it is missing"
            )
        self._check_write()
        return self

    def _check_write(self) -> None:
        """Raises for ways to write that do not go together."""
        if self.write == "equality" and self.changes is None:
            raise ValueError("write: equality is a way to write changes, and the file has no `changes`")
        if self.inserts == "append":
            if self.write != "equality":
                raise ValueError("inserts: append goes with `write: equality` only")
            if self.changes is not None and self.changes.mode == "upsert":
                raise ValueError(
                    "inserts: append needs records that say which of them are inserts; with `upsert`, none does"
                )
        if self.write == "equality":
            for name, taken in (("format-version", "2"), ("write.format.default", "parquet")):
                given = str(self.properties.get(name, taken)).lower()
                if given != taken:
                    raise ValueError(
                        f"write: equality writes tables with {name} {taken}, and `properties` says {given}"
                    )

    @property
    def by_equality(self) -> bool:
        """Whether workers write changes themselves, as new rows and equality deletes."""
        return self.changes is not None and self.write == "equality"

    def beside(self, folder: Path) -> Iceberg:
        return self.model_copy(update={"catalog": self.catalog.beside(folder)})

    @property
    def position_place(self) -> str:
        return f"{self.table} in {self.catalog.properties()}"

    def ledger_place(self, *, named: bool) -> LedgerPlace:
        return LedgerPlace.IN_COMMIT if self.one_table and not named else LedgerPlace.OUTSIDE

    def refuse(self, transform: Transform, ledger: LedgerSection | None) -> None:
        del ledger
        if not transform.empty and (self.changes is not None or self.evolve):
            raise ValueError("transform: goes with neither `changes` nor `evolve`, which take records as they are")

    def to_sink(self, pipeline: str) -> IcebergSink:
        require("iceberg", "sink.iceberg")
        from landonce.sinks.iceberg.sink import IcebergSink

        return IcebergSink.of(self, pipeline)


def iceberg(
    table: str,
    catalog: Mapping[str, object] | None = None,
    *,
    create: bool = False,
    partition_by: str | tuple[str, ...] = (),
    properties: Mapping[str, str | int | float | bool] | None = None,
) -> Iceberg:
    """A table of Apache Iceberg, for `exactly_once`. Rows are added to it, and it keeps the position itself.

    `catalog` as in a pipeline file; without it, a SQLite catalog and a warehouse in the folder `lake` of the current one.
    `partition_by` and `properties` are for a table that landonce creates.
    """
    made = from_program(
        Iceberg,
        "iceberg",
        table=table,
        create=create,
        partition_by=partition_by,
        properties=dict(properties or {}),
        catalog=dict(catalog or {}),
    )
    if not made.one_table:
        raise ConfigError(
            f"table: a query is delivered to one table, and {table!r} names many.",
            command="name one table, or write a pipeline file, which routes records to tables",
        )
    return made
