"""From rows that exist to what a table takes: by name, losslessly, or a reject for that row alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.read.decoders import Decoded
from landonce.read.formats.json.columns import fit
from landonce.read.formats.json.values import Fault
from landonce.read.rows import COORDINATES
from landonce.read.schema.fields import Schema

KEEP = "__landonce_keep"
"""The column that says whether `where` keeps a row."""


def chosen(rows: pa.Table) -> pa.Table:
    """The rows that `where` keeps."""
    return rows.filter(pc.fill_null(rows.column(KEEP).combine_chunks().cast(pa.bool_()), False))


Fit = Callable[[pa.Table], Decoded]
"""Makes rows of one table of rows with coordinates."""
Refuses = Callable[[pa.Table], Mapping[int, str]]
"""Which rows a table cannot hold though their types fit, by their index, with the reason."""


def fit_to(target: Schema, refuses: Refuses | None = None) -> Fit:
    """How rows become rows of a table with these columns."""

    def fit_rows(rows: pa.Table) -> Decoded:
        table, misfits = conform(rows, target, COORDINATES)
        kept = np.delete(np.arange(rows.num_rows), [at for at, _ in misfits])
        refused = refuses(table) if refuses is not None else {}
        return Decoded(table, kept, (*misfits, *((int(kept[at]), reason) for at, reason in refused.items())))

    return fit_rows


def as_is(rows: pa.Table) -> Decoded:
    """For a target that takes whatever the columns are."""
    return Decoded(rows, np.arange(rows.num_rows))


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
