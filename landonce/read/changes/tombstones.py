"""A tombstone (a record without a value) deletes the row that its key names.

A key is a JSON object that holds the identity, or, if the identity is one field, a scalar: a JSON literal, or bare text
for a text field. `"a"` and `a` are then the same key.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.columns import settle, wire_type
from landonce.read.formats.json.decode import Decoded, JsonDecoder, Reject
from landonce.read.formats.json.values import Mask, mask_of
from landonce.read.schema.fields import Field, Schema, spelled

_TEXT = r'(?s)\A"(?:[^"\\]|\\.)*"\z'
_INTEGER = r"\A-?[0-9]+\z"
_LITERAL = r"\A(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false)\z"


class KeyDecoder:
    """Decodes keys to identities: a table of the identity's columns."""

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


def _mask(array: pa.BooleanArray) -> Mask:
    return mask_of(array.fill_null(False))


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
