"""Which tables records go to, and what they change there: routing and changes as the pipeline defines them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from landonce.read.changes.decode import ChangeDecoder, Changes
from landonce.read.route import Routed, Routing, route_values, routes
from landonce.read.schema.fields import Schema
from landonce.verify.expect import Rows, Sorted
from landonce.verify.judge import Offsets


@dataclass(frozen=True)
class ByField:
    """Routes records by the value of a field, and rows of expressions by the value of a column."""

    routing: Routing

    def of_values(self, values: pa.BinaryArray) -> Sorted:
        field = self.routing.field
        return _sorted(routes(self.routing, values if field is None else route_values(values, field)))

    def of_rows(self, rows: pa.Table) -> Sorted:
        field = self.routing.field
        if field is None:
            return _sorted(routes(self.routing, pa.nulls(rows.num_rows)))
        return _sorted(routes(self.routing, rows.column(field).combine_chunks().cast(pa.string())))


def _sorted(routed: Routed) -> Sorted:
    tables = {table: _indexes(at) for table, at in routed.tables.items() if len(at)}
    return Sorted(tables, np.array([each.index for each in routed.rejects], np.int64))


class Changing:
    """Records that change rows, for one table."""

    def __init__(self, schema: Schema, identity: tuple[str, ...], changes: Changes, max_record_bytes: int) -> None:
        self._decoder = ChangeDecoder(schema, identity, changes, max_record_bytes=max_record_bytes)

    def decode(self, values: pa.BinaryArray, keys: list[bytes | None]) -> Rows:
        changed = self._decoder.decode(values, keys)
        rejected = np.array([each.index for each in changed.rejects], np.int64)
        return Rows(_indexes(changed.kept), rejected, changed.table, changes=True)


def _indexes(array: pa.Int64Array) -> Offsets:
    return np.asarray(array.to_numpy(), np.int64)
