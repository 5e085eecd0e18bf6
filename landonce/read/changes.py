"""Decodes change records to rows with an operation: `_op` is I, U or D.

There are four modes:

- `upsert`: a record is the new row of its identity; a tombstone (no value) deletes the identity that its key holds;
- `operation`: the same, but a field of the record holds the operation: insert, update or delete;
- `debezium`: an envelope with `before`, `after` and `op`, with or without `schema` and `payload` around it; the
  tombstone after a deletion adds nothing and is filtered;
- `dms`: the records of AWS DMS, `data` and `metadata`; its control records are filtered.

Every change must hold its identity, in fields that are not null. A deletion needs nothing else: its other columns
become null, whatever the record holds. Every other change must be a whole row.

An envelope is decoded as one nested record, by any format that has nested fields. In JSON, single values keep the wire types
of Arrow's JSON reader (see `columns`), and get the table's types only after the right image was chosen: the one before a
deletion, the one after any other change. Other formats give the table's types at once, and so do conversions (`convert: fit`).
Records are read one by one only after an error.

Conversions apply to rows and to the keys of tombstones: both name the same identity.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason, missing
from landonce.read.convert.decode import STRICT, Conversions, fitted
from landonce.read.formats import Collected, Decoded, Decoder, Format, Indexes, Reject
from landonce.read.formats.json.columns import (
    Fault,
    Mask,
    cast_or_null,
    fit,
    mask_of,
    not_valid,
    settle,
    unless,
    wire_type,
)
from landonce.read.formats.json.decode import MAX_RECORD_BYTES, Json
from landonce.read.schema.fields import JSON, Field, Names, Path, Schema, is_uuid, landed, spelled

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
class Changes:
    """How records describe changes. `field` and the names of the operations apply only to the mode `operation`."""

    mode: Literal["upsert", "operation", "debezium", "dms"]
    field: str = "op"
    insert: tuple[str, ...] = ("c", "r", "i", "I", "insert", "INSERT")
    update: tuple[str, ...] = ("u", "U", "update", "UPDATE")
    delete: tuple[str, ...] = ("d", "D", "delete", "DELETE")
    before: bool = False
    """Whether rows come with the row before the change, in the column `_before` (see `read.before`)."""

    def __post_init__(self) -> None:
        names = [*self.insert, *self.update, *self.delete]
        if len(set(names)) < len(names):
            raise ValueError("one name can only mean one operation")

    def words(self) -> Words | None:
        """The names of the operations and their field; None if records need none."""
        if self.mode == "upsert":
            return None
        if self.mode == "debezium":
            return Words("op", (("c", INSERT), ("r", INSERT), ("u", UPDATE), ("d", DELETE)))
        if self.mode == "dms":
            meaning = (("load", INSERT), ("insert", INSERT), ("update", UPDATE), ("delete", DELETE))
            return Words("metadata.operation", meaning)
        groups = ((INSERT, self.insert), (UPDATE, self.update), (DELETE, self.delete))
        return Words(self.field, tuple((name, operation) for operation, names in groups for name in names))


class ChangeDecoder:
    """Decodes arrays of record values with their keys; keep one per worker."""

    def __init__(
        self,
        schema: Schema,
        identity: tuple[str, ...],
        how: Changes,
        values: Format | None = None,
        keys: Format | None = None,
        convert: Conversions = STRICT,
        *,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """`values` and `keys`: their formats; JSON, if nothing else is said."""
        format_ = values or Json()
        _check(schema, identity, how, format_)
        self._fields, self._identity, self._words = schema.fields, identity, how.words()
        keyed = tuple(replace(each, required=True) for each in schema.fields if each.name in identity)
        bare = replace(schema, fields=keyed)
        kind: type[_Nested | PlainRecords] = {"debezium": Debezium, "dms": Dms}.get(how.mode, PlainRecords)
        self._whole = kind(schema, identity, self._words, format_, convert, max_record_bytes)
        self._bare = kind(bare, identity, self._words, format_, convert, max_record_bytes)
        self._keys = key_decoder(bare, keys or Json(), convert, max_record_bytes) if kind is PlainRecords else None
        self._filters_tombstones = how.mode == "debezium"
        rows = [pa.field(each.name, landed(each.type), nullable=each.name not in identity) for each in schema.fields]
        self.arrow = pa.schema([pa.field(OPERATION, pa.string(), nullable=False), *rows])

    def decode(self, values: pa.BinaryArray, keys: Sequence[bytes | None] | pa.BinaryArray) -> Decoded:
        """Decodes every record, filters it, or says why not. Reads the keys of tombstones only."""
        found = Collected(self.arrow)
        rows = np.arange(len(values), dtype=np.int64)
        if values.null_count and (self._keys or self._filters_tombstones):
            empty = values.is_null().to_numpy(zero_copy_only=False)
            self._delete(found, rows[empty], keys)
            rows, values = rows[~empty], values.filter(pa.array(~empty))
        # A record that is not a whole row may still be a deletion, which needs only its identity.
        rejects: list[Reject] = []
        for images in self._whole.read(values):
            rejects += images.rejects
            self._judge(found, rows, images)
        if rejects and self._words is not None:
            rejects = self._look_again(found, rows, values, rejects)
        for at, reason in rejects:
            found.reject(rows[at], reason)
        return found.result()

    def _delete(self, found: Collected, rows: Indexes, keys: Sequence[bytes | None] | pa.BinaryArray) -> None:
        if self._keys is None:
            found.filtered.append(rows)
            return
        held = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        decoded = self._keys.decode(held.take(pa.array(rows)))
        for at, reason in decoded.rejects:
            found.reject(rows[at], reason)
        count = decoded.table.num_rows
        deleted = pa.repeat(pa.scalar(DELETE), count)
        found.keep(rows[decoded.kept], [deleted, *self._spread(decoded.table.columns, count)])

    def _spread(self, identity: list[pa.Array], count: int) -> list[pa.Array]:
        """The columns of deletions: the identity, and nulls."""
        held = iter(identity)
        return [
            next(held) if each.name in self._identity else pa.nulls(count, landed(each.type)) for each in self._fields
        ]

    def _look_again(
        self, found: Collected, rows: Indexes, values: pa.BinaryArray, rejects: list[Reject]
    ) -> list[Reject]:
        """Takes deletions and filtered records out of the rejects, and returns the others."""
        left = {each.index: each for each in rejects}
        at = np.array(list(left), dtype=np.int64)
        for images in self._bare.read(values.take(pa.array(at))):
            deletions = images.only(_mask(pc.equal(images.operations, DELETE)) | images.filtered)
            for each in at[deletions.kept].tolist():
                del left[each]
            columns = self._spread(deletions.columns, len(deletions.kept))
            self._judge(found, rows[at], replace(deletions, columns=columns))
        return list(left.values())

    def _judge(self, found: Collected, rows: Indexes, images: Images) -> None:
        reasons = self._reasons(images)
        kept = ~images.filtered
        kept[list(reasons)] = False
        found.filtered.append(rows[images.kept[images.filtered]])
        for at, reason in reasons.items():
            if not images.filtered[at]:
                found.reject(rows[images.kept[at]], reason)
        columns = [images.operations, *images.columns]
        if not kept.all():
            columns = [column.filter(pa.array(kept)) for column in columns]
        found.keep(rows[images.kept[kept]], columns)

    def _reasons(self, images: Images) -> dict[int, Reason]:
        """Why rows cannot land: for each of them the most serious reason."""
        reasons: dict[int, Reason] = {}
        if self._words is not None:
            _note(
                reasons,
                images.operations.is_null(),
                _unclear(f"no known operation in {self._words.where!r}", self._words.where),
            )
        for name, fault in images.faults:
            _note(reasons, pa.array(fault.rows), fault.reason(name))
        lives = pc.not_equal(images.operations, DELETE)
        for each, column in zip(self._fields, images.columns, strict=True):
            if column.null_count and each.name in self._identity:
                _note(reasons, column.is_null(), missing(each.name).reworded(f"missing identity field {each.name!r}"))
            elif column.null_count and each.required:
                _note(reasons, pc.and_(column.is_null(), lives), missing(each.name))
        return reasons


def _check(schema: Schema, identity: tuple[str, ...], how: Changes, format_: Format) -> None:
    fields = schema.by_name()
    if not format_.has_fields:
        raise ValueError("records of the formats raw and string have no fields, and cannot say what changed")
    if how.mode == "dms" and format_.written != JSON:
        raise ValueError("AWS DMS writes its records as JSON: `changes: dms` takes no other format")
    if how.mode == "debezium" and format_.written == pa.string():
        raise ValueError(
            "lines of CSV or TSV hold no `before` and `after`: `changes: debezium` takes JSON, Avro and Protobuf"
        )
    if not identity or len(set(identity)) < len(identity):
        raise ValueError("an identity needs at least one field, and each of its fields once")
    for name in identity:
        if name not in fields:
            raise ValueError(f"the identity field {name!r} is not in the schema")
        type_ = fields[name].type
        if pt.is_nested(type_) or pt.is_floating(type_) or type_ == JSON:
            raise ValueError(f"the identity field {name!r} cannot be {spelled(type_)}")
    if OPERATION in fields:
        raise ValueError(f"the name {OPERATION!r} is taken: it holds the operation")
    operation = fields.get(how.field)
    if how.mode == "operation" and operation is not None and not pt.is_string(operation.type):
        raise ValueError(f"the operation field {how.field!r} must hold text, not {spelled(operation.type)}")


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
        faults = [(name, Fault(fault.rows[rows], fault.problem)) for name, fault in self.faults]
        columns = [column.filter(wanted) for column in self.columns]
        return Images(self.kept[rows], self.operations.filter(wanted), columns, faults, self.filtered[rows], ())


class PlainRecords:
    """The record is the row. Without `words` every record is an update."""

    def __init__(
        self,
        schema: Schema,
        identity: tuple[str, ...],
        words: Words | None,
        format_: Format,
        convert: Conversions,
        max_record_bytes: int,
    ) -> None:
        self._fields, self._identity, self._words = schema.fields, identity, words
        fields = tuple(replace(each, required=False) for each in schema.fields)
        if words is not None and words.where not in schema.by_name():
            fields += (Field(words.where, pa.string()),)
        asked = replace(schema, fields=fields)
        self._decoder = fitted(format_, convert).decoder(asked, max_record_bytes=max_record_bytes)

    def read(self, values: pa.BinaryArray) -> Iterator[Images]:
        decoded = self._decoder.decode(values)
        rows = decoded.table.combine_chunks()
        columns = [_whole(rows.column(each.name)) for each in self._fields]
        count = rows.num_rows
        if self._words is None:
            operations = pa.repeat(pa.scalar(UPDATE), count)
        else:
            operations = self._words.meant(_whole(rows.column(self._words.where)))
            deleted = pc.equal(operations, DELETE)
            columns = [
                column if each.name in self._identity else _nulled(deleted, column)
                for each, column in zip(self._fields, columns, strict=True)
            ]
        yield Images(decoded.kept, operations, columns, [], np.zeros(count, np.bool_), decoded.rejects)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk


def _nulled(rows: pa.Array, column: pa.Array) -> pa.Array:
    """The column, of any type, with nulls in these rows."""
    mask = mask_of(pc.fill_null(rows, False))
    return column.take(pa.array(np.arange(len(mask)), mask=mask)) if mask.any() else column


class _Nested(ABC):
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


class Debezium(_Nested):
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
        names, before, after = (_whole(table.column(name)) for name in ("op", "before", "after"))
        if self._is_json:
            payload = _whole(table.column("payload"))
            wrapped = mask_of(payload.is_valid())
            bare = zip(payload.flatten(), (names, before, after), strict=True)
            names, before, after = (_either(wrapped, inside, outside) for inside, outside in bare)
        operations = self._words.meant(names)
        deleted = pc.equal(operations, DELETE)
        old = dict(zip((child.name for child in before.type), before.flatten(), strict=True))
        chosen, faults = [], []
        for each, new in zip(self._schema.fields, after.flatten(), strict=True):
            if each.name in old:
                moved = pc.and_(pc.equal(operations, UPDATE), pc.not_equal(_plain(old[each.name]), _plain(new)))
                faults += _where(moved, each.name, _unclear("is part of the identity and changed in place"))
                chosen.append(_either(_mask(deleted), old[each.name], new))
            else:
                chosen.append(_nulled(deleted, new))
                faults += unsent(each, chosen[-1])
        columns, found = self._settled(chosen)
        return Images(kept, operations, columns, faults + found, np.zeros(len(kept), np.bool_), rejects)


def unsent(field: Field, column: pa.Array) -> list[tuple[str, Fault]]:
    """Rows in which Debezium says that it does not know the value."""
    return _where(pa.array(_marked(column, field.type)), field.name, _unclear("was not sent by Debezium"))


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
            same = _mask(pc.equal(items, codes.cast(items.type)))
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
        column, marks = _plain(column), [_UNSENT_ID.bytes if is_uuid(type_) else _UNSENT.encode()]
    return _mask(pc.is_in(column, value_set=pa.array(marks, column.type)))


class Dms(_Nested):
    """`data`, and `metadata` with the operation."""

    images = ("data",)

    def _asked(self, integers: Integers) -> list[Field]:
        about = pa.struct([pa.field("operation", pa.string()), pa.field("record-type", pa.string())])
        return [Field("metadata", about), self._row("data", integers)]

    def _rows_of(self, record: Any) -> list[dict[str, Any]]:
        return [_object(_object(record).get("data"))]

    def _images(self, table: pa.Table, kept: Indexes, rejects: tuple[Reject, ...]) -> Images:
        names, kind = _whole(table.column("metadata")).flatten()
        control = pc.fill_null(pc.equal(kind, "control"), False).to_numpy(zero_copy_only=False)
        operations = self._words.meant(names)
        deleted = pc.equal(operations, DELETE)
        chosen = [
            new if each.name in self._identity else _nulled(deleted, new)
            for each, new in zip(self._schema.fields, _whole(table.column("data")).flatten(), strict=True)
        ]
        columns, faults = self._settled(chosen)
        return Images(kept, operations, columns, faults, control, rejects)


def _plain(array: pa.Array) -> pa.Array:
    """What can be compared: the bytes of UUIDs."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _either(first: Mask, yes: pa.Array, no: pa.Array) -> pa.Array:
    """Row by row from one of two arrays, of any type."""
    if first.all() or not first.any():
        return yes if first.all() else no
    at = np.arange(len(first))
    return pa.concat_arrays([yes, no]).take(pa.array(np.where(first, at, at + len(first))))


def _where(rows: pa.Array, name: str, problem: Reason) -> list[tuple[str, Fault]]:
    mask = mask_of(pc.fill_null(rows, False))
    return [(name, Fault(mask, problem))] if mask.any() else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_TEXT = r'(?s)\A"(?:[^"\\]|\\.)*"\z'
_INTEGER = r"\A-?[0-9]+\z"
_LITERAL = r"\A(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false)\z"


def key_decoder(
    identity: Schema, keys: Format, convert: Conversions, max_record_bytes: int
) -> KeyDecoder | FormatKeyDecoder:
    """Decodes keys of this format to identities."""
    if isinstance(keys, Json):
        return KeyDecoder(identity, convert, max_record_bytes)
    if not keys.has_fields:
        raise ValueError(
            "keys of the formats raw and string have no fields: no tombstone could say which row it deletes"
        )
    decoder = fitted(keys.for_keys(), convert).decoder(identity, max_record_bytes=max_record_bytes)
    return FormatKeyDecoder(identity, decoder)


@dataclass(frozen=True)
class FormatKeyDecoder:
    """Decodes keys of tombstones by their own format."""

    identity: Schema
    decoder: Decoder

    def decode(self, keys: pa.BinaryArray) -> Decoded:
        found = Collected(self.identity.arrow)
        there = _mask(keys.is_valid())
        _reject(found, ~there, _bad_key("a tombstone without a key"))
        rows = np.flatnonzero(there)
        decoded = self.decoder.decode(keys.take(pa.array(rows)))
        rejects = tuple(Reject(at, _bad_key(f"its key: {reason}", reason.field)) for at, reason in decoded.rejects)
        found.add(replace(decoded, rejects=rejects), rows)
        return found.result()


class KeyDecoder:
    """Decodes keys of tombstones (records without a value) to the identities that they delete.

    A key is a JSON object that holds the identity, or, if the identity is one field, a scalar: a JSON literal, or bare
    text for a text field. `"a"` and `a` are then the same key.
    """

    def __init__(self, identity: Schema, convert: Conversions, max_record_bytes: int) -> None:
        self._schema = identity
        self._converted = convert.converts(identity.fields[0], identity.fold_case)
        self._decoder = fitted(Json(), convert).decoder(identity, max_record_bytes=max_record_bytes)

    def decode(self, keys: pa.BinaryArray) -> Decoded:
        """Decodes every key to an identity or a reject, in order."""
        found = Collected(self._schema.arrow)
        there = _mask(keys.is_valid())
        _reject(found, ~there, _bad_key("a tombstone without a key"))
        objects = there & _mask(pc.starts_with(keys, pattern="{"))
        rows = np.flatnonzero(objects)
        found.add(self._decoder.decode(keys.take(pa.array(rows))), rows)
        scalars = there & ~objects
        if len(self._schema.fields) > 1:
            _reject(found, scalars, _bad_key("a tombstone whose key is not a JSON object"))
        elif scalars.any():
            self._scalars(found, keys, scalars, self._schema.fields[0])
        return found.result()

    def _scalars(self, found: Collected, keys: pa.BinaryArray, where: Mask, field: Field) -> None:
        textual = pt.is_string(wire_type(field.type))
        counts = self._converted and pt.is_temporal(field.type)
        parsed = _mask(pc.match_substring_regex(keys, pattern=_TEXT))
        if not textual or field.scale is not None or counts:
            literal = _INTEGER if textual and not counts else _LITERAL
            parsed |= _mask(pc.match_substring_regex(keys, pattern=literal))
        rows = np.flatnonzero(where & parsed)
        opening = f"{{{json.dumps(field.place().names[0])}:".encode()
        records = pc.binary_join_element_wise(opening, keys.take(pa.array(rows)), b"}", b"")
        found.add(self._decoder.decode(records), rows)
        rest = where & ~parsed
        if textual and self._converted:
            self._quoted(found, keys, np.flatnonzero(rest), field)
        elif textual:
            self._texts(found, keys, np.flatnonzero(rest), field)
        else:
            _reject(found, rest, _bad_key(f"a tombstone whose key is not {spelled(field.type)}", field.name))

    def _quoted(self, found: Collected, keys: pa.BinaryArray, rows: Indexes, field: Field) -> None:
        """Keys that are bare text, where conversions decide what it becomes: what a JSON string with this text does."""
        texts = cast_or_null(keys.take(pa.array(rows)), pa.string())
        for at in rows[mask_of(texts.is_null())].tolist():
            found.reject(at, _not_utf8(field))
        name = field.place().names[0]
        records = [json.dumps({name: each}).encode() for each in texts.drop_null().to_pylist()]
        found.add(self._decoder.decode(pa.array(records, pa.binary())), rows[mask_of(texts.is_valid())])

    def _texts(self, found: Collected, keys: pa.BinaryArray, rows: Indexes, field: Field) -> None:
        """Keys that are bare text."""
        reasons: dict[int, Reason] = {}
        held = keys.take(pa.array(rows))
        texts = cast_or_null(held, pa.string())
        _note(reasons, texts.is_null(), _not_utf8(field))
        column, faults = settle(texts, field)
        for fault in faults:
            _note(reasons, pa.array(fault.rows), fault.reason(field.name))
        for at, reason in reasons.items():
            found.reject(rows[at], reason)
        keep = np.ones(len(rows), dtype=np.bool_)
        keep[list(reasons)] = False
        found.keep(rows[keep], [column.filter(pa.array(keep))])


def _not_utf8(field: Field) -> Reason:
    return _bad_key("a tombstone whose key is not valid UTF-8", field.name)


def _bad_key(words: str, field: str = "") -> Reason:
    return Reason(words, Code.BAD_KEY, field)


def _unclear(words: str, field: str = "") -> Reason:
    return Reason(words, Code.BAD_CHANGE, field)


def _reject(found: Collected, where: Mask, reason: Reason) -> None:
    for at in np.flatnonzero(where).tolist():
        found.reject(at, reason)


def _note(reasons: dict[int, Reason], where: pa.Array, reason: Reason) -> None:
    for at in np.flatnonzero(_mask(where)).tolist():
        reasons.setdefault(at, reason)


def _mask(where: pa.Array) -> Mask:
    return mask_of(where.fill_null(False))
