"""Decodes change records to rows with an operation: `_op` is I, U or D.

There are four modes:

- `upsert`: a record is the new row of its identity; a tombstone (no value) deletes the identity that its key holds;
- `operation`: the same, but a field of the record holds the operation: insert, update or delete;
- `debezium`: an envelope with `before`, `after` and `op`, with or without `schema` and `payload` around it; the
  tombstone after a deletion adds nothing and is filtered;
- `dms`: the records of AWS DMS, `data` and `metadata`; its control records are filtered.

Every change must hold its identity, in fields that are not null. A deletion needs nothing else: its other columns
become null, whatever the record holds. Every other change must be a whole row.

Conversions apply to rows and to the keys of tombstones: both name the same identity.

A target that removes an old row by its values also needs the row before each change: `WithBefore`. An update or a deletion must then
hold that row whole; one without it is a dead letter. Debezium sends it in `before` if the table has REPLICA IDENTITY FULL (PostgreSQL),
or binlog_row_image FULL (MySQL). DMS sends it in `before-image` if its task says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason, missing
from landonce.read.convert.decode import STRICT, Conversions, fitted
from landonce.read.envelopes import (
    BEFORE_IMAGE,
    DELETE,
    INSERT,
    OPERATION,
    UPDATE,
    Debezium,
    DebeziumBefore,
    Dms,
    DmsBefore,
    Envelope,
    Images,
    Words,
    bad_change,
    comparable,
    nulled,
    one_array,
)
from landonce.read.formats import Collected, Decoded, Decoder, Format, Indexes, Reject
from landonce.read.formats.json.columns import settle, wire_type
from landonce.read.formats.json.decode import MAX_RECORD_BYTES, Json
from landonce.read.schema.fields import JSON, Field, Schema, landed, spelled
from landonce.read.schema.texts import Mask, cast_or_null, mask_of, true_in
from landonce.read.schema.values import add_reasons


@dataclass(frozen=True)
class Changes:
    """How records describe changes. `field` and the names of the operations apply only to the mode `operation`."""

    mode: Literal["upsert", "operation", "debezium", "dms"]
    field: str = "op"
    insert: tuple[str, ...] = ("c", "r", "i", "I", "insert", "INSERT")
    update: tuple[str, ...] = ("u", "U", "update", "UPDATE")
    delete: tuple[str, ...] = ("d", "D", "delete", "DELETE")
    before: bool = False
    """Whether rows come with the row before the change, in the column `_before` (see `WithBefore`)."""

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
        kind: type[Envelope | PlainRecords] = {"debezium": Debezium, "dms": Dms}.get(how.mode, PlainRecords)
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
            deletions = images.only(true_in(pc.equal(images.operations, DELETE)) | images.filtered)
            for each in at[deletions.kept].tolist():
                del left[each]
            columns = self._spread(deletions.columns, len(deletions.kept))
            self._judge(found, rows[at], replace(deletions, columns=columns))
        return list(left.values())

    def _judge(self, found: Collected, rows: Indexes, images: Images) -> None:
        if images.filtered.any():
            found.filtered.append(rows[images.kept[images.filtered]])
            images = images.only(~images.filtered)
        found.settle(rows[images.kept], [images.operations, *images.columns], self._reasons(images))

    def _reasons(self, images: Images) -> dict[int, Reason]:
        """Why rows cannot land: for each of them the most serious reason."""
        reasons: dict[int, Reason] = {}
        if self._words is not None:
            _note(
                reasons,
                images.operations.is_null(),
                bad_change(f"no known operation in {self._words.where!r}", self._words.where),
            )
        for name, fault in images.faults:
            add_reasons(reasons, [fault], name)
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
        columns = [one_array(rows.column(each.name)) for each in self._fields]
        count = rows.num_rows
        if self._words is None:
            operations = pa.repeat(pa.scalar(UPDATE), count)
        else:
            operations = self._words.meant(one_array(rows.column(self._words.where)))
            deleted = pc.equal(operations, DELETE)
            columns = [
                column if each.name in self._identity else nulled(deleted, column)
                for each, column in zip(self._fields, columns, strict=True)
            ]
        yield Images(decoded.kept, operations, columns, [], np.zeros(count, np.bool_), decoded.rejects)


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
        there = true_in(keys.is_valid())
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
        there = true_in(keys.is_valid())
        _reject(found, ~there, _bad_key("a tombstone without a key"))
        objects = there & true_in(pc.starts_with(keys, pattern="{"))
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
        parsed = true_in(pc.match_substring_regex(keys, pattern=_TEXT))
        if not textual or field.scale is not None or counts:
            literal = _INTEGER if textual and not counts else _LITERAL
            parsed |= true_in(pc.match_substring_regex(keys, pattern=literal))
        rows = np.flatnonzero(where & parsed)
        opening = f"{{{json.dumps(field.place().names[0])}:".encode()
        records = pc.binary_join_element_wise(opening, keys.take(pa.array(rows)), b"}", b"")
        found.add(self._decoder.decode(records), rows)
        rest = where & ~parsed
        if textual:
            self._texts(found, keys, np.flatnonzero(rest), field)
        else:
            _reject(found, rest, _bad_key(f"a tombstone whose key is not {spelled(field.type)}", field.name))

    def _texts(self, found: Collected, keys: pa.BinaryArray, rows: Indexes, field: Field) -> None:
        """Keys that are bare text: the text itself, or, by a rule, what a JSON string with this text becomes."""
        texts = cast_or_null(keys.take(pa.array(rows)), pa.string())
        unreadable = mask_of(texts.is_null())
        for at in rows[unreadable].tolist():
            found.reject(at, _bad_key("a tombstone whose key is not valid UTF-8", field.name))
        rows, texts = rows[~unreadable], texts.drop_null()
        if self._converted:
            name = field.place().names[0]
            records = [json.dumps({name: each}).encode() for each in texts.to_pylist()]
            found.add(self._decoder.decode(pa.array(records, pa.binary())), rows)
            return
        column, faults = settle(texts, field)
        reasons: dict[int, Reason] = {}
        add_reasons(reasons, faults, field.name)
        found.settle(rows, [column], reasons)


def _bad_key(words: str, field: str = "") -> Reason:
    return Reason(words, Code.BAD_KEY, field)


def _reject(found: Collected, where: Mask, reason: Reason) -> None:
    for at in np.flatnonzero(where).tolist():
        found.reject(at, reason)


def _note(reasons: dict[int, Reason], where: pa.Array, reason: Reason) -> None:
    for at in np.flatnonzero(true_in(where)).tolist():
        reasons.setdefault(at, reason)


BEFORE = "_before"
_MISSING = {
    "debezium": Reason("the envelope lacks the row before the change", Code.BAD_CHANGE, "before"),
    "dms": Reason(
        "the record lacks the row before the change: give the DMS task BeforeImageSettings with FieldName before-image and ColumnFilter all",
        Code.BAD_CHANGE,
        BEFORE_IMAGE,
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
        self._missing, kind = _MISSING[how.mode], DebeziumBefore if how.mode == "debezium" else DmsBefore
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
        """Rows with another key than before: no row of that key would be removed."""
        old = dict(zip((each.name for each in self._type), before.flatten(), strict=True))
        moved = np.zeros(table.num_rows, np.bool_)
        for name in self._identity:
            moved |= true_in(pc.not_equal(comparable(old[name]), comparable(one_array(table.column(name)))))
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
