"""Changes together with the row before each of them, from Debezium's or DMS's envelopes: for targets that take an old row away by its values.

An update or a deletion must hold that row whole; one without it is a dead letter. Debezium sends it in `before` if the table has REPLICA
IDENTITY FULL (PostgreSQL), or binlog_row_image FULL (MySQL). DMS sends it in `before-image` if its task says so, besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.reasons import Code, Reason
from landonce.read.changes import (
    INSERT,
    OPERATION,
    UPDATE,
    ChangeDecoder,
    Changes,
    Debezium,
    Dms,
    Images,
    Integers,
    _either,
    _mask,
    _object,
    _plain,
    _whole,
    unsent,
)
from landonce.read.convert.decode import Conversions
from landonce.read.formats import Decoded, Format, Indexes, Reject
from landonce.read.formats.json.columns import Mask, mask_of
from landonce.read.schema.fields import Field, Schema, landed

BEFORE = "_before"
_IMAGE = "before-image"
_MISSING = {
    "debezium": Reason("the envelope lacks the row before the change", Code.BAD_CHANGE, "before"),
    "dms": Reason(
        "the record lacks the row before the change: give the DMS task BeforeImageSettings with FieldName before-image and ColumnFilter all",
        Code.BAD_CHANGE,
        _IMAGE,
    ),
}
_MOVED = Reason("the key changed in place", Code.BAD_CHANGE)


class WithBefore:
    """Decodes like a `ChangeDecoder`, with one more column: the row before the change, null for an insert."""

    def __init__(
        self,
        changes: ChangeDecoder,
        schema: Schema,
        identity: tuple[str, ...],
        how: Changes,
        format_: Format,
        convert: Conversions,
        max_record_bytes: int,
    ) -> None:
        self._changes, self._schema, self._identity = changes, schema, identity
        self._missing, kind = _MISSING[how.mode], _Before if how.mode == "debezium" else _BeforeImage
        self._before = kind(schema, identity, how.words(), format_, convert, max_record_bytes)
        self._type = pa.struct([pa.field(each.name, landed(each.type)) for each in schema.fields])
        self.arrow = changes.arrow.append(pa.field(BEFORE, self._type))

    def decode(self, values: pa.BinaryArray, keys: Sequence[bytes | None] | pa.BinaryArray) -> Decoded:
        found = self._changes.decode(values, keys)
        inserted = mask_of(pc.equal(found.table.column(OPERATION), INSERT).combine_chunks())
        rows = found.kept[~inserted]
        images, good = self._images(values.take(pa.array(rows)))
        at = np.full(len(values), -1, np.int64)
        at[rows[good]] = np.arange(len(good))
        kept = inserted | (at[found.kept] >= 0)
        taken = at[found.kept[kept]]
        before = images.take(pa.array(np.maximum(taken, 0), mask=taken < 0))
        table = found.table.filter(pa.array(kept)).append_column(pa.field(BEFORE, self._type), before)
        moved = self._moved(table, before)
        rejects = [
            *found.rejects,
            *(Reject(int(each), self._missing) for each in found.kept[~kept]),
            *(Reject(int(each), _MOVED) for each in found.kept[kept][moved]),
        ]
        return Decoded(table.filter(pa.array(~moved)), found.kept[kept][~moved], tuple(sorted(rejects)), found.filtered)

    def _moved(self, table: pa.Table, before: pa.StructArray) -> Mask:
        """Rows with another key than before: no row of that key would be taken away."""
        old = dict(zip((each.name for each in self._type), before.flatten(), strict=True))
        moved = np.zeros(table.num_rows, np.bool_)
        for name in self._identity:
            moved |= _mask(pc.not_equal(_plain(old[name]), _plain(_whole(table.column(name)))))
        return moved

    def _images(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Indexes]:
        """The rows before, and the records that hold one."""
        arrays, kept = [], []
        for images in self._before.read(values):
            whole = np.ones(len(images.kept), np.bool_)
            for _, fault in images.faults:
                whole &= ~fault.rows
            for each, column in zip(self._schema.fields, images.columns, strict=True):
                if each.required or each.name in self._identity:
                    whole &= mask_of(column.is_valid())
            array = pa.StructArray.from_arrays(images.columns, fields=list(self._type))
            arrays.append(array.filter(pa.array(whole)))
            kept.append(images.kept[whole])
        if not arrays:
            return pa.array([], self._type), np.empty(0, np.int64)
        return pa.concat_arrays(arrays), np.concatenate(kept)


class _Before(Debezium):
    """Reads `before` as `Debezium` reads `after`."""

    def _asked(self, integers: Integers) -> list[Field]:
        inner = [self._row("before", integers)]
        if not self._is_json:
            return inner
        aliases = tuple(((each.name, *path), names) for each in inner for path, names in each.inner_aliases)
        payload = pa.struct([pa.field(each.name, each.type) for each in inner])
        return [*inner, Field("payload", payload, inner_aliases=aliases)]

    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        before = _whole(table.column("before"))
        if self._is_json:
            payload = _whole(table.column("payload"))
            before = _either(mask_of(payload.is_valid()), payload.flatten()[0], before)
        columns, faults = self._settled(before.flatten())
        for field, column in zip(self._schema.fields, before.flatten(), strict=True):
            faults += unsent(field, column)
        operations = pa.repeat(pa.scalar(UPDATE), len(kept))
        return Images(kept, operations, columns, faults, np.zeros(len(kept), np.bool_), rejects)


class _BeforeImage(Dms):
    """Reads `before-image` as `Dms` reads `data`."""

    images = (_IMAGE,)

    def _asked(self, integers: Integers) -> list[Field]:
        return [self._row(_IMAGE, integers)]

    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        return [_object(_object(record).get(_IMAGE))]

    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        columns, faults = self._settled(_whole(table.column(_IMAGE)).flatten())
        operations = pa.repeat(pa.scalar(UPDATE), len(kept))
        return Images(kept, operations, columns, faults, np.zeros(len(kept), np.bool_), rejects)
