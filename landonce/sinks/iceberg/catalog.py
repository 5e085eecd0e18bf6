"""A catalog: how PyIceberg opens it, how Spark opens the same one, and what its errors mean.

PyIceberg commits and reads metadata. Spark's Iceberg runtime is needed only where Spark writes itself: MERGE, ORC, Avro,
format version 3, sort orders, and maintenance.

Two faults of PyIceberg are worked around here. Its REST requests have no time limit, not even the first ones. And the compiled
decoder of 0.12.0 reads a double's 8 bytes as a C `float`, so that it comes back rounded to 32 bits, or as infinity
(https://github.com/apache/iceberg-python/pull/3808, merged after that release): merged manifests would then hold rounded partition
values, and readers that take an identity partition's value from there would return rounded rows.
"""

from __future__ import annotations

import re
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from pydantic import ValidationError
from pyiceberg import exceptions as iceberg
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog, auth
from requests import HTTPError, PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from landonce.config.secrets import redact
from landonce.errors import CertificateRefused, ConfigError, TableUnfit, TargetRefused, TargetUnavailable
from landonce.ledger.postgres import certificate_refusal
from landonce.sinks.iceberg import storage
from landonce.tls import TlsKeys, examine, refusal

_DOUBLE = struct.Struct("<d")
_PROBE = 0.1
_SECRET_QUERY = ("password", "sslpassword")
"""In the URL of PostgreSQL."""
_URL_USER = re.compile(r"(?<=://)[^/@]*@")
_TIMEOUTS = (10.0, 60.0)
"""Seconds to connect, and to wait for an answer."""
_REFUSED = (
    iceberg.UnauthorizedError,
    iceberg.ForbiddenError,
    iceberg.BadRequestError,
    iceberg.AuthorizationExpiredError,
    iceberg.OAuthError,
)
_REFUSED_STATUS = (400, 401, 403)
"""Of a server of tokens that PyIceberg asks itself (`auth`)."""
_UNREADABLE = (iceberg.ValidationError, ValidationError)
_UNKNOWN_TYPE = re.compile(r"Unsupported field type: '([^']*)'")
_UNREACHABLE = (
    iceberg.ServerError,
    iceberg.CommitStateUnknownException,
    iceberg.RESTError,
    RequestException,
    DBAPIError,
)
S3_ADDRESSES = ("s3://", "s3a://")
_CERTIFICATE_KEYS = TlsKeys("`ssl: {cabundle: …}` of the catalog", "`ssl: {client: {cert: …, key: …}}` of the catalog")
_SPARK_TYPES = {"sql": "jdbc", "rest": "rest", "hive": "hive", "glue": "glue"}


def read_doubles_whole() -> None:
    """Makes PyIceberg read all 8 bytes of a double where its compiled decoder rounds. Harmless to call twice."""
    if new_decoder(_DOUBLE.pack(_PROBE)).read_double() != _PROBE:
        DoubleReader.read = _read  # type: ignore[method-assign, assignment]


def _read(_: DoubleReader, decoder: BinaryDecoder) -> float:
    return float(_DOUBLE.unpack(decoder.read(_DOUBLE.size))[0])


class _Timed(HTTPAdapter):
    """A catalog that accepts a request and never answers counts as unreachable. And the authorities that the pipeline file names count:
    `requests` prefers those of the environment (REQUESTS_CA_BUNDLE)."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        kwargs["timeout"] = kwargs.get("timeout") or _TIMEOUTS
        if self._session.verify is not True:
            kwargs["verify"] = self._session.verify
        return super().send(request, *args, **kwargs)


def _timed(session: Session) -> Session:
    for prefix in ("http://", "https://"):
        session.mount(prefix, _Timed(session))
    return session


class TimedRestCatalog(RestCatalog):
    """PyIceberg's own, with time limits. It sets the headers of a new session first, before it asks for a token.

    A server of tokens (`auth: {type: oauth2, …}`) is asked by `requests.post`, in PyIceberg's module `auth`, where a session stands in for it.
    """

    def _config_headers(self, session: Session) -> None:
        auth.requests = _timed(Session())  # type: ignore[assignment, attr-defined]
        super()._config_headers(_timed(session))


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
        if self.kind == "sql" and uri:
            shown = make_url(uri).difference_update_query(_SECRET_QUERY).render_as_string(hide_password=True)
        else:
            shown = _URL_USER.sub("", uri)
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

    @property
    def in_s3(self) -> bool:
        """Whether its tables are in a bucket of S3, as far as the properties say."""
        address = str(self.properties.get("warehouse", ""))
        return address.startswith(S3_ADDRESSES) or any(name.startswith("s3.") for name in self.properties)

    def open(self) -> Catalog:
        """Connects. A SQLite catalog is created if it does not exist."""
        read_doubles_whole()
        self._require_files()
        properties = dict(self.properties)
        if self.kind == "rest":
            del properties["type"]
            properties["py-catalog-impl"] = f"{TimedRestCatalog.__module__}.{TimedRestCatalog.__name__}"
        try:
            with catalog_errors(self):
                if self.sqlite_file is not None:
                    self.sqlite_file.parent.mkdir(parents=True, exist_ok=True)
                return load_catalog(self.name, **properties)
        except (iceberg.NotInstalledError, ImportError, ValueError, ArgumentError) as error:
            raise _unusable(error) from None

    def _require_files(self) -> None:
        """PyIceberg would find out at its first request, and call it a failure of the connection."""
        if "ssl" not in self.properties:
            return
        try:
            _context(self)
        except (OSError, ValueError, AttributeError, TypeError) as error:
            problem = (
                getattr(error, "strerror", None) or "a file is not PEM, or the key does not belong to the certificate"
            )
            raise ConfigError(
                f"sink.iceberg.catalog: the files under `ssl` cannot be used: {problem}.",
                command="correct `cabundle`, and `cert` and `key` of the client, in {file}",
            ) from None

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
        java: dict[str, str] = {}
        if self.in_s3:  # what Iceberg's Java code calls otherwise than PyIceberg, or takes for a disk
            region = self.properties.get("s3.region")
            java = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **({"client.region": region} if region else {})}
        prefix = f"spark.sql.catalog.{self.name}"
        given = {**java, **passed, **settings, **self.spark}
        conf = {f"{prefix}.{name}": value for name, value in given.items()}
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
        raise _refused(spec, error) from None
    except _UNREADABLE as error:
        types = ", ".join(sorted(set(_UNKNOWN_TYPE.findall(str(error)))))
        what = f"a column has the type {types}, which it does not know" if types else redact(str(error))[:500]
        raise TableUnfit(
            f"PyIceberg, through which landonce opens tables, cannot read the metadata of the table: {what}.",
            safe="Nothing was written.",
            command="write to a table without such columns",
        ) from None
    except (InvalidSchema, InvalidURL, MissingSchema) as error:
        raise _unusable(error) from None
    except (*_UNREACHABLE, OSError) as error:
        if isinstance(error, HTTPError) and getattr(error.response, "status_code", 0) in _REFUSED_STATUS:
            raise _refused(spec, error) from None
        if isinstance(error, OSError) and storage.is_refusal(error):
            raise storage.refusal(error) from None
        if (refused := _certificate_refusal(spec, error)) is not None:
            raise refused from None
        raise TargetUnavailable(f"the catalog {spec.name} did not answer: {redact(str(error))[:500]}") from None


def _unusable(error: Exception) -> ConfigError:
    return ConfigError(
        f"sink.iceberg.catalog: PyIceberg cannot open it: {redact(str(error))}.",
        command="correct `type` and `uri` of the catalog in {file}, or install what is missing",
    )


def _refused(spec: CatalogSpec, error: Exception) -> TargetRefused:
    return TargetRefused(
        f"the catalog {spec.name} refused: {redact(str(error))}",
        safe="Nothing was written.",
        command="correct `sink.iceberg.catalog` in {file}, or give its user the rights to read and commit",
    )


def _certificate_refusal(spec: CatalogSpec, error: Exception) -> CertificateRefused | None:
    uri, who = str(spec.properties.get("uri", "")), f"the catalog {spec.name}"
    if isinstance(error, DBAPIError):
        return certificate_refusal(str(error.orig), make_url(uri), who)
    where = urlsplit(uri)
    if where.scheme != "https":
        return None

    def again() -> ssl.SSLError | None:
        return examine(where.hostname or "", where.port or 443, _context(spec))

    return refusal(error, who, where.hostname or "", _CERTIFICATE_KEYS, again)


def _context(spec: CatalogSpec) -> ssl.SSLContext:
    """As PyIceberg has it, by its property `ssl`."""
    named = spec.properties.get("ssl", {})
    made = ssl.create_default_context(cafile=named.get("cabundle"))
    if client := named.get("client", {}).get("cert"):
        made.load_cert_chain(client, named["client"].get("key"), password="")
    return made
