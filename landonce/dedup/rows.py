"""Rows of a user's own query in the store: fitted to the target before they are accepted, and pushed as they are.

A row has the columns of the target. It is judged by its key like a record, and its chunk holds its columns instead of a payload.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from landonce.dedup.chunks import ROW, StoredRecords, columns_of, opened
from landonce.dedup.comparing import EVENTS, AcceptRecipe, AcceptWorker, Integers
from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.rule import LATE
from landonce.protocol.ranges import Range, label_of
from landonce.read.block import Reader
from landonce.read.formats import Decoded, Reject
from landonce.read.route import Routing, Rule
from landonce.read.rows import COORDINATES, fit_to
from landonce.sinks.snapshot import StageTask
from landonce.sinks.worker import BlockWorker

TIMESTAMP = "timestamp"
"""The column of Kafka's timestamp, as Spark's source calls it. Without it, no row is late."""


@dataclass(frozen=True, kw_only=True)
class RowsRecipe(AcceptRecipe):
    """How rows of a query become ids."""

    def worker(self, task: StageTask) -> BlockWorker:
        return RowsWorker(self, task)


@dataclass(frozen=True)
class RowsWorker(AcceptWorker):
    """Stages the rows of one block, which has one range."""

    def reader(self) -> Reader:
        return Reader(Routing(None, (Rule(EVENTS),)), {}, {EVENTS: self._fit}, marks=True)

    def _fit(self, rows: pa.Table) -> Decoded:
        """Ids beside the rows as the target takes them. A query has no dead letters: a row that would be one ends it."""
        recipe = self.recipe
        moments = _moments(rows)
        fitted = fit_to(recipe.target)(rows)
        table, kept = fitted.table, fitted.kept
        if recipe.source != recipe.target:  # the store keeps the key's floats as they came, and the target rounds them
            table = fit_to(recipe.source)(rows.take(pa.array(kept))).table
        label, number = (rows.column(name)[0].as_py() if rows.num_rows else 0 for name in COORDINATES[:2])
        offsets = table.column("_offset").to_numpy()
        ids = compute(recipe.rule, table, None, {}, Coordinates(str(label), int(number), offsets))
        bad = {int(kept[at]): reason for at, reason in ids.rejects.items()}
        late = kept[recipe.late_ones(moments[kept])]
        if recipe.late == "dead_letter":
            bad.update({int(at): LATE for at in late})
        good = ~np.isin(kept, [*bad, *late])
        named = {name: table.column(name) for name in COORDINATES}
        named |= {"hi": pa.array(ids.hi), "lo": pa.array(ids.lo), "timestamp": pa.array(moments[kept])}
        named |= {
            f"{ROW}{each.name}": table.column(each.name)
            for each in recipe.target.fields
            if each.name in table.column_names
        }
        rejects = (*fitted.rejects, *(Reject(at, reason) for at, reason in bad.items()))
        filtered = late if recipe.late == "drop" else late[:0]
        return Decoded(pa.table(named).filter(pa.array(good)), kept[good], tuple(sorted(rejects)), filtered)

    def _sizes(self, rows: pa.Table) -> Integers:
        return np.full(rows.num_rows, rows.nbytes // rows.num_rows, np.int64)


def _moments(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """When each record was produced, in milliseconds."""
    if TIMESTAMP in rows.column_names and pt.is_timestamp(rows.schema.field(TIMESTAMP).type):
        moments = rows.column(TIMESTAMP).cast(pa.timestamp("ms", tz=rows.schema.field(TIMESTAMP).type.tz), safe=False)
        found: np.ndarray[tuple[int], np.dtype[np.int64]] = moments.cast(pa.int64()).fill_null(-1).to_numpy()
        return found
    return np.full(rows.num_rows, int(time.time() * 1000), np.int64)


@dataclass(frozen=True)
class StoredRows(StoredRecords):
    """The accepted rows of one query."""

    def rows(self, ranges: tuple[Range, ...], labels: Mapping[str, str]) -> pa.Table | None:
        store, found = opened(self.place), []
        self._require_accepted(store, ranges)
        for each in ranges:
            label = label_of(labels, each.partition)
            for chunk in store.chunks(self.pipeline, each):
                accepted = self._records(store, chunk, ranges, each)
                count = accepted.num_rows
                columns = {
                    "_topic": pa.repeat(pa.scalar(label), count),
                    "_partition": pa.repeat(pa.scalar(each.partition.number, pa.int32()), count),
                    "_offset": accepted.column("offset"),
                }
                own = columns_of(accepted)
                found.append(pa.table(columns | dict(zip(own.column_names, own.columns, strict=True))))
        self._require_kept(store, ranges)
        return pa.concat_tables(found, promote_options="permissive") if found else _NONE


_NONE = pa.table(
    {"_topic": pa.array([], pa.string()), "_partition": pa.array([], pa.int32()), "_offset": pa.array([], pa.int64())}
)
