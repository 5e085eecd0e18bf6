"""Finds the objects, arrays, keys and values of many JSON records at once, and rewrites records for Arrow's JSON reader.

Quotes and the six structural characters are *tokens*; those within strings are left out, so that the two quotes of a
string are neighbours. Every token but a quote belongs to a *container*, an object or an array, and containers of equal
depth follow each other without overlap. So keys are the strings before colons, and the order of
tokens shows what contains what. Nothing here loops over records.

`scan` does not validate: for text that is not JSON the result is meaningless, but never includes another record.
`wider` finds numbers that are too large for the type of their column.

The reader knows one name per field, no maps, no arrays of different types, and no texts of values. So, if a schema
needs it, `Rewriter` makes four kinds of edits:

- a key that denotes a field is replaced by the field's own name, and a key that only looks like one by `_NOBODY`;
- an object that is a map becomes an object with a list of its entries:

    {"a":1,"b":2}    becomes    {"entries":[{"key":"a","value":1},{"key":"b","value":2}]}

- an array whose items have different types, for a struct with numbers as names, becomes an object:

    [1,"a"]    becomes    {"1":1,"2":"a"}

- a value that is kept as JSON text becomes an object with the number of its text, and the value in a field that Arrow
  skips after it has checked its syntax; `unwrapped` exchanges the numbers for the texts:

    {"b": [2]}    becomes    {"<random>":7,"\\u0000landonce":{"b": [2]}}

This must not turn invalid text into JSON. It replaces only strings and the tokens of map objects and such arrays, and
checks the order of these tokens; Arrow judges what is between them, and `is_whole` checks afterwards that every entry
has its key. What is put around a value is balanced, and so are the tokens of the value.
Python handles each distinct spelling of a key once, and no record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats import Indexes
from landonce.read.formats.json.columns import ENTRIES, NUMBER
from landonce.read.schema.fields import JSON, KEY, MOST_DIGITS, VALUE, Place, Schema, by_record_name, folded
from landonce.read.schema.texts import cast_or_null, mask_of

Bytes = npt.NDArray[np.uint8]
Ints = Indexes

MOST_LEVELS = 500
"""A value that is kept as JSON text may be nested this deeply: databases and libraries read no deeper JSON."""
QUOTE, COLON, COMMA, BRACE, CLOSING_BRACE, BRACKET, CLOSING_BRACKET = (ord(each) for each in '":,{}[]')
_NULL = ord("n")
_BACKSLASH = ord("\\")
_TELLING = np.zeros(256, dtype=np.bool_)
_TELLING[[ord(each) for each in '"{}[]:,']] = True
_STEP = np.zeros(256, dtype=np.int8)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1
_NO_JSON = np.zeros(256, dtype=np.bool_)
_NO_JSON[[ord(each) for each in "NI"]] = True
_SPACE = np.zeros(256, dtype=np.bool_)
_SPACE[[ord(each) for each in " \t\r\n"]] = True


class Malformed(Exception):
    """The text is not JSON."""


@dataclass(frozen=True)
class Containers:
    """Some of the containers of one depth, by their number among all of that depth."""

    depth: int
    numbers: Ints

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class _Level:
    """The tokens of all containers of one depth, and for each the number of its container."""

    tokens: Ints
    owner: Ints
    opens: Ints
    """The opening token of each container."""


class Structure:
    """The tokens of a text: position, kind and depth. Created by `scan`."""

    def __init__(self, text: Bytes, at: Ints, kind: Bytes, depth: npt.NDArray[np.int32]) -> None:
        self.text = text
        self.at = at
        self.kind = kind
        self._depth = depth
        self._levels: dict[int, _Level] = {}
        self._written: Ints | None = None
        self._odd: Ints | None = None

    def roots(self) -> Containers:
        return Containers(1, np.arange(len(self._level(1).opens)))

    def only(self, containers: Containers, opening: int) -> Containers:
        """Those that are objects, or those that are arrays."""
        kinds = self.kind[self._level(containers.depth).opens[containers.numbers]]
        return Containers(containers.depth, containers.numbers[kinds == opening])

    def tokens_of(self, containers: Containers) -> tuple[Ints, Ints]:
        """The tokens of these containers in order, and for each the number of its container."""
        level = self._level(containers.depth)
        chosen = np.zeros(len(level.opens), dtype=np.bool_)
        chosen[containers.numbers] = True
        mine = chosen[level.owner]
        return level.tokens[mine], level.owner[mine]

    def members(self, objects: Containers) -> tuple[Ints, Ints]:
        """The colon of each member of these objects, and the number of its object."""
        tokens, owner = self.tokens_of(objects)
        colons = self.kind[tokens] == COLON
        return tokens[colons], owner[colons]

    def key_spans(self, colons: Ints) -> tuple[Ints, Ints]:
        """The text between the quotes before each colon, as half-open ranges."""
        if (self.kind[colons - 1] != QUOTE).any() or (self.kind[colons - 2] != QUOTE).any():
            raise Malformed
        return self.at[colons - 2] + 1, self.at[colons - 1]

    def opened_by(self, tokens: Ints, opening: int, depth: int) -> Containers:
        """The objects or arrays of this depth that directly follow these tokens."""
        after = tokens + 1
        after = after[self.kind[after] == opening]
        return Containers(depth, np.searchsorted(self._level(depth).opens, after))

    def before_elements(self, arrays: Containers) -> Ints:
        """The tokens before the elements of these arrays."""
        tokens, _ = self.tokens_of(arrays)
        kinds = self.kind[tokens]
        before = tokens[(kinds == BRACKET) | (kinds == COMMA)]
        followed: Ints = before[self.text[self.value_starts(before)] != CLOSING_BRACKET]
        return followed

    def value_spans(self, tokens: Ints, depth: int) -> tuple[Ints, Ints]:
        """The text of the value after each of these tokens, which belong to containers of this depth, as half-open ranges
        without the white space around them."""
        level = self._level(depth).tokens
        starts = self.value_starts(tokens)
        ends = self.at[level[np.searchsorted(level, tokens) + 1]]
        if _SPACE[self.text[ends - 1]].any():
            written = self._not_space()
            ends = written[np.searchsorted(written, ends) - 1] + 1
        if (ends <= starts).any():
            raise Malformed
        return starts, ends

    def require_strict(self, starts: Ints, ends: Ints, depth: int) -> None:
        """Raises `Malformed` if these values hold what Arrow accepts in skipped fields and JSON does not have, such as NaN,
        or if they are nested too deeply. The ranges are in containers of this depth and must not overlap."""
        if not len(starts):
            return
        deep = self.at[self._depth > depth + MOST_LEVELS]
        for places in (self._no_json(), deep):
            before = np.searchsorted(starts, places, side="right") - 1
            if ((before >= 0) & (places < ends[before])).any():
                raise Malformed

    def _no_json(self) -> Ints:
        """Where `NaN` or `Infinity` may be: outside of strings, no JSON has these letters."""
        if self._odd is None:
            found = np.flatnonzero(_NO_JSON[self.text])
            after = np.searchsorted(self.at, found)
            in_string = (self.kind[after - 1] == QUOTE) & (self.kind[np.minimum(after, len(self.at) - 1)] == QUOTE)
            self._odd = found[~in_string]
        return self._odd

    def _not_space(self) -> Ints:
        if self._written is None:
            self._written = np.flatnonzero(~_SPACE[self.text])
        return self._written

    def value_starts(self, tokens: Ints) -> Ints:
        """The position of the first byte after each token that is not white space."""
        starts = self.at[tokens] + 1
        if not _SPACE[self.text[starts]].any():
            return starts
        written = self._not_space()
        return written[np.searchsorted(written, starts)]

    def slices(self, starts: Ints, ends: Ints) -> pa.BinaryArray:
        """These ranges of the text, which must be in order and must not overlap."""
        if not len(starts):
            return pa.array([], pa.binary())
        bounds = np.column_stack((starts, ends)).reshape(-1).astype(np.int32)
        every = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self.text)]
        )
        return every.take(pa.array(np.arange(0, len(bounds) - 1, 2)))

    def _level(self, depth: int) -> _Level:
        if depth not in self._levels:
            tokens = np.flatnonzero(self._depth == depth)
            opens = _STEP[self.kind[tokens]] > 0
            self._levels[depth] = _Level(tokens, np.cumsum(opens) - 1, tokens[opens])
        return self._levels[depth]


def scan(text: Bytes, ends: Ints) -> Structure | None:
    """The structure of records that end at ``ends``; None unless each of them closes what it opens."""
    at = np.flatnonzero(_TELLING[text])
    kind = text[at]
    if (text == _BACKSLASH).any():
        plain = ~_is_escaped(text, at, kind)
        at, kind = at[plain], kind[plain]
    quotes = kind == QUOTE
    outside = quotes | (np.cumsum(quotes) & 1 == 0)
    at, kind, quotes = at[outside], kind[outside], quotes[outside]
    step = _STEP[kind]
    depth = np.cumsum(step, dtype=np.int32)
    last = np.searchsorted(at, ends) - 1
    if (last < 0).any() or depth[last].any() or (np.cumsum(quotes)[last] & 1).any():
        return None
    depth[step < 0] += 1
    depth[quotes] = 0
    return Structure(text, at, kind, depth)


def _is_escaped(text: Bytes, at: Ints, kind: Bytes) -> npt.NDArray[np.bool_]:
    """Which quotes have an odd number of backslashes before them."""
    slashes = np.flatnonzero(text == _BACKSLASH)
    order = np.arange(len(slashes))
    begins = np.concatenate(([True], np.diff(slashes) != 1))
    length = order - np.maximum.accumulate(np.where(begins, order, 0)) + 1
    found = np.minimum(np.searchsorted(slashes, at - 1), len(slashes) - 1)
    follows = (slashes[found] == at - 1) & (kind == QUOTE)
    escaped: npt.NDArray[np.bool_] = follows & (length[found] & 1 == 1)
    return escaped


WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    narrow: tuple(wide for wide in types if wide.bit_width > narrow.bit_width)
    for types in ((pa.int8(), pa.int16(), pa.int32(), pa.int64()), (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()))
    for narrow in types[:-1]
}
"""The integer types that hold all numbers of another, narrowest first."""


def wider(structure: Structure, tokens: Ints, type_: pa.DataType, most_digits: int) -> pa.DataType | None:
    """The wider type that these values need, if any. Values that no wider type holds are ignored. `most_digits`: of a decimal."""
    if type_ in WIDER:
        return _wider_integer(_numbers(structure, tokens, len(str(_ends(type_)[1]))), type_)
    if type_ == pa.float32():
        return pa.float64() if _beyond_float(_numbers(structure, tokens, 4)) else None
    if pt.is_decimal(type_):
        quoted = tokens[structure.kind[tokens + 1] == QUOTE]
        strings = structure.slices(structure.at[quoted + 1] + 1, structure.at[quoted + 2]).cast(pa.string())
        digits = max(_digits(each, type_.scale) for each in (_numbers(structure, tokens, 1), strings))
        wide = pa.decimal128 if digits <= 38 else pa.decimal256
        return wide(digits, type_.scale) if type_.precision < digits <= most_digits else None
    return None


def _numbers(structure: Structure, tokens: Ints, least: int) -> pa.StringArray:
    """Literals of numbers that have at least so many characters."""
    starts, ends = structure.value_starts(tokens), structure.at[tokens + 1]
    first = structure.text[starts]
    digits = ((first >= ord("0")) & (first <= ord("9"))) | (first == ord("-"))
    mine = digits & (ends - starts >= least)
    return pc.utf8_trim_whitespace(structure.slices(starts[mine], ends[mine]).cast(pa.string()))


def _wider_integer(literals: pa.StringArray, type_: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the whole numbers, of those that the widest one holds."""
    written = literals.filter(pc.match_substring_regex(literals, pattern=r"\A-?[0-9]{1,20}\z"))
    ends = pc.min_max(cast_or_null(written, WIDER[type_][-1])).as_py()
    if ends["min"] is None:
        return None
    holds = (
        (low <= ends["min"] and ends["max"] <= high, each)
        for each in (type_, *WIDER[type_])
        for low, high in (_ends(each),)
    )
    found = next(each for fits, each in holds if fits)
    return found if found != type_ else None


def _ends(type_: pa.DataType) -> tuple[int, int]:
    """The least and the largest number that an integer type holds."""
    if pt.is_signed_integer(type_):
        return -(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1
    return 0, 2**type_.bit_width - 1


def _beyond_float(literals: pa.StringArray) -> bool:
    """Whether a number is finite as a double and not as a float, or is 0 only as a float, or is an integer that only a double holds exactly."""
    doubles = cast_or_null(literals, pa.float64()).drop_null().to_numpy()
    long = (
        literals.filter(pc.match_substring_regex(literals, pattern=r"\A-?[0-9]{8,16}\z")).cast(pa.float64()).to_numpy()
    )
    with np.errstate(over="ignore", under="ignore"):
        floats = doubles.astype(np.float32)
        beyond = (np.isfinite(doubles) & np.isinf(floats)) | ((doubles != 0) & (floats == 0))
        rounded = (np.abs(long) < 2**53) & (long.astype(np.float32) != long)
    return bool(beyond.any() or rounded.any())


def _digits(literals: pa.StringArray, scale: int) -> int:
    """How many digits the largest number has that needs no finer scale."""
    whole, small = max(1, MOST_DIGITS - scale), r"[0-9]{1,38}(?:\.[0-9]{0,38})?[eE][+-]?[0-9]{1,2}"
    pattern = rf"\A[+-]?(?:[0-9]{{1,{whole}}}(?:\.[0-9]{{0,{MOST_DIGITS}}})?|{small})\z"
    shaped = pc.match_substring_regex(literals, pattern=pattern)
    values = cast_or_null(literals.filter(shaped), pa.decimal256(MOST_DIGITS, scale)).drop_null()
    largest = pc.max(pc.abs(values)).as_py()
    return len(largest.as_tuple().digits) if largest else 0


_NOBODY = b"\\u0000landonce"
"""A JSON name that no column has."""


_NUMBER = r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z"
_LARGE, _LONG = r"[eE]\+?[0-9]{3,}\z", 300
"""The exponent, or the length, of a number that a double may not hold."""


class Rewritten(NamedTuple):
    """Records for Arrow, and the JSON texts whose numbers they hold."""

    text: pa.Buffer
    texts: pa.StringArray


class Rewriter:
    """Rewrites the records of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._places = schema.places()
        self._fold = schema.fold_case
        self._ruled = {each.name for each in schema.fields if each.rule is not None}

    @staticmethod
    def needed(schema: Schema) -> bool:
        return schema.fold_case or any(
            place.renamed or place.holds_map or place.holds_json or place.holds_positional for place in schema.places()
        )

    def rewrite(self, text: pa.Buffer, ends: Ints) -> Rewritten | None:
        """The records that end at ``ends``, rewritten for Arrow; None if one of them is not JSON."""
        structure = scan(np.frombuffer(text, np.uint8), ends)
        if structure is None:
            return None
        edits = _Edits()
        try:
            self._struct(structure, structure.roots(), self._places, edits)
        except Malformed:
            return None
        rewritten = edits.apply(text)
        return Rewritten(rewritten, edits.texts()) if rewritten is not None else None

    def _struct(self, structure: Structure, found: Containers, places: Sequence[Place], edits: _Edits) -> None:
        objects = structure.only(found, BRACE)
        colons, _ = structure.members(objects)
        if not len(colons):
            return
        starts, ends = structure.key_spans(colons)
        encoded = structure.slices(starts, ends).dictionary_encode()
        codes = encoded.indices.to_numpy()
        names, meant = resolved(encoded.dictionary.to_pylist(), places, self._fold)
        own = {place.name for place in places}
        for code, (name, number) in enumerate(zip(names, meant, strict=True)):
            if number >= 0 and name != places[number].name:
                text = json.dumps(places[number].name)[1:-1].encode()
            elif number < 0 and name in own:
                text = _NOBODY
            else:
                continue
            mine = codes == code
            edits.add(starts[mine], ends[mine], text)
        for number, place in enumerate(places):
            if places is self._places:
                edits.any_size = place.name in self._ruled
            if self._matters(place):
                self._value(structure, colons[meant[codes] == number], objects.depth, place, edits)

    def _matters(self, place: Place) -> bool:
        if place.holds_json or place.holds_positional:
            return True
        return bool(place.inside) and (self._fold or place.holds_map or any(each.renamed for each in place.inside))

    def _value(self, structure: Structure, tokens: Ints, depth: int, place: Place, edits: _Edits) -> None:
        """The values after these tokens, which belong to containers of this depth."""
        if place.type == JSON:
            starts, ends = structure.value_spans(tokens, depth)
            given = structure.text[starts] != _NULL
            structure.require_strict(starts[given], ends[given], depth)
            edits.number(structure, starts[given], ends[given])
            return
        if place.positional:
            self._tuple(structure, structure.opened_by(tokens, BRACKET, depth + 1), place.inside, edits)
        inside = structure.opened_by(tokens, BRACKET if pt.is_list(place.type) else BRACE, depth + 1)
        if pt.is_struct(place.type):
            self._struct(structure, inside, place.inside, edits)
        elif pt.is_map(place.type):
            self._map(structure, inside, place.inside[0], edits)
        elif self._matters(place.inside[0]):
            self._value(structure, structure.before_elements(inside), depth + 1, place.inside[0], edits)

    def _tuple(self, structure: Structure, found: Containers, places: Sequence[Place], edits: _Edits) -> None:
        """Arrays whose items are parts of a struct."""
        tokens, _ = structure.tokens_of(found)
        shape = np.array([BRACKET, *[COMMA] * (len(places) - 1), CLOSING_BRACKET])
        if len(tokens) != len(found) * len(shape) or (structure.kind[tokens].reshape(-1, len(shape)) != shape).any():
            raise Malformed
        columns = tokens.reshape(-1, len(shape))
        for number, place in enumerate(places):
            at = structure.at[columns[:, number]]
            edits.add(at, at + 1, b'%b"%d":' % (b"," if number else b"{", number + 1))
            if self._matters(place):
                self._value(structure, columns[:, number], found.depth, place, edits)
        at = structure.at[columns[:, -1]]
        edits.add(at, at + 1, b"}")

    def _map(self, structure: Structure, found: Containers, value: Place, edits: _Edits) -> None:
        tokens, _ = structure.tokens_of(found)
        if not len(tokens):
            return
        kinds = structure.kind[tokens]
        following = np.append(kinds[1:], BRACE)
        opened = (kinds == BRACE) & ((following == COLON) | (following == CLOSING_BRACE))
        keyed = (kinds == COLON) & ((following == COMMA) | (following == CLOSING_BRACE))
        parted = (kinds == COMMA) & (following == COLON)
        closed = (kinds == CLOSING_BRACE) & (following == BRACE)
        if not (opened | keyed | parted | closed).all():  # an object is `{}`, `{:}`, `{:,:}` and so on
            raise Malformed
        preceding = np.append(CLOSING_BRACE, kinds[:-1])
        at = structure.at[tokens]
        opens, closes = kinds == BRACE, kinds == CLOSING_BRACE
        for text, chosen in (
            (b'{"entries":[{"key":', opens & (following == COLON)),
            (b'{"entries":[', opens & (following == CLOSING_BRACE)),
            (b'},{"key":', kinds == COMMA),
            (b',"value":', kinds == COLON),
            (b"}]}", closes & (preceding == COLON)),
            (b"]}", closes & (preceding == BRACE)),
        ):
            edits.add(at[chosen], at[chosen] + 1, text)
        if self._matters(value):
            self._value(structure, tokens[kinds == COLON], found.depth, value, edits)


class _Edits:
    """Ranges of a text, and their replacements; and the JSON texts that were numbered."""

    def __init__(self) -> None:
        self._starts: list[Ints] = []
        self._ends: list[Ints] = []
        self._texts: list[pa.BinaryArray] = []
        """For each group of ranges: one text for all of them, or one for each."""
        self._numbered: list[pa.BinaryArray] = []
        self.any_size = False
        """Whether a numbered text may be a number that no double holds."""

    def add(self, starts: Ints, ends: Ints, text: bytes) -> None:
        """Replaces all of these ranges by one text."""
        self._add(starts, ends, pa.array([text], pa.binary()))

    def _add(self, starts: Ints, ends: Ints, texts: pa.BinaryArray) -> None:
        self._starts.append(starts)
        self._ends.append(ends)
        self._texts.append(texts)

    def number(self, structure: Structure, starts: Ints, ends: Ints) -> None:
        """Puts each of these values into an object with the number of its text."""
        first = sum(map(len, self._numbered))
        numbers = pa.array(np.arange(first, first + len(starts))).cast(pa.string()).cast(pa.binary())
        opening, nobody = b'{"%b":' % NUMBER.encode(), b',"%b":' % _NOBODY
        self._add(starts, starts, pc.binary_join_element_wise(opening, numbers, nobody, b""))
        self.add(ends, ends, b"}")
        texts = structure.slices(starts, ends)
        self._numbered.append(texts)
        if self.any_size:  # Arrow refuses a number that is too large, wherever it is
            large = pc.or_(pc.greater(pc.binary_length(texts), _LONG), pc.match_substring_regex(texts, pattern=_LARGE))
            at = np.flatnonzero(mask_of(large))
            at = at[mask_of(pc.match_substring_regex(texts.take(pa.array(at)), pattern=_NUMBER))]
            self.add(starts[at], ends[at], b"0")

    def texts(self) -> pa.StringArray:
        """Every numbered text, in the order of the numbers."""
        every = pa.concat_arrays([pa.array([], pa.binary()), *self._numbered])
        return every.cast(pa.string(), safe=False)  # records are valid UTF-8, and no text begins or ends in a character

    def apply(self, text: pa.Buffer) -> pa.Buffer | None:
        """The text with every range replaced; None if it is longer than an array can be."""
        counts = [len(each) for each in self._starts]
        if not sum(counts):
            return text
        starts, ends = np.concatenate(self._starts), np.concatenate(self._ends)
        own = [len(each) for each in self._texts]
        which = [
            sum(own[:at]) + (np.arange(count) if own[at] > 1 else np.zeros(count, np.int64))
            for at, count in enumerate(counts)
        ]
        texts = pa.concat_arrays(self._texts)
        chosen = np.concatenate(which)
        if text.size + int(pc.binary_length(texts).to_numpy()[chosen].sum()) > 2**31 - 1:
            return None
        order = np.argsort(starts * 2 + (ends > starts))  # what is put before a token comes before its replacement
        bounds = np.column_stack((starts[order], ends[order])).reshape(-1)
        bounds = np.concatenate(([0], bounds, [text.size])).astype(np.int32)
        pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), text])
        replaced = np.zeros(len(bounds) - 1, dtype=np.bool_)
        replaced[1::2] = True
        put = texts.take(pa.array(chosen[order]))
        _, offsets, data = pc.replace_with_mask(pieces, pa.array(replaced), put).buffers()
        return data.slice(0, int(np.frombuffer(offsets, np.int32, len(bounds))[-1]))


def resolved(spellings: list[bytes], places: Sequence[Place], fold_case: bool) -> tuple[list[str], Ints]:
    """The decoded keys, and for each the number of the place that it denotes, or -1."""
    known = by_record_name(places, fold_case)
    numbers = {place.name: number for number, place in enumerate(places)}
    try:
        names = [str(json.loads(b'"' + each + b'"')) for each in spellings]
    except ValueError:
        raise Malformed from None
    found = [known.get(folded(name, fold_case)) for name in names]
    meant = np.array([-1 if place is None else numbers[place.name] for place in found], dtype=np.int64)
    return names, meant


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


def unwrapped(array: pa.Array, type_: pa.DataType, texts: pa.StringArray) -> pa.Array:
    """A column as Arrow read it, with JSON texts where it holds their numbers."""
    if type_ == JSON:
        return texts.take(array.field(NUMBER))
    mask = array.is_null() if array.null_count else None
    if pt.is_map(type_):
        entries = array.field(ENTRIES)
        keys, values = entries.values.field(KEY), unwrapped(entries.values.field(VALUE), type_.item_type, texts)
        pairs = pa.StructArray.from_arrays([keys, values], [KEY, VALUE])
        empty = entries.is_null() if entries.null_count else None
        listed = pa.ListArray.from_arrays(entries.offsets, pairs, mask=empty)
        return pa.StructArray.from_arrays([listed], [ENTRIES], mask=mask)
    if pt.is_list(type_):
        return pa.ListArray.from_arrays(array.offsets, unwrapped(array.values, type_.value_type, texts), mask=mask)
    if pt.is_struct(type_):
        columns = [unwrapped(array.field(at), child.type, texts) for at, child in enumerate(type_)]
        return pa.StructArray.from_arrays(columns, [child.name for child in type_], mask=mask)
    return array
