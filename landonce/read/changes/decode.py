"""Decodes change records to rows with an operation: `_op` is I, U or D.

There are four modes:

- `upsert`: a record is the new row of its identity; a tombstone (no value) deletes the identity that its key holds;
- `operation`: the same, but a field of the record holds the operation: insert, update or delete;
- `debezium`: an envelope with `before`, `after` and `op`, with or without `schema` and `payload` around it; the
  tombstone after a deletion adds nothing and is filtered;
- `dms`: the records of AWS DMS, `data` and `metadata`; its control records are filtered.

Every change must hold its identity, in fields that are not null. A deletion needs nothing else: its other columns
become null, whatever the record holds. Every other change must be a whole row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.changes.images import DELETE, INSERT, UPDATE, Debezium, Dms, Images, Plain, Reader, Rows, Words
from landonce.read.formats.json.columns import settle, wire_type
from landonce.read.formats.json.decode import MAX_RECORD_BYTES, Decoded, JsonDecoder, Reject
from landonce.read.formats.json.values import Mask, mask_of
from landonce.read.schema.fields import Field, Schema, spelled

OPERATION = "_op"


@dataclass(frozen=True)
class Changes:
    """How records describe changes. `field` and the names of the operations apply only to the mode `operation`."""

    mode: Literal["upsert", "operation", "debezium", "dms"]
    field: str = "op"
    insert: tuple[str, ...] = ("c", "r", "i", "I", "insert", "INSERT")
    update: tuple[str, ...] = ("u", "U", "update", "UPDATE")
    delete: tuple[str, ...] = ("d", "D", "delete", "DELETE")

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


@dataclass(frozen=True)
class Changed:
    """Row ``i`` of ``table`` came from input ``kept[i]``. Inputs are kept, rejected or filtered, in order."""

    table: pa.Table
    kept: pa.Int64Array
    rejects: tuple[Reject, ...]
    filtered: pa.Int64Array


@dataclass
class _Outcome:
    """The results so far."""

    schema: pa.Schema
    tables: list[pa.Table] = field(default_factory=list)
    kept: list[Rows] = field(default_factory=list)
    filtered: list[Rows] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    def keep(self, rows: Rows, columns: list[pa.Array]) -> None:
        self.kept.append(rows)
        self.tables.append(pa.Table.from_arrays(columns, schema=self.schema))

    def result(self) -> Changed:
        kept = _joined(self.kept)
        table = pa.concat_tables([self.schema.empty_table(), *self.tables])
        if (np.diff(kept) < 0).any():
            order = np.argsort(kept)
            kept, table = kept[order], table.combine_chunks().take(pa.array(order))
        rejects = tuple(sorted(self.rejects, key=lambda reject: reject.index))
        return Changed(table, pa.array(kept), rejects, pa.array(np.sort(_joined(self.filtered))))


class ChangeDecoder:
    """Decodes arrays of record values with their keys; keep one per worker."""

    def __init__(
        self, schema: Schema, identity: tuple[str, ...], how: Changes, *, max_record_bytes: int = MAX_RECORD_BYTES
    ) -> None:
        _check(schema, identity, how)
        self._fields, self._identity, self._words = schema.fields, identity, how.words()
        keyed = tuple(replace(each, required=True) for each in schema.fields if each.name in identity)
        bare = replace(schema, fields=keyed)
        self._whole = _reader(how, schema, identity, max_record_bytes)
        self._bare = _reader(how, bare, identity, max_record_bytes)
        self._keys = KeyDecoder(bare, max_record_bytes) if how.mode in ("upsert", "operation") else None
        self._filters_tombstones = how.mode == "debezium"
        rows = [pa.field(each.name, each.type, nullable=each.name not in identity) for each in schema.fields]
        self.arrow = pa.schema([pa.field(OPERATION, pa.string(), nullable=False), *rows])

    def decode(self, values: pa.BinaryArray, keys: Sequence[bytes | None] | pa.BinaryArray) -> Changed:
        """Decodes every record, filters it, or says why not. Reads the keys of tombstones only."""
        outcome = _Outcome(self.arrow)
        rows = np.arange(len(values), dtype=np.int64)
        if values.null_count and (self._keys or self._filters_tombstones):
            empty = values.is_null().to_numpy(zero_copy_only=False)
            self._delete(outcome, rows[empty], keys)
            rows, values = rows[~empty], values.filter(pa.array(~empty))
        self._decode(outcome, rows, values)
        return outcome.result()

    def _delete(self, outcome: _Outcome, rows: Rows, keys: Sequence[bytes | None] | pa.BinaryArray) -> None:
        if self._keys is None:
            outcome.filtered.append(rows)
            return
        held = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        decoded = self._keys.decode(held.take(pa.array(rows)))
        outcome.rejects += [Reject(int(rows[each.index]), each.reason) for each in decoded.rejects]
        count = decoded.table.num_rows
        deleted = pa.repeat(pa.scalar(DELETE), count)
        outcome.keep(rows[decoded.kept.to_numpy()], [deleted, *self._spread(decoded.table.columns, count)])

    def _spread(self, identity: list[pa.Array], count: int) -> list[pa.Array]:
        """The columns of deletions: the identity, and nulls."""
        held = iter(identity)
        return [next(held) if each.name in self._identity else pa.nulls(count, each.type) for each in self._fields]

    def _decode(self, outcome: _Outcome, rows: Rows, values: pa.BinaryArray) -> None:
        """A record that is not a whole row may still be a deletion, which needs only its identity."""
        rejects: list[Reject] = []
        for images in self._whole.read(values):
            rejects += images.rejects
            self._judge(outcome, rows, images)
        if rejects and self._words is not None:
            rejects = self._look_again(outcome, rows, values, rejects)
        outcome.rejects += [Reject(int(rows[each.index]), each.reason) for each in rejects]

    def _look_again(self, outcome: _Outcome, rows: Rows, values: pa.BinaryArray, rejects: list[Reject]) -> list[Reject]:
        """Takes deletions and filtered records out of the rejects, and returns the others."""
        left = {each.index: each for each in rejects}
        at = np.array(list(left), dtype=np.int64)
        for images in self._bare.read(values.take(pa.array(at))):
            found = images.only(_mask(pc.equal(images.operations, DELETE)) | images.filtered)
            for each in at[found.kept].tolist():
                del left[each]
            columns = self._spread(found.columns, len(found.kept))
            self._judge(outcome, rows[at], replace(found, columns=columns))
        return list(left.values())

    def _judge(self, outcome: _Outcome, rows: Rows, images: Images) -> None:
        reasons = self._reasons(images)
        kept = ~images.filtered
        kept[list(reasons)] = False
        outcome.filtered.append(rows[images.kept[images.filtered]])
        outcome.rejects += [
            Reject(int(rows[images.kept[at]]), reason) for at, reason in reasons.items() if not images.filtered[at]
        ]
        columns = [images.operations, *images.columns]
        if not kept.all():
            columns = [column.filter(pa.array(kept)) for column in columns]
        outcome.keep(rows[images.kept[kept]], columns)

    def _reasons(self, images: Images) -> dict[int, str]:
        """Why rows cannot land: for each of them the most serious reason."""
        reasons: dict[int, str] = {}
        if self._words is not None:
            _note(reasons, images.operations.is_null(), f"no known operation in {self._words.where!r}")
        for name, fault in images.faults:
            _note(reasons, pa.array(fault.rows), fault.reason(name))
        lives = pc.not_equal(images.operations, DELETE)
        for each, column in zip(self._fields, images.columns, strict=True):
            if column.null_count and each.name in self._identity:
                _note(reasons, column.is_null(), f"missing identity field {each.name!r}")
            elif column.null_count and each.required:
                _note(reasons, pc.and_(column.is_null(), lives), f"missing required field {each.name!r}")
        return reasons


def _check(schema: Schema, identity: tuple[str, ...], how: Changes) -> None:
    fields = schema.by_name()
    if not identity or len(set(identity)) < len(identity):
        raise ValueError("an identity needs at least one field, and each of its fields once")
    for name in identity:
        if name not in fields:
            raise ValueError(f"the identity field {name!r} is not in the schema")
        if pt.is_nested(fields[name].type) or pt.is_floating(fields[name].type):
            raise ValueError(f"the identity field {name!r} cannot be {spelled(fields[name].type)}")
    if OPERATION in fields:
        raise ValueError(f"the name {OPERATION!r} is taken: it holds the operation")
    operation = fields.get(how.field)
    if how.mode == "operation" and operation is not None and not pt.is_string(operation.type):
        raise ValueError(f"the operation field {how.field!r} must hold text, not {spelled(operation.type)}")


def _reader(how: Changes, schema: Schema, identity: tuple[str, ...], max_record_bytes: int) -> Reader:
    words = how.words()
    if how.mode == "debezium" and words is not None:
        return Debezium(schema, identity, words, max_record_bytes)
    if how.mode == "dms" and words is not None:
        return Dms(schema, identity, words, max_record_bytes)
    return Plain(schema, identity, words, max_record_bytes)


def _note(reasons: dict[int, str], where: pa.Array, reason: str) -> None:
    for at in np.flatnonzero(_mask(where)).tolist():
        reasons.setdefault(at, reason)


def _mask(where: pa.Array) -> Mask:
    return mask_of(where.fill_null(False))


def _joined(parts: list[Rows]) -> Rows:
    return np.concatenate([np.empty(0, np.int64), *parts])


_TEXT = r'(?s)\A"(?:[^"\\]|\\.)*"\z'
_INTEGER = r"\A-?[0-9]+\z"
_LITERAL = r"\A(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false)\z"


class KeyDecoder:
    """Decodes keys of tombstones (records without a value) to the identities that they delete.

    A key is a JSON object that holds the identity, or, if the identity is one field, a scalar: a JSON literal, or bare
    text for a text field. `"a"` and `a` are then the same key.
    """

    def __init__(self, identity: Schema, max_record_bytes: int) -> None:
        self._schema = identity
        self._decoder = JsonDecoder(identity, max_record_bytes=max_record_bytes)
        self._scalar = identity.fields[0] if len(identity.fields) == 1 else None

    def decode(self, keys: pa.BinaryArray) -> Decoded:
        """Decodes every key to an identity or a reject, in order."""
        there = _mask(keys.is_valid())
        objects = there & _mask(pc.starts_with(keys, pattern="{"))
        parts = [_rejected(~there, "a tombstone without a key"), self._objects(keys, objects)]
        scalars = there & ~objects
        if self._scalar is None:
            parts.append(_rejected(scalars, "a tombstone whose key is not a JSON object"))
        elif scalars.any():
            parts += self._scalars(keys, scalars, self._scalar)
        return _together(parts, self._schema.arrow)

    def _objects(self, keys: pa.BinaryArray, where: Mask) -> Decoded:
        rows = np.flatnonzero(where)
        return _placed(self._decoder.decode(keys.take(pa.array(rows))), rows)

    def _scalars(self, keys: pa.BinaryArray, where: Mask, field: Field) -> list[Decoded]:
        textual = pt.is_string(wire_type(field.type))
        literal = _INTEGER if textual and field.scale is not None else _LITERAL
        parsed = _matches(keys, _TEXT)
        if not textual or field.scale is not None:
            parsed |= _matches(keys, literal)
        rest = where & ~parsed
        parts = [self._literals(keys, where & parsed, field)]
        if textual:
            parts.append(self._texts(keys, rest, field))
        else:
            parts.append(_rejected(rest, f"a tombstone whose key is not {spelled(field.type)}"))
        return parts

    def _literals(self, keys: pa.BinaryArray, where: Mask, field: Field) -> Decoded:
        rows = np.flatnonzero(where)
        opening = f"{{{json.dumps(field.place().names[0])}:".encode()
        records = pc.binary_join_element_wise(opening, keys.take(pa.array(rows)), b"}", b"")
        return _placed(self._decoder.decode(records), rows)

    def _texts(self, keys: pa.BinaryArray, where: Mask, field: Field) -> Decoded:
        rows = np.flatnonzero(where)
        reasons: dict[int, str] = {}
        texts = _decoded(keys.take(pa.array(rows)), reasons)
        column, faults = settle(texts, field)
        for fault in faults:
            for bad in np.flatnonzero(fault.rows):
                reasons.setdefault(int(bad), fault.reason(field.name))
        keep = np.ones(len(rows), dtype=np.bool_)
        keep[list(reasons)] = False
        table = pa.Table.from_arrays([column.filter(pa.array(keep))], schema=self._schema.arrow)
        rejects = tuple(Reject(int(rows[at]), reason) for at, reason in sorted(reasons.items()))
        return Decoded(table, pa.array(rows[keep]), rejects)


def _decoded(keys: pa.BinaryArray, reasons: dict[int, str]) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_text(key) for key in keys.to_pylist()]
        reasons.update(
            {at: "a tombstone whose key is not valid UTF-8" for at, text in enumerate(texts) if text is None}
        )
        return pa.array(texts, pa.string())


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _matches(keys: pa.BinaryArray, pattern: str) -> Mask:
    return _mask(pc.match_substring_regex(keys, pattern=pattern))


def _rejected(where: Mask, reason: str) -> Decoded:
    return Decoded(
        pa.table([]), pa.array([], pa.int64()), tuple(Reject(int(at), reason) for at in np.flatnonzero(where))
    )


def _placed(decoded: Decoded, rows: npt.NDArray[np.int64]) -> Decoded:
    """The same rejects, with indices into the original array."""
    rejects = tuple(Reject(int(rows[each.index]), each.reason) for each in decoded.rejects)
    return Decoded(decoded.table, pa.array(rows[decoded.kept.to_numpy()]), rejects)


def _together(parts: list[Decoded], schema: pa.Schema) -> Decoded:
    kept = np.concatenate([np.empty(0, np.int64), *(part.kept.to_numpy() for part in parts)])
    order = np.argsort(kept)
    tables = [part.table for part in parts if part.table.num_rows]
    table = pa.concat_tables(tables).combine_chunks().take(pa.array(order)) if tables else schema.empty_table()
    rejects = sorted((reject for part in parts for reject in part.rejects), key=lambda reject: reject.index)
    return Decoded(table, pa.array(kept[order]), tuple(rejects))
