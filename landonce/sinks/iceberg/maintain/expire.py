"""Snapshots expire in one atomic change to the very metadata that it was decided on.

Iceberg's own procedure is not used: it applies rules of age on top of the ids that it is given, to whatever the metadata
is by then. Nor is PyIceberg's own change of metadata, which makes the oldest snapshot that is left look like the first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
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
from landonce.sinks.iceberg.catalog import CatalogSpec, telling
from landonce.sinks.iceberg.jvm import load, own_session, talking
from landonce.sinks.iceberg.maintain.keep import Expiry

_ATTEMPTS = 50


@dataclass(frozen=True)
class Removal:
    """What is taken out of a table's metadata."""

    expiry: Expiry = field(default_factory=Expiry)
    branches: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.expiry.ids or self.branches)


def remove(
    session: Callable[[], SparkSession],
    spec: CatalogSpec,
    fresh: Callable[[], Table],
    decide: Callable[[Table], Removal],
) -> tuple[Table, Removal]:
    """Removes what `decide` names, and gives the table as it was before. If somebody commits in between, it is asked again."""
    for attempt in range(_ATTEMPTS):
        table = fresh()
        wanted = decide(table)
        try:
            if wanted:
                with telling(spec):
                    _send(session, spec, table, wanted)
            return table, wanted
        except CommitFailedException:
            time.sleep(random.uniform(0.01, 0.05) * min(attempt + 1, 20))  # noqa: S311  not a secret
    raise TargetUnavailable(f"other writers were faster {_ATTEMPTS} times in a row.")


def _send(session: Callable[[], SparkSession], spec: CatalogSpec, table: Table, wanted: Removal) -> None:
    if spec.kind == "rest":
        _ask(table, wanted)
        return
    with own_session(session(), spec) as mine:
        _swap(mine, spec, table, wanted)


def _ask(table: Table, wanted: Removal) -> None:
    """A REST catalog makes the change itself, if every branch and tag is where it was."""
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
    for name, ref in table.metadata.refs.items():
        told = {"ref": name, "snapshot-id": ref.snapshot_id}
        requirements.append(AssertRefSnapshotId.model_validate(told))
    updates: list[TableUpdate] = [
        RemoveSnapshotRefUpdate.model_validate({"ref-name": each}) for each in wanted.branches
    ]
    if wanted.expiry.ids:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(wanted.expiry.ids)}))
    table._do_commit(tuple(updates), tuple(requirements))


def _swap(session: SparkSession, spec: CatalogSpec, table: Table, wanted: Removal) -> None:
    """Other catalogs swap one version of the metadata for another: this one, or none."""
    assert session._jvm is not None
    identifier = ".".join(table.name())
    operations = load(session, spec, identifier).operations()
    with talking(session, spec, identifier):
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
