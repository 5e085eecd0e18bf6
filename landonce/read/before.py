"""Changes together with the row before each of them, from Debezium's envelopes: for targets that take an old row away by its values.

An update or a deletion must hold that row whole. Debezium sends it if the table has REPLICA IDENTITY FULL (PostgreSQL), or binlog_row_image FULL
(MySQL); a change without it is a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    Images,
    Integers,
    _either,
    _whole,
    unsent,
)
from landonce.read.convert.decode import Conversions
from landonce.read.formats import Decoded, Format, Indexes, Reject
from landonce.read.formats.json.columns import mask_of
from landonce.read.schema.fields import Field, Schema, landed

BEFORE = "_before"
_MISSING = Reason("the envelope lacks the row before the change", Code.BAD_CHANGE, "before")


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
        self._before = _Before(schema, identity, how.words(), format_, convert, max_record_bytes)
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
        rejects = [*found.rejects, *(Reject(int(each), _MISSING) for each in found.kept[~kept])]
        return Decoded(table, found.kept[kept], tuple(sorted(rejects)), found.filtered)

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
