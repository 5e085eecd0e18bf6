"""A table at one snapshot of a branch, pinned when it is opened, and its rows without those that are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from landonce.config.secrets import redact
from landonce.errors import TableUnfit, TargetUnavailable
from landonce.sinks.iceberg.catalog import CatalogSpec, catalog_errors
from landonce.verify.held.columns import Columns
from landonce.verify.held.deletes import Deletes
from landonce.verify.held.snapshot import Files, LiveFile, described, live_files, pinned, rolled_back
from landonce.verify.held.whole import Projected, WholeColumns

COORDINATES = ("_topic", "_kafka_partition", "_offset")
"""Iceberg's readers have their own column `_partition`."""


class PinnedTable:
    """A missing table or branch has no rows; `notes` say so."""

    def __init__(
        self, spec: CatalogSpec, identifier: str, branch: str = "main", catalog: Catalog | None = None
    ) -> None:
        self.name = identifier
        self._branch = branch
        self._table = _load(spec, catalog, identifier)
        self._snapshot = pinned(self._table, branch) if self._table is not None else None

    @cached_property
    def files(self) -> Files:
        """Every live entry of every manifest."""
        if self._table is None or self._snapshot is None:
            return Files()
        with self._reading("its metadata"):
            return live_files(self._table, self._snapshot)

    def rows(self, names: Sequence[str]) -> Iterator[tuple[LiveFile, pa.RecordBatch]]:
        """These columns of every live entry, file by file: a file that is registered twice comes twice."""
        if self._table is None or not self.files.data:
            return
        columns = Columns(self._schema(names), self._table.metadata.name_mapping())
        for live in self.files.data:
            with self._reading(f"{live.file.file_path}, which snapshot {live.reference.snapshot} registered,"):
                for batch in columns.of(self._table.io, live.file, self._deletes.of(live)):
                    yield live, batch

    def has(self, name: str) -> bool:
        """Whether the pinned snapshot has the column."""
        return self._snapshot is not None and name in self._pinned_schema().column_names

    def pieces(
        self, live: LiveFile, names: Sequence[str], may_hold: Callable[[pq.RowGroupMetaData], bool]
    ) -> Iterator[Projected]:
        """These columns of one live entry with everything inside; skips row groups of Parquet that are not needed."""
        assert self._table is not None
        whole = WholeColumns(self._schema(names), self._table.metadata.name_mapping())
        with self._reading(f"{live.file.file_path}, which snapshot {live.reference.snapshot} registered,"):
            yield from whole.of(self._table.io, live.file, self._deletes.of(live), may_hold)

    def as_of(self) -> str:
        return (
            f"snapshot {described((self._snapshot,))} of branch {self._branch!r}" if self._snapshot is not None else ""
        )

    def notes(self) -> tuple[str, ...]:
        if self._table is None:
            return (f"{self.name}: there is no such table.",)
        if self._snapshot is None:
            return (f"{self.name}: there is no snapshot on branch {self._branch!r}.",)
        undone = rolled_back(self._table, self._branch)
        if not undone:
            return ()
        return (f"{self.name}: rolled back and not in the branch's history any more: snapshot {described(undone)}.",)

    @cached_property
    def _deletes(self) -> Deletes:
        assert self._table is not None
        with self._reading("its deletes"):
            return Deletes(self._table.io, self.files.deletes)

    def _schema(self, names: Sequence[str]) -> Schema:
        """These columns in the schema of the pinned snapshot."""
        schema = self._pinned_schema()
        absent = [each for each in names if each not in schema.column_names]
        if absent:
            raise TableUnfit(
                f"{self.name} has no column {', '.join(absent)}, so its rows cannot be identified.",
                safe="An audit changes nothing.",
                command="compare row counts yourself, or land into a table with coordinates",
            )
        return Schema(*(schema.find_field(each) for each in names))

    def _pinned_schema(self) -> Schema:
        assert self._table is not None
        assert self._snapshot is not None
        return self._table.schemas().get(self._snapshot.schema_id or 0, self._table.schema())

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise TableUnfit(
                f"{self.name}: {what} cannot be read, because a file is missing: {redact(str(error))}",
                safe="An audit changes nothing. Something else deleted a file that a snapshot names.",
                command="restore the file, or roll the table back to a snapshot before it",
            ) from None
        except OSError as error:
            raise TargetUnavailable(f"{self.name}: {what} could not be read: {redact(str(error))[:500]}") from None
        except (pa.ArrowException, ValueError, NotImplementedError) as error:
            raise TableUnfit(
                f"{self.name}: {what} cannot be read: {redact(str(error))[:500]}", safe="An audit changes nothing."
            ) from None


def _load(spec: CatalogSpec, catalog: Catalog | None, identifier: str) -> Table | None:
    with catalog_errors(spec):
        try:
            return (catalog or spec.open()).load_table(identifier)
        except NoSuchTableError:
            return None
