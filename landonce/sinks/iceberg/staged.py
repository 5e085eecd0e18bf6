"""A batch in a snapshot that nobody sees yet: Spark writes it to a branch of its own, made at the head it is meant for.

Publishing is another's task: one compare-and-set moves the real branch from that head to the staged snapshot. Where the
head has moved meanwhile, the staged snapshot is of no use, and the batch is staged again; so a stale MERGE never lands.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate
from pyspark.sql import SparkSession

from landonce.errors import TableReplaced, TableReshaped, TableUnfit, TargetUnavailable, Unbalanced
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.jvm import commit, load, own_session, quoted, settings, spark_name, talking
from landonce.sinks.iceberg.merge import Append, Merge

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
"""What decides how staged values become the table's."""
_SHUFFLE = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class StageOf:
    """Whose staging branch it is."""

    pipeline: str
    epoch: int
    batch: int

    def new_name(self) -> str:
        """A name that was never used before."""
        return f"landonce_stage_{self.pipeline}_e{self.epoch}_b{self.batch}_{uuid.uuid4().hex[:16]}"


def stage_of(name: str) -> StageOf | None:
    """What a branch's name says; None for branches of others."""
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
    """Makes the branch `name` at the snapshot `base`, writes the files' rows to it, and gives the id of the new snapshot.

    Raises `TableReshaped` where the table's schema is not the one of the number `schema`, which the files were written for.
    There is always exactly one, with this summary, even where nothing changed; its parent is `base`. A table without any
    snapshot (`base` is None) gets an empty first one. Several threads may stage at once.
    """
    with own_session(session, spec) as mine, _ours(identifier):
        try:
            root = _open(mine, spec, identifier, name, base)
            if files:
                with _shaped(mine, spec, identifier, schema), settings(mine, _settings(mine, summary)):
                    _write(mine, spec, identifier, name, files, how)
            return _closed(mine, spec, identifier, name, root, how, summary)
        except BaseException:
            with suppress(Exception):
                commit(mine, spec, identifier, (), (_removed(name),))
            raise


def drop_stage(session: SparkSession, spec: CatalogSpec, identifier: str, name: str) -> None:
    """Removes a staging branch, if it is there. What it held goes when snapshots expire."""
    with own_session(session, spec) as mine, _ours(identifier):
        commit(mine, spec, identifier, (), (_removed(name),))


def left_behind(refs: Iterable[str], pipeline: str, epoch: int) -> list[str]:
    """The staging branches of earlier epochs of the pipeline, among all that a table has."""
    whose = {name: stage_of(name) for name in refs}
    return [name for name, of in whose.items() if of and of.pipeline == pipeline and of.epoch < epoch]


def drop_stages(session: SparkSession, spec: CatalogSpec, identifier: str, pipeline: str, epoch: int) -> int:
    """Removes the staging branches that earlier epochs of the pipeline left behind, and says how many."""
    with own_session(session, spec) as mine, _ours(identifier):
        left = left_behind((str(name) for name in load(mine, spec, identifier).refs().keySet()), pipeline, epoch)
        if left:
            commit(mine, spec, identifier, (), tuple(map(_removed, left)))
        return len(left)


@contextmanager
def _ours(identifier: str) -> Iterator[None]:
    """PyIceberg's errors as landonce's. Nobody competes for a staging branch: what was refused may be tried again."""
    try:
        yield
    except (CommitFailedException, CommitStateUnknownException) as error:
        raise TargetUnavailable(f"{identifier}: a staging branch could not be changed: {error}") from None
    except NoSuchTableError:
        raise TableReplaced(
            f"the table {identifier} is not there.",
            safe="Nothing was published.",
            command="bring the table back; or start again, `landonce run {file}`: with `create: true` a new table is made, and gets all "
            "that Kafka still holds",
        ) from None


@contextmanager
def _shaped(session: SparkSession, spec: CatalogSpec, identifier: str, schema: int | None) -> Iterator[None]:
    """Spark reads the columns itself, later than whoever looked at the table before. If they were changed, then neither what
    Spark wrote counts nor what it refused."""

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
        raise TargetUnavailable(f"{identifier} was empty, and has a snapshot by now.")
    with talking(session, spec, identifier):
        table.newFastAppend().toBranch(name).commit()
        return int(table.snapshot(name).snapshotId())


def _settings(session: SparkSession, summary: Mapping[str, str]) -> dict[str, str]:
    """A shuffle uses every core: a pipeline's session is set up for tasks that need none."""
    wanted = max(int(session.conf.get(_SHUFFLE) or 1), session.sparkContext.defaultParallelism)
    return {**_PINNED, _SHUFFLE: str(wanted), **{_SUMMARY + key: value for key, value in summary.items()}}


def _write(
    session: SparkSession, spec: CatalogSpec, identifier: str, name: str, files: Sequence[str], how: Append | Merge
) -> None:
    target = spark_name(spec, identifier, f"branch_{name}")
    view = f"landonce_{uuid.uuid4().hex}"
    with talking(session, spec, identifier):
        staged = session.read.option("mergeSchema", "true").parquet(*map(_literally, files))
        how.prepared(staged, session.table(target).schema).createTempView(view)
        try:
            bounds = how.bounds(staged)
            session.sql(how.statement(target, view, bounds), args=bounds)
        finally:
            session.sql(f"DROP VIEW IF EXISTS {quoted(view)}")


def _literally(path: str) -> str:
    """Spark takes a path for a pattern."""
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
    """The one snapshot on top of the root; an empty one where Spark found nothing to do."""
    table = load(session, spec, identifier)
    with talking(session, spec, identifier):
        if table.snapshot(name) is not None and table.snapshot(name).snapshotId() == root:
            _commit_empty(table, name, summary)
        head = table.snapshot(name)
        told = dict(head.summary()) if head is not None else {}
        if head is None or head.parentId() != root or not summary.items() <= told.items():
            raise TargetUnavailable(f"{identifier}: somebody else changed the staging branch {name}.")
        if isinstance(how, Append) and how.rows is not None and int(told.get("added-records", 0)) != how.rows:
            raise Unbalanced(
                f"{identifier}: {how.rows} rows were staged, and Spark wrote {told.get('added-records', 0)}.",
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
