"""From what an expression yields to what the table takes: by name, losslessly, or a reject for that row alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition, topics_of
from landonce.read.block import Rejected
from landonce.read.formats.json.columns import fit
from landonce.read.formats.json.values import Fault
from landonce.read.schema.fields import Schema
from landonce.sinks.contract import COORDINATES

KEEP = "__landonce_keep"
"""The column that says whether `where` keeps a row."""


def chosen(rows: pa.Table) -> pa.Table:
    """The rows that `where` keeps."""
    return rows.filter(pc.fill_null(rows.column(KEEP).combine_chunks().cast(pa.bool_()), False))


def misfit(labels: Mapping[str, str], rows: pa.Table, at: int, reason: str) -> Rejected:
    """A row that the table does not take, as the record that it came from."""
    names = topics_of(labels)
    label, number, offset = (rows.column(name)[at].as_py() for name in COORDINATES)
    return Rejected(Partition(names.get(label, label), number), offset, reason)


def conform(rows: pa.Table, target: Schema, kept: tuple[str, ...]) -> tuple[pa.Table, list[tuple[int, str]]]:
    """The rows in the table's types, without those that do not fit, and for each of these its index and the reason.

    `kept` are columns that pass as they are. Columns that the table does not have are left out: what may be named was
    checked before the start.
    """
    reasons: dict[int, str] = {}
    columns = {name: rows.column(name) for name in kept}
    for each in target.fields:
        if each.name not in rows.column_names:
            continue
        array = rows.column(each.name).combine_chunks()
        fitted, faults = fit(array, each)
        _note(reasons, faults, each.name)
        columns[each.name] = fitted
    table = pa.table(columns)
    if reasons:
        keep = np.ones(rows.num_rows, dtype=np.bool_)
        keep[list(reasons)] = False
        table = table.filter(pa.array(keep))
    return table, sorted(reasons.items())


def _note(reasons: dict[int, str], faults: list[Fault], name: str) -> None:
    for fault in faults:
        for row in np.flatnonzero(fault.rows):
            reasons.setdefault(int(row), fault.reason(name))
