"""Finds what a schema lacks for some records: new fields, wider types, nulls in required fields.

It reads a block's raw records, apart from the decoder, and finds only what a change of the table could hold; the
decoder rejects the rest. Of JSON, only records that are objects count; of formats with schemas, the schemas that records
were written with. Nothing here loops over records. A `ValueShape` is what was seen of one unknown field; shapes of many
blocks merge in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.errors import ConfigError, NothingToInfer
from landonce.protocol.receipt import Want
from landonce.read.formats import Format
from landonce.read.formats.json.decode import blocks, objects_in
from landonce.read.formats.json.structure import (
    BRACE,
    BRACKET,
    QUOTE,
    Bytes,
    Containers,
    Ints,
    Structure,
    resolved,
    scan,
    wider,
)
from landonce.read.schema.fields import ELEMENT, JSON, VALUE, Path, Place, Schema, by_record_name, folded

BOOLEAN, LONG, DOUBLE, STRING, LIST, STRUCT = "boolean", "long", "double", "string", "list", "struct"
_TYPES = {BOOLEAN: pa.bool_(), LONG: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string()}


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Leaves out names that differ only in case from an earlier or a taken one: most readers cannot tell such
    columns apart."""
    known, kept = {each.lower() for each in taken}, []
    for name in names:
        if name.lower() not in known:
            known.add(name.lower())
            kept.append(name)
    return kept


@dataclass(frozen=True)
class ValueShape:
    """The kinds of values that were seen in one place, and inside them. Nulls are ignored."""

    kinds: frozenset[str] = frozenset()
    fields: tuple[tuple[str, ValueShape], ...] = ()
    """Of objects, by name."""
    element: ValueShape | None = None
    """Of arrays."""
    known: pa.DataType | None = None
    """Its type, if a schema says it."""

    def type(self) -> pa.DataType | None:
        """Its column; None as long as no value was seen. Integers among fractions are fractions. Values of different kinds are kept
        as JSON text."""
        if self.known is not None:
            return self.known
        kinds = self.kinds - {LONG} if DOUBLE in self.kinds else self.kinds
        if len(kinds) > 1:
            return JSON
        return next((self._of_kind(kind) for kind in kinds), None)

    def _of_kind(self, kind: str) -> pa.DataType | None:
        if kind == STRUCT:
            children = [(name, shape.type()) for name, shape in self.fields]
            known = {name: pa.field(name, type_) for name, type_ in children if type_ is not None}
            return pa.struct([known[name] for name in distinct(known)]) if known else None
        if kind == LIST:
            inner = self.element.type() if self.element is not None else None
            return pa.list_(inner) if inner is not None else None
        return _TYPES[kind]


def merged(shapes: Iterable[ValueShape]) -> ValueShape:
    """The union of both. The order does not matter."""
    listed = list(shapes)
    fields: dict[str, list[ValueShape]] = {}
    for shape in listed:
        for name, each in shape.fields:
            fields.setdefault(name, []).append(each)
    elements = [shape.element for shape in listed if shape.element is not None]
    return ValueShape(
        frozenset().union(*(shape.kinds for shape in listed)),
        tuple((name, merged(fields[name])) for name in sorted(fields)),
        merged(elements) if elements else None,
        _joined([shape.known for shape in listed if shape.known is not None]),
    )


def _joined(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """A type that holds values of all of these; JSON text if there is no other."""
    if len(set(types)) < 2:
        return types[0] if types else None
    tables = [pa.schema([pa.field("x", each)]) for each in sorted(types, key=str)]
    try:
        return pa.unify_schemas(tables, promote_options="permissive").field("x").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return JSON


READERS_OWN = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
"""Metadata columns of Iceberg's readers: Spark cannot read, merge or compact a table with a column of this name."""
RESERVED = (
    *("_topic", "_kafka_partition", "_offset", "_op"),
    *READERS_OWN,
    *("_change_type", "_change_ordinal", "_commit_snapshot_id"),
)
"""Names that never become columns: those of the coordinates and those that Iceberg's readers reserve."""
_DEEPEST = 32
_NULL = ord("n")
_BOOLEANS = np.array([ord("t"), ord("f")])


@dataclass(frozen=True)
class Evolution(Want):
    """What was found, by path: names of columns and struct fields, `element` in a list, `value` in a map."""

    added: tuple[tuple[Path, ValueShape], ...] = ()
    widened: tuple[tuple[Path, pa.DataType], ...] = ()
    optional: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.widened or self.optional)


def merge(evolutions: Iterable[Evolution]) -> Evolution:
    """The union, in any order. Of new names that differ only in case, the first one counts."""

    def width(type_: pa.DataType) -> tuple[int, str]:
        return (type_.precision if pt.is_decimal(type_) else type_.bit_width, str(type_))

    listed = list(evolutions)
    added: dict[Path, list[ValueShape]] = {}
    widened: dict[Path, list[pa.DataType]] = {}
    for each in listed:
        for path, shape in each.added:
            added.setdefault(path, []).append(shape)
        for path, type_ in each.widened:
            widened.setdefault(path, []).append(type_)
    parents = {path[:-1] for path in added}
    kept = {
        (*each, name) for each in parents for name in distinct(sorted(path[-1] for path in added if path[:-1] == each))
    }
    return Evolution(
        tuple((path, merged(added[path])) for path in sorted(kept)),
        tuple((path, max(widened[path], key=width)) for path in sorted(widened)),
        tuple(sorted({path for each in listed for path in each.optional})),
    )


_SOME, _SOME_BYTES = 16, 2**18
"""Of how many records at once fields without a column are looked for, and of how many bytes about."""


def without_column(values: pa.BinaryArray, schema: Schema, format_: Format) -> tuple[Path, ...]:
    """Fields of these records that the schema lacks. Only a few records are looked at, so that it costs the same for any number."""
    if not format_.has_fields or not len(values):
        return ()
    step = max(1, len(values) // _SOME)
    some = values.take(pa.array(np.arange(len(values) - 1, -1, -step, dtype=np.int64)[:_SOME]))
    lengths = np.cumsum(pc.fill_null(pc.binary_length(some), 0).to_numpy(zero_copy_only=False))
    some = some.slice(0, max(1, int(np.searchsorted(lengths, _SOME_BYTES))))
    if not format_.has_types and (named := format_.fields([])) is not None:
        found: Evolution | None = _of_schema(named, schema, (), format_)
    else:
        found = observed([some], schema, format_)
    return tuple(path for path, _ in found.added) if found is not None else ()


def observed(
    payloads: Iterable[pa.BinaryArray],
    schema: Schema,
    format_: Format | None = None,
    *,
    identity: tuple[str, ...] = (),
    most_digits: int = 38,
) -> Evolution | None:
    """What the schema lacks for these records, or None. The fields of `identity` stay required. `most_digits`: of a decimal in the target."""
    if format_ is not None and format_.has_types:
        found = merge(
            _of_schema(each, schema, identity, format_, most_digits)
            for values in payloads
            for each in _schemas(values, format_)
        )
    else:
        found = merge(
            _look(records.slice(start, stop - start), schema, identity, most_digits)
            for values in payloads
            for bodies in (format_.bodies(values) if format_ is not None else values,)
            for records in (bodies.take(pa.array(objects_in(bodies))),)
            for start, stop in blocks(records)
        )
    return found if found else None


# Of records with schemas.


def _schemas(values: pa.BinaryArray, format_: Format) -> Iterator[Schema]:
    """The fields of each schema of these records. One that gives none rejects its records."""
    for each in format_.examples(values):
        try:
            found = format_.fields([each])
        except (ConfigError, NothingToInfer):
            continue
        if found is not None:
            yield found


def _of_schema(
    written: Schema, schema: Schema, identity: tuple[str, ...], format_: Format, most_digits: int = 38
) -> Evolution:
    look = _Compare(schema.fold_case, most_digits, nulls=format_.marks_nulls)
    fields = [pa.field(each.name, each.type, nullable=not each.required) for each in written.fields]
    look.struct(fields, schema.places(), ())
    kept = [path for path in look.optional if not _is_within(path, identity)]
    return Evolution(tuple(look.added), tuple(look.widened), tuple(kept))


def _is_within(path: Path, identity: tuple[str, ...]) -> bool:
    """Whether a field of the identity is here, or inside."""
    return any(f"{name}.".startswith(".".join((*path, ""))) for name in identity)


class _Compare:
    """Compares the fields of a writer's schema with the places of a table."""

    def __init__(self, fold_case: bool, most_digits: int, *, nulls: bool) -> None:
        self._fold, self._most_digits, self._nulls = fold_case, most_digits, nulls
        self.added: list[tuple[Path, ValueShape]] = []
        self.widened: list[tuple[Path, pa.DataType]] = []
        self.optional: list[Path] = []

    def struct(self, written: Iterable[pa.Field], places: Sequence[Place], path: Path) -> None:
        known = by_record_name(places, self._fold)
        found: dict[str, pa.Field] = {}
        strangers: dict[str, pa.Field] = {}
        for each in written:
            place = known.get(folded(each.name, self._fold))
            if place is None:
                strangers.setdefault(folded(each.name, self._fold), each)
            else:
                found[place.name] = each
        for place in places:
            inner = (*path, place.name)
            if place.name in found:
                self._value(found[place.name], place, inner)
            elif not place.nullable:
                self.optional.append(inner)
        taken = (*(place.name for place in places), *(() if path else RESERVED))
        for name in distinct(sorted(strangers), taken):
            self.added.append(((*path, name), ValueShape(known=strangers[name].type)))

    def _value(self, written: pa.Field, place: Place, path: Path) -> None:
        if self._nulls and written.nullable and not place.nullable:
            self.optional.append(path)
        type_ = written.type
        if pt.is_struct(place.type) and pt.is_struct(type_):
            self.struct(type_, place.inside, path)
        elif pt.is_list(place.type) and pt.is_list(type_):
            self._value(type_.value_field, place.inside[0], (*path, ELEMENT))
        elif pt.is_map(place.type) and pt.is_map(type_):
            self._value(type_.item_field, place.inside[0], (*path, VALUE))
        elif (place.type, type_) in _WIDER:
            self.widened.append((path, type_))
        elif pt.is_decimal(place.type) and pt.is_decimal(type_) and place.type.scale == type_.scale:
            self.widened += [(path, type_)] * (place.type.precision < type_.precision <= self._most_digits)


_WIDER = ((pa.int32(), pa.int64()), (pa.uint32(), pa.uint64()), (pa.float32(), pa.float64()))
"""Schemas have no smaller integers than of 32 bits, so a smaller column says more of the values than they do, and stays as it is."""


# Of JSON.


def _look(records: pa.BinaryArray, schema: Schema, identity: tuple[str, ...], most_digits: int) -> Evolution:
    stream = pc.binary_join_element_wise(records.cast(pa.binary()), b"\n", b"")
    ends = np.frombuffer(stream.buffers()[1], np.int32, len(records) + 1)[1:].astype(np.int64)
    structure = scan(np.frombuffer(stream.buffers()[2], np.uint8)[: int(ends[-1])], ends)
    if structure is None:
        return Evolution()
    look = _Look(structure, most_digits, fold_case=schema.fold_case)
    look.struct(structure.roots(), schema.places(), ())
    kept = {path for path in look.optional if not _is_within(path, identity)}
    return Evolution(tuple(look.added), tuple(look.widened), tuple(kept))


class _Look:
    """The search in one block."""

    def __init__(self, structure: Structure, most_digits: int, *, fold_case: bool) -> None:
        self._structure, self._most_digits = structure, most_digits
        self._fold = fold_case
        self.added: list[tuple[Path, ValueShape]] = []
        self.widened: list[tuple[Path, pa.DataType]] = []
        self.optional: list[Path] = []

    def struct(self, found: Containers, places: Sequence[Place], path: Path) -> None:
        """Objects of which some fields are known."""
        objects = self._structure.only(found, BRACE)
        colons, owner = self._structure.members(objects)
        names, meant, codes = self._keys(colons, places)
        for number, place in enumerate(places):
            mine = meant[codes] == number
            inner = (*path, place.name)
            if not place.nullable:
                holding = owner[mine][self._first(colons[mine]) != _NULL]
                if len(np.unique(holding)) < len(objects):
                    self.optional.append(inner)
            self._value(colons[mine], place, inner, objects.depth)
        strangers = dict(self._strangers(names, meant, colons, codes))
        taken = (*(place.name for place in places), *(() if path else RESERVED))
        for name in distinct(sorted(strangers), taken):
            shape = self._shape(strangers[name], objects.depth)
            if shape.type() is not None:
                self.added.append(((*path, name), shape))

    def _value(self, tokens: Ints, place: Place, path: Path, depth: int) -> None:
        """The values after these tokens, in a place of the schema."""
        inside = self._structure.opened_by(tokens, BRACKET if pt.is_list(place.type) else BRACE, depth + 1)
        if pt.is_struct(place.type):
            self.struct(inside, place.inside, path)
        elif pt.is_list(place.type):
            self._items(self._structure.before_elements(inside), place.inside[0], (*path, ELEMENT), depth + 1)
        elif pt.is_map(place.type):
            self._items(self._structure.members(inside)[0], place.inside[0], (*path, VALUE), depth + 1)
        else:
            type_ = wider(self._structure, tokens, place.type, self._most_digits)
            if type_ is not None:
                self.widened.append((path, type_))

    def _items(self, tokens: Ints, place: Place, path: Path, depth: int) -> None:
        if not place.nullable and (self._first(tokens) == _NULL).any():
            self.optional.append(path)
        self._value(tokens, place, path, depth)

    def _shape(self, tokens: Ints, depth: int) -> ValueShape:
        """The values after these tokens, at an unknown place."""
        first = self._first(tokens)
        kinds = set()
        if np.isin(first, _BOOLEANS).any():
            kinds.add(BOOLEAN)
        if (first == QUOTE).any():
            kinds.add(STRING)
        kinds |= self._numbers(tokens[((first >= ord("0")) & (first <= ord("9"))) | (first == ord("-"))])
        objects = self._structure.opened_by(tokens, BRACE, depth + 1)
        arrays = self._structure.opened_by(tokens, BRACKET, depth + 1)
        if depth >= _DEEPEST:
            return ValueShape(frozenset(kinds))
        if len(objects):
            kinds.add(STRUCT)
        if len(arrays):
            kinds.add(LIST)
        fields: dict[str, ValueShape] = {}
        if len(objects):
            colons, _ = self._structure.members(objects)
            names, meant, codes = self._keys(colons, ())
            strangers = self._strangers(names, meant, colons, codes)
            fields = {name: self._shape(mine, depth + 1) for name, mine in strangers}
        element = self._shape(self._structure.before_elements(arrays), depth + 1) if len(arrays) else None
        return ValueShape(frozenset(kinds), tuple(sorted(fields.items())), element)

    def _numbers(self, tokens: Ints) -> set[str]:
        if not len(tokens):
            return set()
        literals = self._structure.slices(self._structure.at[tokens] + 1, self._structure.at[tokens + 1])
        fractions = pc.match_substring_regex(literals, pattern="[.eE]")
        return ({DOUBLE} if pc.any(fractions).as_py() else set()) | (set() if pc.all(fractions).as_py() else {LONG})

    def _keys(self, colons: Ints, places: Sequence[Place]) -> tuple[list[str], Ints, Ints]:
        """The distinct names of these members, the place of each name, and for each member the number of its name."""
        encoded = self._structure.slices(*self._structure.key_spans(colons)).dictionary_encode()
        names, meant = resolved(encoded.dictionary.to_pylist(), places, self._fold)
        return names, meant, encoded.indices.to_numpy()

    def _strangers(self, names: list[str], meant: Ints, colons: Ints, codes: Ints) -> Iterator[tuple[str, Ints]]:
        """Names without a place, and the members that have them. White space is not a column name."""
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(names) + 1))
        groups: dict[str, list[Ints]] = {}
        for code, name in enumerate(names):
            if meant[code] < 0 and name.strip():
                mine = colons[order[starts[code] : starts[code + 1]]]
                groups.setdefault(folded(name, self._fold), []).append(mine)
        for name, parts in groups.items():
            yield name, np.sort(np.concatenate(parts))

    def _first(self, tokens: Ints) -> Bytes:
        """The first byte after each token."""
        return self._structure.text[self._structure.value_starts(tokens)]
