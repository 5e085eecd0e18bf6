"""Iceberg's own Java code, in Spark's JVM: for what PyIceberg cannot do yet.

PyIceberg reads a table of format version 3, but can commit to one only through a REST catalog. `commit` takes the same requirements
and updates as PyIceberg's `Catalog.commit_table`, with the same meaning, in any version: the requirements are checked inside
every attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.table import CommitTableRequest, TableIdentifier
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from landonce.config.secrets import redact
from landonce.errors import ConfigError, TableUnfit, TargetRefused, TargetUnavailable
from landonce.jvm import spark_errors
from landonce.sinks.iceberg.catalog import CatalogSpec

_SHOWN = 500
_SAME_IN_PYICEBERG = (
    ("CommitFailedException", CommitFailedException),
    ("CommitStateUnknownException", CommitStateUnknownException),
    ("NoSuchTableException", NoSuchTableError),
)
_REFUSED = {"NotAuthorizedException", "ForbiddenException"}
_NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
_NO_FILE = "PATH_NOT_FOUND"
_LASTING = {
    "AnalysisException",
    "ExtendedAnalysisException",
    "UnsupportedOperationException",
    "IllegalArgumentException",
    "SparkRuntimeException",
    "SparkArithmeticException",
    "SparkDateTimeException",
    "SparkNumberFormatException",
}
"""A column is missing or of another type, or a value does not fit: the next attempt would fail too."""
_idle: dict[tuple[str, str], list[SparkSession]] = {}


def quoted(*names: str) -> str:
    """Names as one identifier of Spark SQL, with any characters."""
    return ".".join("`{}`".format(name.replace("`", "``")) for name in names)


def spark_name(spec: CatalogSpec, identifier: str, *more: str) -> str:
    """What Spark calls a table, or a branch of it."""
    return quoted(spec.name, *identifier.split("."), *more)


def load(session: SparkSession, spec: CatalogSpec, identifier: str) -> Any:
    """The table as a Java object, read from the catalog now."""
    with in_session(session, spec, identifier):
        spark = _iceberg(session).spark.Spark3Util
        return spark.loadIcebergTable(session._jsparkSession, spark_name(spec, identifier))


def commit(
    session: SparkSession,
    spec: CatalogSpec,
    identifier: str,
    requirements: tuple[TableRequirement, ...],
    updates: tuple[TableUpdate, ...],
) -> None:
    """One atomic change. Raises PyIceberg's `CommitFailedException` where a requirement does not hold."""
    *namespace, name = identifier.split(".")
    named = TableIdentifier.model_validate({"namespace": namespace, "name": name})
    change = CommitTableRequest(identifier=named, requirements=requirements, updates=updates)
    java = _iceberg(session)
    with in_session(session, spec, identifier):
        request = java.rest.requests.UpdateTableRequestParser.fromJson(change.model_dump_json())
        catalog = java.spark.Spark3Util.loadIcebergCatalog(session._jsparkSession, spec.name)
        java.rest.CatalogHandlers.updateTable(catalog, java.catalog.TableIdentifier.parse(identifier), request)


def _iceberg(session: SparkSession) -> Any:
    assert session._jvm is not None
    found = session._jvm.org.apache.iceberg
    if isinstance(found.spark.Spark3Util, JavaPackage):
        raise ConfigError(
            "this Spark was started without Iceberg's runtime, and a table needs its writer.",
            safe="Nothing was written to it.",
            command="start Spark with the iceberg-spark-runtime jar, or let `landonce run {file}` start its own",
        )
    return found


@contextmanager
def settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings, and afterwards as it was."""
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, kept in before.items():
            if kept is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, kept)


@contextmanager
def own_session(session: SparkSession, spec: CatalogSpec) -> Iterator[SparkSession]:
    """A session that no other thread uses meanwhile, in the same Spark: commits take a session's settings.

    It is kept for later use, since a session never closes its connections to a catalog.
    """
    key = (session.sparkContext.applicationId, spec.identity)
    try:
        mine = _idle[key].pop()
    except (KeyError, IndexError):
        mine = session.newSession()
        for name, value in spec.spark_conf().items():
            if name.startswith("spark.sql.catalog."):
                mine.conf.set(name, value)
    try:
        yield mine
    finally:
        _idle.setdefault(key, []).append(mine)


@contextmanager
def in_session(session: SparkSession, spec: CatalogSpec, identifier: str) -> Iterator[None]:
    """Makes the session this thread's active one, where Spark looks for settings and catalogs.

    Errors of the JVM become PyIceberg's if it has the same ones, else landonce's, transient or lasting.
    """
    with spark_errors(), _active(session):
        try:
            with spark_errors():
                yield
        except (Py4JError, PySparkException) as error:
            raise _named(error, spec, identifier) from None


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    assert session._jvm is not None
    java = session._jvm.org.apache.spark.sql.classic.SparkSession
    before = java.getActiveSession()
    java.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            java.setActiveSession(before.get())
        else:
            java.clearActiveSession()


def _named(error: Exception, spec: CatalogSpec, identifier: str) -> Exception:
    names, said = _causes(error)
    for name, same in _SAME_IN_PYICEBERG:
        if name in names:
            return same(said)
    if _NO_TABLE in said:
        return NoSuchTableError(said)
    if names & _REFUSED:
        return TargetRefused(
            f"the catalog {spec.name} refused: {said}",
            safe="Nothing was published.",
            command="give its user the rights to read and commit, or correct `sink.iceberg.catalog` in {file}",
        )
    if names & _LASTING and _NO_FILE not in said:
        return TableUnfit(
            f"Spark cannot write to {spec.name}.{identifier}: {said}",
            safe="Nothing was published.",
            command="change the table or the pipeline so that its columns fit, then run again",
        )
    return TargetUnavailable(f"Spark could not write to {spec.name}.{identifier}: {said}")


def _causes(error: Exception) -> tuple[set[str], str]:
    """The classes of a Java exception and its causes, and the message of the outermost one."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    said = str(java.getMessage()) if java is not None else str(error)
    names = set()
    while java is not None:
        names.add(java.getClass().getSimpleName())
        java = java.getCause()
    return names, redact(said.partition(";")[0])[:_SHOWN]
