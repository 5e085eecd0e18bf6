"""Doubles in manifests, read as they are.

The compiled decoder of PyIceberg 0.12.0 declares what it reads from 8 bytes as a C `float`, so that a double comes back rounded
to 32 bits, or as infinity (https://github.com/apache/iceberg-python/pull/3808, merged after that release). Whoever merges
manifests writes such partition values back, and readers that take an identity partition's value from there give rounded rows.
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
_AWAY = (iceberg.ServerError, iceberg.CommitStateUnknownException, iceberg.RESTError, RequestException, DBAPIError)
_SPARK_TYPES = {"sql": "jdbc", "rest": "rest", "hive": "hive", "glue": "glue"}


def read_doubles_whole() -> None:
    """Has PyIceberg read doubles from their 8 bytes, where its compiled decoder rounds them. Harmless when done again."""
    if new_decoder(_DOUBLE.pack(_PROBE)).read_double() != _PROBE:
        DoubleReader.read = _read  # type: ignore[method-assign, assignment]


def _read(_: DoubleReader, decoder: BinaryDecoder) -> float:
    return float(_DOUBLE.unpack(decoder.read(_DOUBLE.size))[0])


class _Timed(HTTPAdapter):
    """A catalog that accepts a request and never answers is one that is away."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        kwargs["timeout"] = kwargs.get("timeout") or _TIMEOUTS
        return super().send(request, *args, **kwargs)


class TimedRestCatalog(RestCatalog):
    """PyIceberg's own. The headers are the first thing that it gives a new session: before it asks for a token."""

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
        with catalog_errors(self):
            self._make_folders()
            properties = dict(self.properties)
            if self.kind == "rest":
                del properties["type"]
                properties["py-catalog-impl"] = f"{TimedRestCatalog.__module__}.{TimedRestCatalog.__name__}"
            return load_catalog(self.name, **properties)

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
