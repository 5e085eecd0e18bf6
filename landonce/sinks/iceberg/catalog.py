"""A catalog: how PyIceberg opens it, how Spark opens the same one, and what its errors mean.

PyIceberg commits and reads metadata. Spark's Iceberg runtime is needed only where Spark writes itself: MERGE, ORC, Avro,
format version 3, sort orders, and maintenance.

Two faults of PyIceberg are worked around here. Its REST requests have no time limit, not even the first ones. And the compiled
decoder of 0.12.0 reads a double's 8 bytes as a C `float`, so that it comes back rounded to 32 bits, or as infinity
(https://github.com/apache/iceberg-python/pull/3808, merged after that release): merged manifests would then hold rounded partition
values, and readers that take an identity partition's value from there would return rounded rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pyiceberg import exceptions as iceberg
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from landonce.config.secrets import redact
from landonce.errors import ConfigError, TargetRefused, TargetUnavailable

_DOUBLE = struct.Struct("<d")
_PROBE = 0.1
_TIMEOUTS = (10.0, 60.0)
"""Seconds to connect, and to wait for an answer."""
_REFUSED = (
    iceberg.UnauthorizedError,
    iceberg.ForbiddenError,
    iceberg.BadRequestError,
    iceberg.AuthorizationExpiredError,
)
_UNREACHABLE = (
    iceberg.ServerError,
    iceberg.CommitStateUnknownException,
    iceberg.RESTError,
    RequestException,
    DBAPIError,
)
_SPARK_TYPES = {"sql": "jdbc", "rest": "rest", "hive": "hive", "glue": "glue"}


def read_doubles_whole() -> None:
    """Makes PyIceberg read all 8 bytes of a double where its compiled decoder rounds. Harmless to call twice."""
    if new_decoder(_DOUBLE.pack(_PROBE)).read_double() != _PROBE:
        DoubleReader.read = _read  # type: ignore[method-assign, assignment]


def _read(_: DoubleReader, decoder: BinaryDecoder) -> float:
    return float(_DOUBLE.unpack(decoder.read(_DOUBLE.size))[0])


class _Timed(HTTPAdapter):
    """A catalog that accepts a request and never answers counts as unreachable."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        kwargs["timeout"] = kwargs.get("timeout") or _TIMEOUTS
        return super().send(request, *args, **kwargs)


class TimedRestCatalog(RestCatalog):
    """PyIceberg's own, with time limits. It sets the headers of a new session first, before it asks for a token."""

    def _config_headers(self, session: Session) -> None:
        for prefix in ("http://", "https://"):
            session.mount(prefix, _Timed())
        super()._config_headers(session)


@dataclass(frozen=True)
class CatalogSpec:
    """A picklable description of a catalog."""

    name: str
    properties: Mapping[str, Any] = field(repr=False)
    """As PyIceberg takes them: some, such as `ssl` and `auth`, hold several values."""
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings for Spark alone, beyond those that follow from the properties."""

    @property
    def identity(self) -> str:
        """Which catalog it is, without its secrets."""
        uri = self.properties.get("uri", "")
        shown = make_url(uri).render_as_string(hide_password=True) if self.kind == "sql" and uri else uri
        return f"{self.kind}:{self.name}:{shown}:{self.properties.get('warehouse', '')}"

    @property
    def kind(self) -> str:
        return str(self.properties.get("type", "sql"))

    @property
    def sqlite_file(self) -> Path | None:
        """The file of a SQLite catalog, which the first run creates. None for every other catalog."""
        uri = self.properties.get("uri", "")
        if self.kind != "sql" or not uri.startswith("sqlite"):
            return None
        database = make_url(uri).database
        return Path(database) if database and database != ":memory:" else None

    def open(self) -> Catalog:
        """Connects. A SQLite catalog is created if it does not exist."""
        read_doubles_whole()
        with catalog_errors(self):
            if self.sqlite_file is not None:
                self.sqlite_file.parent.mkdir(parents=True, exist_ok=True)
            properties = dict(self.properties)
            if self.kind == "rest":
                del properties["type"]
                properties["py-catalog-impl"] = f"{TimedRestCatalog.__module__}.{TimedRestCatalog.__name__}"
            return load_catalog(self.name, **properties)

    def spark_conf(self) -> dict[str, str]:
        """The same catalog as Spark knows it, under the same name."""
        kind = _SPARK_TYPES.get(self.kind)
        if kind is None and not self.spark:
            raise ConfigError(
                f"sink.iceberg.catalog: landonce does not know how Spark opens a catalog of type {self.kind!r}; "
                "say so in `catalog.spark`."
            )
        settings = {"type": kind} if kind else {}
        passed = {
            name: value
            for name, value in self.properties.items()
            if name not in ("type", "uri", "py-io-impl") and not isinstance(value, Mapping)
        }
        uri = self.properties.get("uri")
        if self.kind == "sql" and uri:
            settings |= _jdbc(uri)
        elif uri:
            settings["uri"] = uri
        prefix = f"spark.sql.catalog.{self.name}"
        conf = {f"{prefix}.{name}": value for name, value in {**passed, **settings, **self.spark}.items()}
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
    settings = {
        "uri": f"{where}?{urlencode(url.query, doseq=True)}" if url.query else where,
        "jdbc.schema-version": "V1",
    }
    if url.username:
        settings["jdbc.user"] = url.username
    if url.password:
        settings["jdbc.password"] = str(url.password)
    return settings


@contextmanager
def catalog_errors(spec: CatalogSpec) -> Iterator[None]:
    """Turns a catalog's errors into landonce's, transient or lasting. A commit conflict passes through unchanged."""
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
    except (*_UNREACHABLE, OSError) as error:
        raise TargetUnavailable(f"the catalog {spec.name} did not answer: {redact(str(error))[:500]}") from None
