"""A batch in a snapshot that readers do not see yet: Spark writes it to a branch of its own, created at the head it is meant for.

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
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, IntegerType, LongType, StructType

from landonce.errors import TableReplaced, TableReshaped, TableUnfit, TargetUnavailable, Unbalanced
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import Attempt, TableBranch
from landonce.sinks.iceberg.files import StagedFile
from landonce.sinks.iceberg.jvm import commit, in_session, load, own_session, quoted, settings, spark_name
from landonce.sinks.iceberg.types import COLUMNS

_RANK = "_landonce_rank"
_ORDERED = (IntegerType, LongType, DateType)
"""Not strings: Spark reads a uuid as one, and Iceberg orders uuids differently from their text."""
_NAME = re.compile(r"landonce_stage_(?P<pipeline>.+)_e(?P<epoch>\d+)_b(?P<batch>\d+)_[0-9a-f]{16}")
_SUMMARY = "spark.sql.iceberg.snapshot-property."
_PINNED = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
}
"""Settings that decide how staged values become the table's."""
_SHUFFLE = "spark.sql.shuffle.partitions"


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
    """The columns by name, null if no staged file holds one. Nothing that the rows hold is left out: if somebody renamed or
    dropped a column meanwhile, its values would become nulls."""
    held = set(rows.columns)
    gone = sorted({*columns, *held.difference(COLUMNS, (OPERATION, _RANK))}.difference(table.names))
    if gone:
        raise TableReshaped(f"rows were written for columns that the table does not have any more: {', '.join(gone)}.")
    return [
        rows[quoted(name)] if name in held else F.lit(None).cast(table[name].dataType).alias(name) for name in columns
    ]


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
) -> int:
    """Creates the branch `name` at the snapshot `base`, writes the files' rows to it, and returns the id of the new snapshot.

    There is always exactly one new snapshot, with this summary, even if nothing changed; its parent is `base`. A table without any
    snapshot (`base` is None) gets an empty first one. Several threads may stage at once.
    Raises `TableReshaped` if the table's schema is not number `schema`, for which the files were written.
    """
    with own_session(session, spec) as mine, _staging_errors(identifier):
        try:
            root = _open(mine, spec, identifier, name, base)
            if files:
                with _same_schema(mine, spec, identifier, schema), settings(mine, _settings(mine, summary)):
                    _write(mine, spec, identifier, name, files, how)
            return _closed(mine, spec, identifier, name, root, how, summary)
        except BaseException:
            with suppress(Exception):
                commit(mine, spec, identifier, (), (_removed(name),))
            raise


def staged_attempt(
    place: TableBranch,
    table: Table,
    summary: Mapping[str, str],
    properties: Mapping[str, str],
    files: Sequence[StagedFile] = (),
    how: Append | Merge | None = None,
) -> Attempt:
    """A commit whose snapshot Spark makes on a staging branch. Without files it is empty."""
    assert place.session is not None
    session, spec, name = place.session(), place.spec, place.identifier
    branch = StageOf(place.pipeline, int(summary["landonce.epoch"]), int(summary["landonce.batch"])).new_name()
    paths, schema = [each.path for each in files], table.metadata.current_schema_id
    snapshot = stage(session, spec, name, branch, place.head(table), paths, how or Append(), summary, schema)
    attempt = place.publishing(table, snapshot, branch, summary, properties)
    return replace(attempt, discard=lambda: drop_stage(session, spec, name, branch))


def drop_stage(session: SparkSession, spec: CatalogSpec, identifier: str, name: str) -> None:
    """Removes a staging branch, if it exists. Its snapshots go when snapshots expire."""
    with own_session(session, spec) as mine, _staging_errors(identifier):
        commit(mine, spec, identifier, (), (_removed(name),))


def left_behind(refs: Iterable[str], pipeline: str, epoch: int) -> list[str]:
    """The staging branches of earlier epochs of the pipeline, among the refs of a table."""
    whose = {name: stage_of(name) for name in refs}
    return [name for name, of in whose.items() if of and of.pipeline == pipeline and of.epoch < epoch]


def drop_stages(session: SparkSession, spec: CatalogSpec, identifier: str, pipeline: str, epoch: int) -> int:
    """Removes the staging branches that earlier epochs of the pipeline left behind, and returns how many."""
    with own_session(session, spec) as mine, _staging_errors(identifier):
        left = left_behind((str(name) for name in load(mine, spec, identifier).refs().keySet()), pipeline, epoch)
        if left:
            commit(mine, spec, identifier, (), tuple(map(_removed, left)))
        return len(left)


@contextmanager
def _staging_errors(identifier: str) -> Iterator[None]:
    """PyIceberg's errors as landonce's. Nobody competes for a staging branch, so a refused change may be tried again."""
    try:
        yield
    except (CommitFailedException, CommitStateUnknownException) as error:
        raise TargetUnavailable(f"{identifier}: a staging branch could not be changed: {error}") from None
    except NoSuchTableError:
        raise TableReplaced(
            f"the table {identifier} does not exist.",
            safe="Nothing was published.",
            command="restore the table; or start again with `landonce run {file}`: with `create: true`, landonce "
            "creates a new table and delivers everything that Kafka still holds",
        ) from None


@contextmanager
def _same_schema(session: SparkSession, spec: CatalogSpec, identifier: str, schema: int | None) -> Iterator[None]:
    """Spark reads the columns itself, later than the driver did. If they changed in between, neither what Spark wrote counts nor
    what it refused."""

    def require() -> None:
        if schema is not None and load(session, spec, identifier).schema().schemaId() != schema:
            raise TableReshaped(f"the columns of {identifier} were changed while a batch was written for it.")

    try:
        yield
    except TableUnfit:
        require()
        raise
    require()


def _open(session: SparkSession, spec: CatalogSpec, identifier: str, name: str, base: int | None) -> int:
    if base is not None:
        made = SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": "branch", "snapshot-id": base})
        new = AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": None})
        commit(session, spec, identifier, (new,), (made,))
        return base
    table = load(session, spec, identifier)
    if table.currentSnapshot() is not None:
        raise TargetUnavailable(f"{identifier} was empty, and has a snapshot now.")
    with in_session(session, spec, identifier):
        table.newFastAppend().toBranch(name).commit()
        return int(table.snapshot(name).snapshotId())


def _settings(session: SparkSession, summary: Mapping[str, str]) -> dict[str, str]:
    """A shuffle uses every core here: a pipeline's session is set up for tasks that do not shuffle."""
    wanted = max(int(session.conf.get(_SHUFFLE) or 1), session.sparkContext.defaultParallelism)
    return {**_PINNED, _SHUFFLE: str(wanted), **{_SUMMARY + key: value for key, value in summary.items()}}


def _write(
    session: SparkSession, spec: CatalogSpec, identifier: str, name: str, files: Sequence[str], how: Append | Merge
) -> None:
    target = spark_name(spec, identifier, f"branch_{name}")
    view = f"landonce_{uuid.uuid4().hex}"
    with in_session(session, spec, identifier):
        staged = session.read.option("mergeSchema", "true").parquet(*map(_literally, files))
        how.prepared(staged, session.table(target).schema).createTempView(view)
        try:
            bounds = how.bounds(staged)
            session.sql(how.statement(target, view, bounds), args=bounds)
        finally:
            session.sql(f"DROP VIEW IF EXISTS {quoted(view)}")


def _literally(path: str) -> str:
    """Spark reads a path as a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)


def _closed(
    session: SparkSession,
    spec: CatalogSpec,
    identifier: str,
    name: str,
    root: int,
    how: Append | Merge,
    summary: Mapping[str, str],
) -> int:
    """The one snapshot on top of the root; an empty one if Spark found nothing to do."""
    table = load(session, spec, identifier)
    with in_session(session, spec, identifier):
        if table.snapshot(name) is not None and table.snapshot(name).snapshotId() == root:
            _commit_empty(table, name, summary)
        head = table.snapshot(name)
        written = dict(head.summary()) if head is not None else {}
        if head is None or head.parentId() != root or not summary.items() <= written.items():
            raise TargetUnavailable(f"{identifier}: somebody else changed the staging branch {name}.")
        if isinstance(how, Append) and how.rows is not None and int(written.get("added-records", 0)) != how.rows:
            raise Unbalanced(
                f"{identifier}: {how.rows} rows were staged, and Spark wrote {written.get('added-records', 0)}.",
                safe="Nothing was published.",
            )
        return int(head.snapshotId())


def _commit_empty(table: Any, name: str, summary: Mapping[str, str]) -> None:
    append = table.newFastAppend().toBranch(name)
    for key, value in summary.items():
        append.set(key, value)
    append.commit()
    table.refresh()


def _removed(name: str) -> RemoveSnapshotRefUpdate:
    return RemoveSnapshotRefUpdate.model_validate({"ref-name": name})
