"""A catalog: how PyIceberg opens it, how Spark opens the same one, and what its errors mean.

PyIceberg commits and reads metadata. Spark's Iceberg runtime is only needed where Spark writes itself: MERGE, ORC, Avro,
format version 3, sort orders, and maintenance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyiceberg import exceptions as iceberg
from pyiceberg.catalog import Catalog, load_catalog
from requests import RequestException
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from landonce.config.secrets import redact
from landonce.errors import ConfigError, TargetRefused, TargetUnavailable
from landonce.sinks.iceberg.avro import read_doubles_whole
from landonce.sinks.iceberg.rest import TimedRestCatalog

_REFUSED = (
    iceberg.UnauthorizedError,
    iceberg.ForbiddenError,
    iceberg.BadRequestError,
    iceberg.AuthorizationExpiredError,
)
_AWAY = (iceberg.ServerError, iceberg.CommitStateUnknownException, iceberg.RESTError, RequestException, DBAPIError)
_SPARK_TYPES = {"sql": "jdbc", "rest": "rest", "hive": "hive", "glue": "glue"}


@dataclass(frozen=True)
class CatalogSpec:
    """A picklable description of a catalog."""

    name: str
    properties: Mapping[str, Any] = field(repr=False)
    """As PyIceberg takes them: some, such as `ssl` and `auth`, hold several values."""
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What only Spark's side is told, beyond what follows from the properties."""

    @property
    def identity(self) -> str:
        """Which catalog it is, without its secrets."""
        uri = self.properties.get("uri", "")
        shown = make_url(uri).render_as_string(hide_password=True) if self.kind == "sql" and uri else uri
        return f"{self.kind}:{self.name}:{shown}:{self.properties.get('warehouse', '')}"

    @property
    def kind(self) -> str:
        return str(self.properties.get("type", "sql"))

    def open(self) -> Catalog:
        """Connects. An embedded catalog is made if it is not there."""
        read_doubles_whole()
        with telling(self):
            self._make_folders()
            told = dict(self.properties)
            if self.kind == "rest":
                del told["type"]
                told["py-catalog-impl"] = f"{TimedRestCatalog.__module__}.{TimedRestCatalog.__name__}"
            return load_catalog(self.name, **told)

    def _make_folders(self) -> None:
        uri = self.properties.get("uri", "")
        if self.kind == "sql" and uri.startswith("sqlite"):
            database = make_url(uri).database
            if database and database != ":memory:":
                Path(database).parent.mkdir(parents=True, exist_ok=True)

    def spark_conf(self) -> dict[str, str]:
        """The same catalog as Spark knows it, under the same name."""
        kind = _SPARK_TYPES.get(self.kind)
        if kind is None and not self.spark:
            raise ConfigError(
                f"sink.iceberg.catalog: landonce does not know how Spark opens a catalog of type {self.kind!r}; "
                "say so in `catalog.spark`."
            )
        told = {"type": kind} if kind else {}
        passed = {
            name: value
            for name, value in self.properties.items()
            if name not in ("type", "uri", "py-io-impl") and not isinstance(value, Mapping)
        }
        uri = self.properties.get("uri")
        if self.kind == "sql" and uri:
            told |= _jdbc(uri)
        elif uri:
            told["uri"] = uri
        prefix = f"spark.sql.catalog.{self.name}"
        conf = {f"{prefix}.{name}": value for name, value in {**passed, **told, **self.spark}.items()}
        return {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            f"{prefix}.cache-enabled": "false",
            **conf,
        }


def _jdbc(uri: str) -> dict[str, str]:
    url = make_url(uri)
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ConfigError("sink.iceberg.catalog: Spark cannot open a catalog that lives in this process's memory.")
        return {"uri": f"jdbc:sqlite:{url.database}", "jdbc.schema-version": "V1"}
    if url.get_backend_name() != "postgresql":
        raise ConfigError(
            f"sink.iceberg.catalog: a SQL catalog lives in SQLite or PostgreSQL, not in {url.drivername}."
        )
    where = f"jdbc:postgresql://{url.host or 'localhost'}:{url.port or 5432}/{url.database}"
    # Both drivers know the settings that matter by the same names: sslmode, sslrootcert, …
    told = {"uri": f"{where}?{urlencode(url.query, doseq=True)}" if url.query else where, "jdbc.schema-version": "V1"}
    if url.username:
        told["jdbc.user"] = url.username
    if url.password:
        told["jdbc.password"] = str(url.password)
    return told


@contextmanager
def telling(spec: CatalogSpec) -> Iterator[None]:
    """Turns a catalog's errors into landonce's: what may pass, and what does not. A conflict stays what it is."""
    try:
        yield
    except _REFUSED as error:
        raise TargetRefused(
            f"the catalog {spec.name} refused: {redact(str(error))}",
            safe="Nothing was written.",
            command="correct `sink.iceberg.catalog` in {file}, or give its user the rights to read and commit",
        ) from None
    except PermissionError as error:
        raise TargetRefused(
            f"the storage refused: {redact(str(error))}",
            safe="Nothing was committed.",
            command="give landonce the right to read and write the warehouse",
        ) from None
    except (*_AWAY, OSError) as error:
        raise TargetUnavailable(f"the catalog {spec.name} did not answer: {redact(str(error))[:500]}") from None
