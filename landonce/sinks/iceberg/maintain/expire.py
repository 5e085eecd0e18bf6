"""Which snapshots may expire, and removing them in one atomic change to the very metadata that it was decided on.

The newest mark in a branch's ancestry, which is walked from parent to parent, holds a pipeline's position. So it is not enough to
keep the snapshot with the mark: the walk ends at the first snapshot that is missing. Kept are

    every head of a branch and every tag
    of every branch, so many snapshots and all that are younger than an age, as Iceberg does
    snapshots that no branch leads to any more (rolled back, or staged), while they are young
    below each of these, everything down to the newest mark of every pipeline

The last line holds for every snapshot that is kept, so a table may still be rolled back to any of them. If a pipeline has no mark
below a snapshot, all that is left below it is kept: only a whole history shows that the pipeline had not begun.

Iceberg's own procedure is not used: it applies rules of age on top of the ids that it is given, to whatever the metadata
is by then. Nor is PyIceberg's change of metadata, which makes the oldest snapshot that is left look like the first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)
from pyspark.sql import SparkSession

from landonce.errors import TargetUnavailable
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors
from landonce.sinks.iceberg.marks import pipeline_of, pipelines_of, with_ancestors
from landonce.sinks.iceberg.spark import in_session, load, own_session
from landonce.sinks.iceberg.table import whole_number

_AGE, _LEAST = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
_DEFAULT_AGE, _DEFAULT_LEAST = 5 * 24 * 3600 * 1000, 10
_ATTEMPTS = 50


@dataclass(frozen=True)
class ExpiryPolicy:
    """How much history is kept."""

    age_ms: int = _DEFAULT_AGE
    least: int = _DEFAULT_LEAST
    """How many snapshots of every branch are kept, however old."""
    retired: frozenset[str] = frozenset()
    """Pipelines that will never run again: their position is not kept."""

    @staticmethod
    def of(
        properties: Mapping[str, str], age_ms: int | None, least: int | None, retired: Iterable[str] = ()
    ) -> ExpiryPolicy:
        """From the command's options, or else from the table's properties, which are Iceberg's own."""
        if age_ms is None:
            age_ms = whole_number(properties, _AGE, _DEFAULT_AGE)
        if least is None:
            least = max(1, whole_number(properties, _LEAST, _DEFAULT_LEAST))
        return ExpiryPolicy(age_ms, least, frozenset(retired))


@dataclass(frozen=True)
class Expiry:
    """The snapshots that may go, oldest first, and how many stay only because of a pipeline's position."""

    ids: tuple[int, ...] = ()
    for_positions: int = 0
    pipelines: tuple[str, ...] = ()
    """The pipelines whose position that is."""


def expiry(metadata: TableMetadata, policy: ExpiryPolicy, now_ms: int) -> Expiry:
    """The snapshots that nobody needs."""
    known = {each.snapshot_id: each for each in metadata.snapshots}
    kept: set[int] = set()
    reached: set[int] = set()
    for ref in metadata.refs.values():
        kept |= _of_ref(ref, known, policy, now_ms)
        for each in with_ancestors(ref.snapshot_id, known):
            if each.snapshot_id in reached:
                break
            reached.add(each.snapshot_id)
    young = {each.snapshot_id for each in known.values() if each.timestamp_ms >= now_ms - policy.age_ms}
    kept |= young - reached
    held = _held(kept, known, pipelines_of(metadata) - policy.retired)
    kept |= held.keys()
    gone = sorted((each for each in known.values() if each.snapshot_id not in kept), key=lambda each: each.timestamp_ms)
    return Expiry(tuple(each.snapshot_id for each in gone), len(held), tuple(sorted(set().union(*held.values()))))


def _of_ref(ref: SnapshotRef, known: Mapping[int, Snapshot], policy: ExpiryPolicy, now_ms: int) -> set[int]:
    """A tag keeps its snapshot; a branch keeps young snapshots and its last ones, by rules of its own if it has them."""
    kept = {ref.snapshot_id}
    if ref.snapshot_ref_type is SnapshotRefType.TAG:
        return kept
    since = now_ms - (policy.age_ms if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms)
    least = policy.least if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
    for at, each in enumerate(with_ancestors(ref.snapshot_id, known)):
        if at >= least and each.timestamp_ms < since:
            break
        kept.add(each.snapshot_id)
    return kept


def _held(kept: set[int], known: Mapping[int, Snapshot], pipelines: frozenset[str]) -> dict[int, frozenset[str]]:
    """The snapshots between the kept ones and the marks below them, with the pipelines that need them.

    A walk from the lowest of a row of kept snapshots serves those above it too: the marks that they need are in the row, or
    below it.
    """
    held: dict[int, frozenset[str]] = {}
    for lowest in kept & known.keys():
        if known[lowest].parent_snapshot_id in kept:
            continue
        missing = pipelines
        for each in with_ancestors(lowest, known):
            if not missing:
                break
            if each.snapshot_id not in kept:
                held[each.snapshot_id] = held.get(each.snapshot_id, frozenset()) | missing
            missing -= {pipeline_of(each)}
    return held


@dataclass(frozen=True)
class Removal:
    """What is removed from a table's metadata."""

    expiry: Expiry = field(default_factory=Expiry)
    branches: tuple[str, ...] = ()


def remove(
    session: Callable[[], SparkSession],
    spec: CatalogSpec,
    fresh: Callable[[], Table],
    decide: Callable[[Table], Removal],
) -> tuple[Table, Removal]:
    """Removes what `decide` names, and returns the table as it was before. If somebody commits in between, `decide` is called again."""
    for attempt in range(_ATTEMPTS):
        table = fresh()
        wanted = decide(table)
        if not (wanted.expiry.ids or wanted.branches):
            return table, wanted
        try:
            with catalog_errors(spec):
                if spec.kind == "rest":
                    _ask(table, wanted)
                else:
                    with own_session(session(), spec) as mine:
                        _swap(mine, spec, table, wanted)
            return table, wanted
        except CommitFailedException:
            time.sleep(random.uniform(0.01, 0.05) * min(attempt + 1, 20))  # noqa: S311  not a secret
    raise TargetUnavailable(f"other writers were faster {_ATTEMPTS} times in a row.")


def _ask(table: Table, wanted: Removal) -> None:
    """A REST catalog makes the change itself, if every branch and tag is unchanged."""
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
    for name, ref in table.metadata.refs.items():
        requirements.append(AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id}))
    updates: list[TableUpdate] = [
        RemoveSnapshotRefUpdate.model_validate({"ref-name": each}) for each in wanted.branches
    ]
    if wanted.expiry.ids:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(wanted.expiry.ids)}))
    table._do_commit(tuple(updates), tuple(requirements))


def _swap(session: SparkSession, spec: CatalogSpec, table: Table, wanted: Removal) -> None:
    """Other catalogs swap one version of the metadata for another, if it is still the version that was read."""
    assert session._jvm is not None
    identifier = ".".join(table.name())
    operations = load(session, spec, identifier).operations()
    with in_session(session, spec, identifier):
        base = operations.current()
        if str(base.metadataFileLocation()) != table.metadata_location:
            raise CommitFailedException(f"{identifier} changed meanwhile")
        change = session._jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
        for name in wanted.branches:
            change.removeRef(name)
        gone = session._jvm.java.util.ArrayList()
        for each in wanted.expiry.ids:
            gone.add(base.snapshot(each))
        change.removeSnapshots(gone)
        operations.commit(base, change.build())
