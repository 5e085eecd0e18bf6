"""Decodes change records to an operation and its row, with Arrow; record by record only after an error.

Here the record is the row itself; `envelopes` handles records that contain rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from landonce.read.formats.json.decode import JsonDecoder, Reject
from landonce.read.formats.json.values import Fault, Mask, mask_of
from landonce.read.schema.fields import Field, Schema

INSERT, UPDATE, DELETE = "I", "U", "D"

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Words:
    """The names of the operations in records, and the field that holds them."""

    where: str
    meaning: tuple[tuple[str, str], ...]

    def meant(self, names: pa.Array) -> pa.Array:
        """I, U or D; null for an unknown name."""
        known = pa.array([word for word, _ in self.meaning], pa.string())
        meant = pa.array([operation for _, operation in self.meaning], pa.string())
        return meant.take(pc.index_in(names, value_set=known))


@dataclass(frozen=True)
class Images:
    """Row ``i`` came from input ``kept[i]``. A deletion has only its identity."""

    kept: Rows
    operations: pa.Array
    columns: list[pa.Array]
    faults: list[tuple[str, Fault]]
    filtered: Mask
    rejects: tuple[Reject, ...]

    def only(self, rows: Mask) -> Images:
        """Some of the rows, without rejects."""
        wanted = pa.array(rows)
        faults = [(name, Fault(fault.rows[rows], fault.problem)) for name, fault in self.faults]
        columns = [column.filter(wanted) for column in self.columns]
        return Images(self.kept[rows], self.operations.filter(wanted), columns, faults, self.filtered[rows], ())


class Reader(Protocol):
    """Decodes change records. One call may return several lots, each in order."""

    def read(self, values: pa.BinaryArray) -> Iterator[Images]: ...


class Plain:
    """The record is the row. Without `words` every record is an update."""

    def __init__(self, schema: Schema, identity: tuple[str, ...], words: Words | None, max_record_bytes: int) -> None:
        self._fields, self._identity, self._words = schema.fields, identity, words
        fields = tuple(replace(each, required=False) for each in schema.fields)
        if words is not None and words.where not in schema.by_name():
            fields += (Field(words.where, pa.string()),)
        self._decoder = JsonDecoder(replace(schema, fields=fields), max_record_bytes=max_record_bytes)

    def read(self, values: pa.BinaryArray) -> Iterator[Images]:
        decoded = self._decoder.decode(values)
        rows = decoded.table.combine_chunks()
        columns = [whole(rows.column(each.name)) for each in self._fields]
        count = rows.num_rows
        if self._words is None:
            operations = pa.repeat(pa.scalar(UPDATE), count)
        else:
            operations = self._words.meant(whole(rows.column(self._words.where)))
            deleted = pc.equal(operations, DELETE)
            columns = [
                column if each.name in self._identity else nulled(deleted, column)
                for each, column in zip(self._fields, columns, strict=True)
            ]
        yield Images(decoded.kept.to_numpy(), operations, columns, [], np.zeros(count, np.bool_), decoded.rejects)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk


def nulled(rows: pa.Array, column: pa.Array) -> pa.Array:
    """The column, of any type, with nulls in these rows."""
    mask = mask_of(pc.fill_null(rows, False))
    return column.take(pa.array(np.arange(len(mask)), mask=mask)) if mask.any() else column
