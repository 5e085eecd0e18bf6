"""What Spark does for Iceberg, with Iceberg's own Java code in its JVM: commits that PyIceberg cannot make yet, and staged batches.

PyIceberg reads a table of format version 3, but can commit to one only through a REST catalog. `commit` takes the same requirements
and updates as PyIceberg's `Catalog.commit_table`, with the same meaning, in any version: the requirements are checked inside
every attempt.

A staged batch is a snapshot that readers do not see yet: Spark writes it to a branch of its own, created at the head it is meant for.
Publishing is a separate step: one compare-and-set moves the real branch from that head to the staged snapshot. If the head moved
meanwhile, the staged snapshot is dropped and the batch is staged again; so a stale MERGE never lands.

Spark appends the staged rows, or merges them by identity. A batch may change a row many times: the last change counts, in the order
of topic, partition and offset. Records of one key stay in one partition of a topic as long as the producer partitions by key, and
there the order is the topic's own. A change gives the whole row: a column that it does not hold becomes null. Columns that the
pipeline does not know keep their values in a row that exists, and are null in a new one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableRequest, TableIdentifier
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import EMPTY_DICT
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, IntegerType, LongType, StructType

from landonce.config.secrets import redact
from landonce.errors import (
    CertificateRefused,
    ConfigError,
    TableReshaped,
    TableUnfit,
    TargetRefused,
    TargetUnavailable,
    Unbalanced,
)
from landonce.jvm import spark_errors
from landonce.read.envelopes import DELETE, OPERATION
from landonce.read.schema.ddl import quoted
from landonce.sinks.iceberg.catalog import S3_ADDRESSES, CatalogSpec
from landonce.sinks.iceberg.staged import staged_rows
from landonce.sinks.iceberg.types import COLUMNS
from landonce.sinks.snapshot import no_such_table

_SAME_IN_PYICEBERG = (
    ("CommitFailedException", CommitFailedException),
    ("CommitStateUnknownException", CommitStateUnknownException),
)
_REFUSED = {"NotAuthorizedException", "ForbiddenException"}
_NOT_TRUSTED = {"SSLHandshakeException", "SSLPeerUnverifiedException"}
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
_RANK = "_landonce_rank"
_ORDERED = (IntegerType, LongType, DateType)
"""Not strings: Spark reads a uuid as one, and Iceberg orders uuids differently from their text."""
_NAME = re.compile(r"landonce_stage_(?P<pipeline>.+)_e(?P<epoch>\d+)_b(?P<batch>\d+)_[0-9a-f]{16}")
_PINNED = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
}
"""Settings that decide how staged values become the table's."""
_DEFAULT = "CURRENT_DEFAULT"
"""Under this name a column's metadata in Spark hold the default for new rows, as a literal of SQL."""
_SHUFFLE = "spark.sql.shuffle.partitions"


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
    with spark_errors():
        assert session._jvm is not None
        java = session._jvm.org.apache.spark.sql.classic.SparkSession
        before = java.getActiveSession()
        java.setActiveSession(session._jsparkSession)
        try:
            with spark_errors():
                yield
        except (Py4JError, PySparkException) as error:
            raise _named(_why(error, session, spec), spec, identifier) from None
        finally:
            if before.isDefined():
                java.setActiveSession(before.get())
            else:
                java.clearActiveSession()


def _why(error: Exception, session: SparkSession, spec: CatalogSpec) -> Exception:
    """Spark takes the name of a catalog that it cannot open for a namespace. Opening the catalog directly says what is wrong with it."""
    if "REQUIRES_SINGLE_PART_NAMESPACE" in str(error):
        try:
            _iceberg(session).spark.Spark3Util.loadIcebergCatalog(session._jsparkSession, spec.name)
        except Py4JError as failure:
            why: Exception = failure
            return why
    return error


def _named(error: Exception, spec: CatalogSpec, identifier: str) -> Exception:
    """By the classes of a Java exception and its causes, with the message of the outermost one."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    message = str(java.getMessage()) if java is not None else str(error)
    said = redact(message.partition(";")[0])[:500]
    names = set()
    while java is not None:
        names.add(java.getClass().getSimpleName())
        java = java.getCause()
    for name, same in _SAME_IN_PYICEBERG:
        if name in names:
            return same(said)
    if "NoSuchTableException" in names or "TABLE_OR_VIEW_NOT_FOUND" in said:
        return no_such_table(identifier, "Nothing was published.")
    if names & _REFUSED:
        return TargetRefused(
            f"the catalog {spec.name} refused: {said}",
            safe="Nothing was published.",
            command="give its user the rights to read and commit, or correct `sink.iceberg.catalog` in {file}",
        )
    if names & _NOT_TRUSTED:
        return CertificateRefused(
            f"Spark does not trust a certificate on its way to {spec.name}.{identifier}, or shows none that the server accepts: {said}",
            safe="Nothing was published.",
            command="give Spark's JVM the authority that signed it, in a trust store (-Djavax.net.ssl.trustStore=… in JAVA_TOOL_OPTIONS)",
        )
    if names & _LASTING and "PATH_NOT_FOUND" not in said:
        return TableUnfit(
            f"Spark cannot write to {spec.name}.{identifier}: {said}",
            safe="Nothing was published.",
            command="change the table or the pipeline so that its columns fit, then run again",
        )
    return TargetUnavailable(f"Spark could not write to {spec.name}.{identifier}: {said}")


@dataclass(frozen=True)
class Append:
    """Every staged row is a new row. `rows`: how many there are, if that is known; then it is checked."""

    rows: int | None = None

    def prepared(self, staged: DataFrame, table: StructType) -> DataFrame:
        """All columns of the table: Spark inserts by name only if none is missing."""
        return staged.select(*_filled(staged, table, table.names))

    def bounds(self, staged: DataFrame) -> dict[str, Any]:
        """An append searches for no rows."""
        del staged
        return {}

    def statement(self, target: str, view: str, bounds: Mapping[str, Any]) -> str:
        """Columns are matched by name, nested fields too."""
        del bounds
        return f"INSERT INTO {target} BY NAME SELECT * FROM {quoted(view)}"  # noqa: S608


@dataclass(frozen=True)
class Merge:
    """A staged row inserts, replaces or deletes the row of the same identity."""

    identity: tuple[str, ...]
    columns: tuple[str, ...]

    def prepared(self, staged: DataFrame, table: StructType) -> DataFrame:
        """The last change of every identity."""
        newest = [staged[quoted(name)].desc() for name in COLUMNS]
        window = Window.partitionBy(*(staged[quoted(name)] for name in self.identity)).orderBy(*newest)
        ranked = staged.withColumn(_RANK, F.row_number().over(window)).where(F.col(_RANK) == 1)
        return ranked.select(*_filled(ranked, table, self.columns), F.col(OPERATION))

    def bounds(self, staged: DataFrame) -> dict[str, Any]:
        """The lowest and highest identities. With them, Spark skips files that cannot hold any: rows that change are often near
        each other."""
        sought = [
            (f"{side}_{at}", function(staged[quoted(name)]), F.bool_or(staged[quoted(name)].isNull()))
            for at, name in enumerate(self.identity)
            if isinstance(staged.schema[name].dataType, _ORDERED)
            for side, function in (("least", F.min), ("most", F.max))
        ]
        if not sought:
            return {}
        found = staged.agg(*(each for _, *pair in sought for each in pair)).collect()[0]
        values = {name: (found[2 * at], found[2 * at + 1]) for at, (name, _, _) in enumerate(sought)}
        return {name: value for name, (value, null) in values.items() if null is False}

    def statement(self, target: str, view: str, bounds: Mapping[str, Any]) -> str:
        """Deleting a row that does not exist does nothing."""
        terms = [f"t.{quoted(name)} <=> s.{quoted(name)}" for name in self.identity]
        for at, name in enumerate(self.identity):
            if f"least_{at}" in bounds:
                terms.append(f"t.{quoted(name)} BETWEEN :least_{at} AND :most_{at}")
        same = " AND ".join(terms)
        sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self.columns)
        names = ", ".join(map(quoted, self.columns))
        values = ", ".join(f"s.{quoted(name)}" for name in self.columns)
        deletes = f"s.{quoted(OPERATION)} = '{DELETE}'"
        return (
            f"MERGE INTO {target} AS t USING {quoted(view)} AS s ON {same} "  # noqa: S608
            f"WHEN MATCHED AND {deletes} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND NOT {deletes} THEN INSERT ({names}) VALUES ({values})"
        )


def _filled(rows: DataFrame, table: StructType, columns: Sequence[str]) -> list[Column]:
    """The columns by name; null if no staged file holds one. The default of a required column (format version 3) replaces null. Raises if the
    rows hold a column that the table lacks: somebody renamed or dropped it meanwhile, and its values would be lost."""
    held = set(rows.columns)
    gone = sorted({*columns, *held.difference(COLUMNS, (OPERATION, _RANK))}.difference(table.names))
    if gone:
        raise TableReshaped(f"rows were written for columns that the table does not have any more: {', '.join(gone)}.")
    found = []
    for name in columns:
        column = rows[quoted(name)] if name in held else F.lit(None).cast(table[name].dataType)
        default = table[name].metadata.get(_DEFAULT) if not table[name].nullable else None
        found.append((F.coalesce(column, F.expr(default)) if default is not None else column).alias(name))
    return found


@dataclass(frozen=True)
class StageOf:
    """Which pipeline, epoch and batch a staging branch belongs to."""

    pipeline: str
    epoch: int
    batch: int

    def new_name(self) -> str:
        """A name that was never used before."""
        return f"landonce_stage_{self.pipeline}_e{self.epoch}_b{self.batch}_{uuid.uuid4().hex[:16]}"


def stage_of(name: str) -> StageOf | None:
    """The owner that a branch's name states; None for branches of others."""
    found = _NAME.fullmatch(name)
    return StageOf(found["pipeline"], int(found["epoch"]), int(found["batch"])) if found else None


def stage(
    session: SparkSession,
    spec: CatalogSpec,
    identifier: str,
    name: str,
    base: int | None,
    files: Sequence[str],
    how: Append | Merge,
    summary: Mapping[str, str],
    schema: int | None = None,
    io: Mapping[str, str] = EMPTY_DICT,
) -> int:
    """Creates the branch `name` at the snapshot `base`, writes the files' rows to it, and returns the id of the new snapshot.

    There is always exactly one new snapshot, with this summary, even if nothing changed; its parent is `base`. A table without any
    snapshot (`base` is None) gets an empty first one. Several threads may stage at once.
    Raises `TableReshaped` if the table's schema is not number `schema`, for which the files were written. `io`: what opens their storage.
    """
    with own_session(session, spec) as mine, _staging_errors(identifier):
        staging = _Staging(mine, spec, identifier, name)
        try:
            root = staging.begin(base)
            if files:
                with _settings(
                    mine, {"spark.sql.iceberg.snapshot-property." + key: value for key, value in summary.items()}
                ):
                    staging.write(files, how, schema, io)
            return staging.finish(root, how, summary)
        except BaseException:
            with suppress(Exception):
                commit(mine, spec, identifier, (), (removed(name),))
            raise


@dataclass(frozen=True)
class _Staging:
    """One staging branch while it is written."""

    session: SparkSession
    spec: CatalogSpec
    identifier: str
    name: str

    def begin(self, base: int | None) -> int:
        """Makes the branch, and returns the snapshot that it begins at."""
        if base is not None:
            made = SetSnapshotRefUpdate.model_validate({"ref-name": self.name, "type": "branch", "snapshot-id": base})
            new = AssertRefSnapshotId.model_validate({"ref": self.name, "snapshot-id": None})
            commit(self.session, self.spec, self.identifier, (new,), (made,))
            return base
        table = load(self.session, self.spec, self.identifier)
        if table.currentSnapshot() is not None:
            raise TargetUnavailable(f"{self.identifier} was empty, and has a snapshot now.")
        with in_session(self.session, self.spec, self.identifier):
            table.newFastAppend().toBranch(self.name).commit()
            return int(table.snapshot(self.name).snapshotId())

    def write(self, files: Sequence[str], how: Append | Merge, schema: int | None, io: Mapping[str, str]) -> None:
        """Spark reads the columns itself, later than the driver did. If they changed in between, neither what Spark wrote counts nor
        what it refused."""
        session = self.session
        target = spark_name(self.spec, self.identifier, f"branch_{self.name}")
        view = f"landonce_{uuid.uuid4().hex}"

        def require_schema() -> None:
            if schema is not None and load(session, self.spec, self.identifier).schema().schemaId() != schema:
                raise TableReshaped(f"the columns of {self.identifier} were changed while a batch was written for it.")

        try:
            with in_session(session, self.spec, self.identifier):
                staged = self._staged(files, io)
                how.prepared(staged, session.table(target).schema).createTempView(view)
                try:
                    bounds = how.bounds(staged)
                    session.sql(how.statement(target, view, bounds), args=bounds)
                finally:
                    session.sql(f"DROP VIEW IF EXISTS {quoted(view)}")
        except TableUnfit:
            require_schema()
            raise
        require_schema()

    def _staged(self, files: Sequence[str], io: Mapping[str, str]) -> DataFrame:
        if files[0].startswith(S3_ADDRESSES):
            return staged_rows(self.session, files, io)
        paths = [re.sub(r"([\\{}\[\]*?])", r"\\\1", each) for each in files]  # Spark reads a path as a pattern
        return self.session.read.option("mergeSchema", "true").parquet(*paths)

    def finish(self, root: int, how: Append | Merge, summary: Mapping[str, str]) -> int:
        """The one snapshot on top of the root; an empty one if Spark found nothing to do."""
        table = load(self.session, self.spec, self.identifier)
        with in_session(self.session, self.spec, self.identifier):
            if table.snapshot(self.name) is not None and table.snapshot(self.name).snapshotId() == root:
                append = table.newFastAppend().toBranch(self.name)
                for key, value in summary.items():
                    append.set(key, value)
                append.commit()
                table.refresh()
            head = table.snapshot(self.name)
            written = dict(head.summary()) if head is not None else {}
            if head is None or head.parentId() != root or not summary.items() <= written.items():
                raise TargetUnavailable(f"{self.identifier}: somebody else changed the staging branch {self.name}.")
            added = int(written.get("added-records", 0))
            if isinstance(how, Append) and how.rows is not None and added != how.rows:
                raise Unbalanced(
                    f"{self.identifier}: {how.rows} rows were staged, and Spark wrote {added}.",
                    safe="Nothing was published.",
                )
            return int(head.snapshotId())


@contextmanager
def _settings(session: SparkSession, more: Mapping[str, str]) -> Iterator[None]:
    """A session's settings while it writes, and afterwards as they were. A shuffle uses every core here: a pipeline's session is set up
    for tasks that do not shuffle."""
    shuffle = max(int(session.conf.get(_SHUFFLE) or 1), session.sparkContext.defaultParallelism)
    wanted = {**_PINNED, _SHUFFLE: str(shuffle), **more}
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


def drop_stage(session: SparkSession, spec: CatalogSpec, identifier: str, name: str) -> None:
    """Removes a staging branch, if it exists. Its snapshots go when snapshots expire."""
    with own_session(session, spec) as mine, _staging_errors(identifier):
        commit(mine, spec, identifier, (), (removed(name),))


def left_behind(refs: Iterable[str], pipeline: str, epoch: int) -> list[str]:
    """The staging branches of earlier epochs of the pipeline, among the refs of a table."""
    whose = {name: stage_of(name) for name in refs}
    return [name for name, of in whose.items() if of and of.pipeline == pipeline and of.epoch < epoch]


@contextmanager
def _staging_errors(identifier: str) -> Iterator[None]:
    """PyIceberg's errors as landonce's. Nobody competes for a staging branch, so a refused change may be tried again."""
    try:
        yield
    except (CommitFailedException, CommitStateUnknownException) as error:
        raise TargetUnavailable(f"{identifier}: a staging branch could not be changed: {error}") from None


def removed(name: str) -> RemoveSnapshotRefUpdate:
    return RemoveSnapshotRefUpdate.model_validate({"ref-name": name})
