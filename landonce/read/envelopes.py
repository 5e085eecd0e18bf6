"""Envelopes of changes: what Debezium and AWS DMS write around the rows of a database.

An envelope is decoded as one nested record, by any format that has nested fields. In JSON, single values keep the wire types
of Arrow's JSON reader (see `formats.json.columns`), and get the table's types only after the right image was chosen: the one before a
deletion, the one after any other change. Other formats give the table's types at once, and so do conversions (`convert: fit`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason
from landonce.read.convert.decode import Conversions, fitted
from landonce.read.formats import Decoder, Format, Indexes, Reject
from landonce.read.formats.json.columns import settle, wire_type
from landonce.read.schema.fields import JSON, Field, Names, Path, Schema, is_uuid
from landonce.read.schema.texts import Mask, mask_of, true_in
from landonce.read.schema.values import Fault, fit, not_valid, unless

OPERATION = "_op"
INSERT, UPDATE, DELETE = "I", "U", "D"
_UNSENT = "__debezium_unavailable_value"
_UNSENT_ID = UUID(bytes=md5(_UNSENT.encode(), usedforsecurity=False).digest(), version=3)
"""Of an array of UUIDs."""
_UNSENT_TEXTS = [_UNSENT, str(_UNSENT_ID)]
_UNSENT_JSON = [*_UNSENT_TEXTS, *([each] for each in _UNSENT_TEXTS), list(_UNSENT.encode()), {_UNSENT: _UNSENT}]
Integers = frozenset[str]  # names of the temporal fields that hold integers instead of text


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

    kept: Indexes
    operations: pa.Array
    columns: list[pa.Array]
    faults: list[tuple[str, Fault]]
    filtered: Mask
    rejects: tuple[Reject, ...]

    def only(self, rows: Mask) -> Images:
        """Some of the rows, without rejects."""
        wanted = pa.array(rows)
        faults = [(name, replace(fault, rows=fault.rows[rows])) for name, fault in self.faults]
        columns = [column.filter(wanted) for column in self.columns]
        return Images(self.kept[rows], self.operations.filter(wanted), columns, faults, self.filtered[rows], ())


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk


def nulled(rows: pa.Array, column: pa.Array) -> pa.Array:
    """The column, of any type, with nulls in these rows."""
    mask = true_in(rows)
    return column.take(pa.array(np.arange(len(mask)), mask=mask)) if mask.any() else column


class Envelope(ABC):
    """What Debezium's and DMS's envelopes have in common."""

    counts_days = False
    """Whether an integer is a number of days in a date field."""
    images: tuple[str, ...]
    """The fields of an envelope that hold rows."""

    def __init__(
        self,
        schema: Schema,
        identity: tuple[str, ...],
        words: Words | None,
        format_: Format,
        convert: Conversions,
        max_record_bytes: int,
    ) -> None:
        assert words is not None
        self._schema, self._identity, self._words = schema, identity, words
        self._max_record_bytes = max_record_bytes
        self._is_json = format_.written == JSON
        self._converted = frozenset(each.name for each in schema.fields if convert.converts(each, schema.fold_case))
        self._bodies = format_.bodies
        self._format = fitted(format_, self._counting_days(convert).inside(*self.images))
        ticked = [
            each
            for each in schema.fields
            if each.name not in self._converted and (each.scale is not None or self._is_day(each))
        ]
        self._ticked = ticked if self._is_json else []
        self._likely: Integers | None = None
        self._decoders: dict[Integers, Decoder] = {}
        self._decoder(frozenset())

    def read(self, values: pa.BinaryArray) -> Iterator[Images]:
        if self._likely is None and len(values):
            self._likely = self._integers(values, 0)
        likely = self._likely or frozenset()
        decoded = self._decoder(likely).decode(values)
        groups: defaultdict[Integers, list[int]] = defaultdict(list)
        for at, _ in decoded.rejects if self._ticked else ():
            integers = self._integers(values, at)
            if integers != likely:  # its times are in another form than the one that was tried
                groups[integers].append(at)
        again = {row for members in groups.values() for row in members}
        rejects = tuple(each for each in decoded.rejects if each.index not in again)
        yield self._images(decoded.table, decoded.kept, rejects)
        for integers, members in groups.items():
            if len(members) > len(decoded.kept):
                self._likely = integers
            rows = np.array(members, dtype=np.int64)
            retried = self._decoder(integers).decode(values.take(pa.array(rows)))
            rejects = tuple(Reject(members[at], reason) for at, reason in retried.rejects)
            yield self._images(retried.table, rows[retried.kept], rejects)

    def _integers(self, values: pa.BinaryArray, at: int) -> Integers:
        if not self._ticked:
            return frozenset()
        fold = str.lower if self._schema.fold_case else str
        value = self._bodies(values.slice(at, 1))[0].as_py()
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

    def _decoder(self, integers: Integers) -> Decoder:
        if integers not in self._decoders:
            asked = replace(self._schema, fields=tuple(self._asked(integers)))
            self._decoders[integers] = self._format.decoder(asked, max_record_bytes=self._max_record_bytes)
        return self._decoders[integers]

    def _row(self, name: str, integers: Integers, only: tuple[str, ...] | None = None) -> Field:
        """A field of the envelope that holds a row, or some of its columns."""
        columns = [each for each in self._schema.fields if only is None or each.name in only]
        aliases: list[tuple[Path, Names]] = []
        for each in columns:
            aliases += [((each.name,), each.aliases)] if each.aliases else []
            aliases += [((each.name, *path), names) for path, names in each.inner_aliases]
        kinds = [
            each.type
            if not self._is_json or pt.is_nested(each.type) or each.type == JSON or each.name in self._converted
            else wire_type(each.type, integers=each.name in integers)
            for each in columns
        ]
        inside = [pa.field(each.name, kind) for each, kind in zip(columns, kinds, strict=True)]
        limits = () if self._is_json else tuple(replace(each, required=False) for each in columns)
        return Field(name, pa.struct(inside), inner_aliases=tuple(aliases), inner=limits)

    def _is_day(self, field: Field) -> bool:
        return self.counts_days and field.scale is None and bool(pt.is_date32(field.type))

    def _counting_days(self, convert: Conversions) -> Conversions:
        """The conversions, in which a number for a date counts days where the envelope says so, and the file nothing else."""
        rules = {
            each.name: convert.of(each.name, self._schema.fold_case)
            for each in filter(self._is_day, self._schema.fields)
        }
        days = [(name, replace(rule, epoch="d")) for name, rule in rules.items() if rule is not None and not rule.epoch]
        return replace(convert, fields=(*days, *convert.fields))

    def _settled(self, chosen: Sequence[pa.Array]) -> tuple[list[pa.Array], list[tuple[str, Fault]]]:
        if not self._is_json:
            return list(chosen), []
        columns, faults = [], []
        for each, array in zip(self._schema.fields, chosen, strict=True):
            field = replace(each, required=False)
            if pt.is_integer(array.type) and self._is_day(each):
                days = pc.and_(pc.greater_equal(array, -(2**31)), pc.less(array, 2**31))
                column, found = fit(pc.if_else(days, array, None).cast(pa.int32()).cast(pa.date32()), field)
                found = unless(days, not_valid("DATE")) + found
            else:
                is_own = pt.is_nested(each.type) or each.name in self._converted
                column, found = (fit if is_own else settle)(array, field)
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
    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        """The image to use for every row."""


class Debezium(Envelope):
    """`before`, `after` and `op`, at the top or inside `payload`. A date is a number of days."""

    counts_days = True
    images = ("before", "after", "payload.before", "payload.after")

    def _asked(self, integers: Integers) -> list[Field]:
        inner = [
            Field("op", pa.string()),
            self._row("before", integers, self._identity),
            self._row("after", integers),
        ]
        if not self._is_json:  # only Connect's JSON puts a schema around the envelope
            return inner
        aliases = tuple(((each.name, *path), names) for each in inner for path, names in each.inner_aliases)
        payload = pa.struct([pa.field(each.name, each.type) for each in inner])
        return [*inner, Field("payload", payload, inner_aliases=aliases)]

    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        inner = _object(_object(record).get("payload")) or _object(record)
        return [_object(inner.get("before")), _object(inner.get("after"))]

    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        names, before, after = (one_array(table.column(name)) for name in ("op", "before", "after"))
        if self._is_json:
            payload = one_array(table.column("payload"))
            wrapped = mask_of(payload.is_valid())
            bare = zip(payload.flatten(), (names, before, after), strict=True)
            names, before, after = (either(wrapped, inside, outside) for inside, outside in bare)
        operations = self._words.meant(names)
        deleted = pc.equal(operations, DELETE)
        old = dict(zip((child.name for child in before.type), before.flatten(), strict=True))
        chosen, faults = [], []
        for each, new in zip(self._schema.fields, after.flatten(), strict=True):
            if each.name in old:
                moved = pc.and_(pc.equal(operations, UPDATE), pc.not_equal(comparable(old[each.name]), comparable(new)))
                faults += faults_where(moved, each.name, bad_change("is part of the identity and changed in place"))
                chosen.append(either(true_in(deleted), old[each.name], new))
            else:
                chosen.append(nulled(deleted, new))
                faults += unsent(each, chosen[-1])
        columns, found = self._settled(chosen)
        return Images(kept, operations, columns, faults + found, np.zeros(len(kept), np.bool_), rejects)


def unsent(field: Field, column: pa.Array) -> list[tuple[str, Fault]]:
    """Rows in which Debezium says that it does not know the value."""
    return faults_where(pa.array(_marked(column, field.type)), field.name, bad_change("was not sent by Debezium"))


def _marked(column: pa.Array, type_: pa.DataType) -> Mask:
    """Where Debezium's mark is in the place of a value: for a column of the source that is an array, as its only element, or with a number
    for each of its bytes; for an hstore, as key and value."""
    if pt.is_list(type_) or pt.is_map(type_):
        inner = type_.key_type if pt.is_map(type_) else type_.value_type
        are_numbers = pt.is_integer(inner) or pt.is_floating(inner) or pt.is_date32(inner)
        length = len(_UNSENT) if are_numbers else 1
        rows = np.flatnonzero((np.diff(column.offsets.to_numpy()) == length) & mask_of(column.is_valid()))
        held = column.take(pa.array(rows))
        items = held.keys if pt.is_map(type_) else held.values
        if are_numbers:
            codes = pa.array(np.tile(np.frombuffer(_UNSENT.encode(), np.uint8), len(rows)).astype(np.int32))
            same = true_in(pc.equal(items, codes.cast(items.type)))
        else:
            same = _marked(items, inner)
        found = np.zeros(len(column), np.bool_)
        found[rows[same.reshape(-1, length).all(axis=1)]] = True
        return found
    marks: list[str] | list[bytes]
    if pt.is_string(column.type) and pt.is_binary(type_):
        marks = [b64encode(_UNSENT.encode()).decode()]
    elif pt.is_string(column.type):
        marks = [json.dumps(each, separators=(",", ":")) for each in _UNSENT_JSON] if type_ == JSON else _UNSENT_TEXTS
    else:
        if not is_uuid(type_) and not pt.is_binary(type_):
            return np.zeros(len(column), np.bool_)
        column, marks = comparable(column), [_UNSENT_ID.bytes if is_uuid(type_) else _UNSENT.encode()]
    return true_in(pc.is_in(column, value_set=pa.array(marks, column.type)))


class Dms(Envelope):
    """`data`, and `metadata` with the operation."""

    images = ("data",)

    def _asked(self, integers: Integers) -> list[Field]:
        about = pa.struct([pa.field("operation", pa.string()), pa.field("record-type", pa.string())])
        return [Field("metadata", about), self._row("data", integers)]

    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        return [_object(_object(record).get("data"))]

    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        names, kind = one_array(table.column("metadata")).flatten()
        control = pc.fill_null(pc.equal(kind, "control"), False).to_numpy(zero_copy_only=False)
        operations = self._words.meant(names)
        deleted = pc.equal(operations, DELETE)
        chosen = [
            new if each.name in self._identity else nulled(deleted, new)
            for each, new in zip(self._schema.fields, one_array(table.column("data")).flatten(), strict=True)
        ]
        columns, faults = self._settled(chosen)
        return Images(kept, operations, columns, faults, control, rejects)


def comparable(array: pa.Array) -> pa.Array:
    """What can be compared: the bytes of UUIDs."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def either(first: Mask, yes: pa.Array, no: pa.Array) -> pa.Array:
    """Row by row from one of two arrays, of any type."""
    if first.all() or not first.any():
        return yes if first.all() else no
    at = np.arange(len(first))
    return pa.concat_arrays([yes, no]).take(pa.array(np.where(first, at, at + len(first))))


def faults_where(rows: pa.Array, name: str, problem: Reason) -> list[tuple[str, Fault]]:
    mask = true_in(rows)
    return [(name, Fault(mask, problem))] if mask.any() else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def bad_change(words: str, field: str = "") -> Reason:
    return Reason(words, Code.BAD_CHANGE, field)


BEFORE_IMAGE = "before-image"


class DebeziumBefore(Debezium):
    """Reads `before` as `Debezium` reads `after`."""

    def _asked(self, integers: Integers) -> list[Field]:
        inner = [self._row("before", integers)]
        if not self._is_json:
            return inner
        aliases = tuple(((each.name, *path), names) for each in inner for path, names in each.inner_aliases)
        payload = pa.struct([pa.field(each.name, each.type) for each in inner])
        return [*inner, Field("payload", payload, inner_aliases=aliases)]

    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        before = one_array(table.column("before"))
        if self._is_json:
            payload = one_array(table.column("payload"))
            before = either(mask_of(payload.is_valid()), payload.flatten()[0], before)
        columns, faults = self._settled(before.flatten())
        for field, column in zip(self._schema.fields, before.flatten(), strict=True):
            faults += unsent(field, column)
        operations = pa.repeat(pa.scalar(UPDATE), len(kept))
        return Images(kept, operations, columns, faults, np.zeros(len(kept), np.bool_), rejects)


class DmsBefore(Dms):
    """Reads `before-image` as `Dms` reads `data`."""

    images = (BEFORE_IMAGE,)

    def _asked(self, integers: Integers) -> list[Field]:
        return [self._row(BEFORE_IMAGE, integers)]

    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        return [_object(_object(record).get(BEFORE_IMAGE))]

    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        columns, faults = self._settled(one_array(table.column(BEFORE_IMAGE)).flatten())
        operations = pa.repeat(pa.scalar(UPDATE), len(kept))
        return Images(kept, operations, columns, faults, np.zeros(len(kept), np.bool_), rejects)
