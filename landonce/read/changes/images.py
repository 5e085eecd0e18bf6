"""Decodes change records to an operation and its row, with Arrow; record by record only after an error.

The record may be the row itself (`Plain`), or an envelope of change data capture (`Debezium`, `Dms`). An envelope is
decoded as one nested record. Single values keep the wire types of Arrow's JSON reader (see `columns`), and get the
table's types only after the right image was chosen: the one before a deletion, the one after any other change.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.columns import fit, settle, wire_type
from landonce.read.formats.json.decode import Decoded, JsonDecoder, Reject
from landonce.read.formats.json.values import Fault, Mask, mask_of, unless
from landonce.read.schema.fields import Field, Names, Path, Schema

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


_UNSENT = "__debezium_unavailable_value"

Integers = frozenset[str]  # names of the temporal fields that hold integers instead of text


class _Nested(ABC):
    """What Debezium's and DMS's envelopes have in common."""

    counts_days = False
    """Whether an integer is a number of days in a date field."""

    def __init__(self, schema: Schema, identity: tuple[str, ...], words: Words, max_record_bytes: int) -> None:
        self._schema, self._identity, self._words = schema, identity, words
        self._max_record_bytes = max_record_bytes
        self._ticked = [each for each in schema.fields if each.scale is not None or self._is_day(each)]
        self._likely: Integers | None = None
        self._decoders: dict[Integers, JsonDecoder] = {}
        self._decoder(frozenset())

    def read(self, values: pa.BinaryArray) -> Iterator[Images]:
        if self._likely is None and len(values):
            self._likely = self._integers(values[0].as_py())
        likely = self._likely or frozenset()
        decoded = self._decoder(likely).decode(values)
        groups = self._regrouped(decoded, values, likely)
        again = {row for members in groups.values() for row in members}
        rejects = tuple(each for each in decoded.rejects if each.index not in again)
        yield self._images(decoded.table, decoded.kept.to_numpy(), rejects)
        for integers, members in groups.items():
            if len(members) > len(decoded.kept):
                self._likely = integers
            rows = np.array(members, dtype=np.int64)
            retried = self._decoder(integers).decode(values.take(pa.array(rows)))
            rejects = tuple(replace(each, index=members[each.index]) for each in retried.rejects)
            yield self._images(retried.table, rows[retried.kept.to_numpy()], rejects)

    def _regrouped(self, decoded: Decoded, values: pa.BinaryArray, tried: Integers) -> dict[Integers, list[int]]:
        """The rejects whose times are in another form than the one that was tried."""
        groups: defaultdict[Integers, list[int]] = defaultdict(list)
        for reject in decoded.rejects if self._ticked else ():
            integers = self._integers(values[reject.index].as_py())
            if integers != tried:
                groups[integers].append(reject.index)
        return groups

    def _integers(self, value: bytes | None) -> Integers:
        fold = str.lower if self._schema.fold_case else str
        try:
            record = json.loads(
                value or b"", object_pairs_hook=lambda pairs: {fold(name): each for name, each in pairs}
            )
        except (ValueError, RecursionError):
            return frozenset()
        rows = self._rows_of(record)
        return frozenset(
            each.name
            for each in self._ticked
            if any(type(row.get(fold(name))) is int for row in rows for name in each.place().names)
        )

    def _decoder(self, integers: Integers) -> JsonDecoder:
        if integers not in self._decoders:
            asked = replace(self._schema, fields=tuple(self._asked(integers)))
            self._decoders[integers] = JsonDecoder(asked, max_record_bytes=self._max_record_bytes)
        return self._decoders[integers]

    def _row(self, name: str, integers: Integers, only: tuple[str, ...] | None = None) -> Field:
        """A field of the envelope that holds a row, or some of its columns."""
        columns = [each for each in self._schema.fields if only is None or each.name in only]
        aliases: list[tuple[Path, Names]] = []
        for each in columns:
            aliases += [((each.name,), each.aliases)] if each.aliases else []
            aliases += [((each.name, *path), names) for path, names in each.inner_aliases]
        kinds = [
            each.type if pt.is_nested(each.type) else wire_type(each.type, integers=each.name in integers)
            for each in columns
        ]
        inside = [pa.field(each.name, kind) for each, kind in zip(columns, kinds, strict=True)]
        return Field(name, pa.struct(inside), inner_aliases=tuple(aliases))

    def _is_day(self, field: Field) -> bool:
        return self.counts_days and field.scale is None and bool(pt.is_date32(field.type))

    def _settled(self, chosen: Sequence[pa.Array]) -> tuple[list[pa.Array], list[tuple[str, Fault]]]:
        columns, faults = [], []
        for each, array in zip(self._schema.fields, chosen, strict=True):
            field = replace(each, required=False)
            if pt.is_integer(array.type) and self._is_day(each):
                days = pc.and_(pc.greater_equal(array, -(2**31)), pc.less(array, 2**31))
                column, found = fit(pc.if_else(days, array, None).cast(pa.int32()).cast(pa.date32()), field)
                found = unless(days, "is not a valid DATE") + found
            else:
                column, found = (fit if pt.is_nested(each.type) else settle)(array, field)
            columns.append(column)
            faults += [(each.name, fault) for fault in found]
        return columns, faults

    @abstractmethod
    def _asked(self, integers: Integers) -> list[Field]:
        """The fields of the envelope."""

    @abstractmethod
    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        """The images that a parsed record holds."""

    @abstractmethod
    def _images(self, table: pa.Table, kept: Rows, rejects: tuple[Reject, ...]) -> Images:
        """The image to use for every row."""


class Debezium(_Nested):
    """`before`, `after` and `op`, at the top or inside `payload`. A date is a number of days."""

    counts_days = True

    def _asked(self, integers: Integers) -> list[Field]:
        inner = [
            Field("op", pa.string()),
            self._row("before", integers, self._identity),
            self._row("after", integers),
        ]
        aliases = tuple(((each.name, *path), names) for each in inner for path, names in each.inner_aliases)
        payload = pa.struct([pa.field(each.name, each.type) for each in inner])
        return [*inner, Field("payload", payload, inner_aliases=aliases)]

    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        inner = _object(_object(record).get("payload")) or _object(record)
        return [_object(inner.get("before")), _object(inner.get("after"))]

    def _images(self, table: pa.Table, kept: Rows, rejects: tuple[Reject, ...]) -> Images:
        payload = whole(table.column("payload"))
        inside = zip(("op", "before", "after"), payload.flatten(), strict=True)
        wrapped = mask_of(payload.is_valid())
        names, before, after = (_either(wrapped, each, whole(table.column(name))) for name, each in inside)
        operations = self._words.meant(names)
        deleted = pc.equal(operations, DELETE)
        old = dict(zip((child.name for child in before.type), before.flatten(), strict=True))
        chosen, faults = [], []
        for each, new in zip(self._schema.fields, after.flatten(), strict=True):
            if each.name in old:
                moved = pc.and_(pc.equal(operations, UPDATE), pc.not_equal(old[each.name], new))
                faults += _where(moved, each.name, "is part of the identity and changed in place")
                chosen.append(pc.if_else(deleted, old[each.name], new))
            else:
                chosen.append(nulled(deleted, new))
                if pt.is_string(new.type):
                    faults += _where(pc.equal(chosen[-1], _UNSENT), each.name, "was not sent by Debezium")
        columns, found = self._settled(chosen)
        return Images(kept, operations, columns, faults + found, np.zeros(len(kept), np.bool_), rejects)


class Dms(_Nested):
    """`data`, and `metadata` with the operation."""

    def _asked(self, integers: Integers) -> list[Field]:
        about = pa.struct([pa.field("operation", pa.string()), pa.field("record-type", pa.string())])
        return [Field("metadata", about), self._row("data", integers)]

    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        return [_object(_object(record).get("data"))]

    def _images(self, table: pa.Table, kept: Rows, rejects: tuple[Reject, ...]) -> Images:
        names, kind = whole(table.column("metadata")).flatten()
        control = pc.fill_null(pc.equal(kind, "control"), False).to_numpy(zero_copy_only=False)
        operations = self._words.meant(names)
        deleted = pc.equal(operations, DELETE)
        chosen = [
            new if each.name in self._identity else nulled(deleted, new)
            for each, new in zip(self._schema.fields, whole(table.column("data")).flatten(), strict=True)
        ]
        columns, faults = self._settled(chosen)
        return Images(kept, operations, columns, faults, control, rejects)


def _either(first: Mask, yes: pa.Array, no: pa.Array) -> pa.Array:
    """Row by row from one of two arrays, of any type."""
    if first.all() or not first.any():
        return yes if first.all() else no
    at = np.arange(len(first))
    return pa.concat_arrays([yes, no]).take(pa.array(np.where(first, at, at + len(first))))


def _where(rows: pa.Array, name: str, problem: str) -> list[tuple[str, Fault]]:
    mask = mask_of(pc.fill_null(rows, False))
    return [(name, Fault(mask, problem))] if mask.any() else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
