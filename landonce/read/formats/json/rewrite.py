"""Rewrites records so that Arrow's JSON reader can read them.

The reader knows one name per field, and no maps. So, if a schema needs it,

- a key that denotes a field is replaced by the field's own name, and a key that only looks like one by `_NOBODY`;
- an object that is a map becomes an object with a list of its entries:

    {"a":1,"b":2}    becomes    {"entries":[{"key":"a","value":1},{"key":"b","value":2}]}

This must not turn invalid text into JSON. It replaces only strings and the tokens of map objects, and checks the order
of these tokens; Arrow judges what is between them, and `is_whole` checks afterwards that every entry has its key.
Python handles each distinct spelling of a key once, and no record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.structure import (
    BRACE,
    BRACKET,
    CLOSING_BRACE,
    COLON,
    COMMA,
    Bytes,
    Containers,
    Ints,
    Malformed,
    Structure,
    scan,
)
from landonce.read.schema.fields import KEY, VALUE, Place, Schema, by_record_name, folded

ENTRIES = "entries"

_NOBODY = b"\\u0000landonce"
"""A JSON name that no column has."""
_LONGEST = 2**31 - 1
_OPEN, _OPEN_EMPTY, _NEXT, _COLON, _CLOSE, _CLOSE_EMPTY = range(6)
_MAP_TEXTS = (
    b'{"entries":[{"key":',
    b'{"entries":[',
    b'},{"key":',
    b',"value":',
    b"}]}",
    b"]}",
)


class Rewriter:
    """Rewrites the records of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._places = schema.places()
        self._fold = schema.fold_case

    @staticmethod
    def needed(schema: Schema) -> bool:
        return schema.fold_case or any(place.renamed or place.holds_map for place in schema.places())

    def rewrite(self, text: pa.Buffer, ends: Ints) -> pa.Buffer | None:
        """The records that end at ``ends``, rewritten for Arrow; None if one of them is not JSON."""
        structure = scan(np.frombuffer(text, np.uint8), ends)
        if structure is None:
            return None
        edits = _Edits()
        try:
            self._struct(structure, structure.roots(), self._places, edits)
        except Malformed:
            return None
        return edits.apply(text)

    def _struct(self, structure: Structure, found: Containers, places: Sequence[Place], edits: _Edits) -> None:
        objects = structure.only(found, BRACE)
        colons, _ = structure.members(objects)
        if not len(colons):
            return
        starts, ends = structure.key_spans(colons)
        encoded = structure.slices(starts, ends).dictionary_encode()
        codes = encoded.indices.to_numpy()
        meant, texts = self._meanings(encoded.dictionary.to_pylist(), places)
        for code, text in texts.items():
            mine = codes == code
            edits.add(starts[mine], ends[mine], text)
        for number, place in enumerate(places):
            if self._matters(place):
                self._inside(structure, colons[meant[codes] == number], place, objects.depth + 1, edits)

    def _meanings(self, spellings: list[bytes], places: Sequence[Place]) -> tuple[Ints, dict[int, bytes]]:
        """For each spelling the number of its place, or -1; and the replacement text, if it differs."""
        names, meant = resolved(spellings, places, self._fold)
        own = {place.name for place in places}
        texts = {}
        for code, (name, number) in enumerate(zip(names, meant, strict=True)):
            if number >= 0 and name != places[number].name:
                texts[code] = json.dumps(places[number].name)[1:-1].encode()
            elif number < 0 and name in own:
                texts[code] = _NOBODY
        return meant, texts

    def _matters(self, place: Place) -> bool:
        return bool(place.inside) and (self._fold or place.holds_map or any(each.renamed for each in place.inside))

    def _inside(self, structure: Structure, before: Ints, place: Place, depth: int, edits: _Edits) -> None:
        """Continues with the values after these tokens."""
        opening = BRACKET if pt.is_list(place.type) else BRACE
        self._value(structure, structure.opened_by(before, opening, depth), place, edits)

    def _value(self, structure: Structure, found: Containers, place: Place, edits: _Edits) -> None:
        if pt.is_struct(place.type):
            self._struct(structure, found, place.inside, edits)
        elif pt.is_map(place.type):
            self._map(structure, found, place.inside[0], edits)
        elif self._matters(place.inside[0]):
            element = place.inside[0]
            opening = BRACKET if pt.is_list(element.type) else BRACE
            self._value(structure, structure.elements(found, opening), element, edits)

    def _map(self, structure: Structure, found: Containers, value: Place, edits: _Edits) -> None:
        tokens, _ = structure.tokens_of(found)
        if not len(tokens):
            return
        kinds = structure.kind[tokens]
        following = np.append(kinds[1:], BRACE)
        if not _in_order(kinds, following):
            raise Malformed
        preceding = np.append(CLOSING_BRACE, kinds[:-1])
        at = structure.at[tokens]
        opens, closes = kinds == BRACE, kinds == CLOSING_BRACE
        for text, chosen in (
            (_OPEN, opens & (following == COLON)),
            (_OPEN_EMPTY, opens & (following == CLOSING_BRACE)),
            (_NEXT, kinds == COMMA),
            (_COLON, kinds == COLON),
            (_CLOSE, closes & (preceding == COLON)),
            (_CLOSE_EMPTY, closes & (preceding == BRACE)),
        ):
            edits.add(at[chosen], at[chosen] + 1, _MAP_TEXTS[text])
        if self._matters(value):
            self._inside(structure, tokens[kinds == COLON], value, found.depth + 1, edits)


def _in_order(kinds: Bytes, following: Bytes) -> bool:
    """Whether these are the tokens of objects: `{}` and `{:}` and `{:,:}` and so on."""
    opened = (kinds == BRACE) & ((following == COLON) | (following == CLOSING_BRACE))
    keyed = (kinds == COLON) & ((following == COMMA) | (following == CLOSING_BRACE))
    parted = (kinds == COMMA) & (following == COLON)
    closed = (kinds == CLOSING_BRACE) & (following == BRACE)
    return bool((opened | keyed | parted | closed).all())


class _Edits:
    """Ranges of a text, and their replacements."""

    def __init__(self) -> None:
        self._starts: list[Ints] = []
        self._ends: list[Ints] = []
        self._texts: list[bytes] = []

    def add(self, starts: Ints, ends: Ints, text: bytes) -> None:
        self._starts.append(starts)
        self._ends.append(ends)
        self._texts.append(text)

    def apply(self, text: pa.Buffer) -> pa.Buffer | None:
        """The text with every range replaced; None if it is longer than an array can be."""
        counts = [len(each) for each in self._starts]
        if not sum(counts):
            return text
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        lengths = np.array([len(each) for each in self._texts])
        if text.size + int((lengths * counts).sum()) > _LONGEST:
            return None
        order = np.argsort(starts)
        bounds = np.column_stack((starts[order], ends[order])).reshape(-1)
        bounds = np.concatenate(([0], bounds, [text.size])).astype(np.int32)
        pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), text])
        replaced = np.zeros(len(bounds) - 1, dtype=np.bool_)
        replaced[1::2] = True
        which = np.repeat(np.arange(len(counts)), counts)[order]
        texts = pa.array(self._texts, pa.binary()).take(pa.array(which))
        _, offsets, data = pc.replace_with_mask(pieces, pa.array(replaced), texts).buffers()
        return data.slice(0, int(np.frombuffer(offsets, np.int32, len(bounds))[-1]))


def resolved(spellings: list[bytes], places: Sequence[Place], fold_case: bool) -> tuple[list[str], Ints]:
    """The decoded keys, and for each the number of the place that it denotes, or -1."""
    known = by_record_name(places, fold_case)
    numbers = {place.name: number for number, place in enumerate(places)}
    names = [_unescaped(each) for each in spellings]
    found = [known.get(folded(name, fold_case)) for name in names]
    meant = np.array([-1 if place is None else numbers[place.name] for place in found], dtype=np.int64)
    return names, meant


def _unescaped(spelling: bytes) -> str:
    """A key, decoded."""
    try:
        return str(json.loads(b'"' + spelling + b'"'))
    except ValueError:
        raise Malformed from None


def is_whole(array: pa.Array, type_: pa.DataType) -> bool:
    """Whether every map was rewritten, and has its keys."""
    if pt.is_map(type_):
        listed = array.field(ENTRIES)
        entries = listed.values
        if (
            entries.null_count
            or entries.field(KEY).null_count
            or pc.any(pc.and_(array.is_valid(), listed.is_null())).as_py()
        ):
            return False
        return is_whole(entries.field(VALUE), type_.item_type)
    if pt.is_list(type_):
        return is_whole(array.values, type_.value_type)
    if pt.is_struct(type_):
        return all(is_whole(array.field(at), child.type) for at, child in enumerate(type_))
    return True
