"""Finds the objects, arrays, keys and values of many JSON records, for all of them at once.

Quotes and the six structural characters are *tokens*; those within strings are left out, so that the two quotes of a
string are neighbours. Every token but a quote belongs to a *container*, an object or an array, and containers of equal
depth follow each other without overlap. So keys are the strings before colons, and the order of
tokens shows what contains what. Nothing here loops over records.

This does not validate: for text that is not JSON the result is meaningless, but never includes another record.
`wider` finds numbers that are too large for the type of their column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.values import cast_or_null

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

QUOTE, COLON, COMMA, BRACE, CLOSING_BRACE, BRACKET = (ord(each) for each in '":,{}[')
_BACKSLASH = ord("\\")
_TELLING = np.zeros(256, dtype=np.bool_)
_TELLING[[ord(each) for each in '"{}[]:,']] = True
_STEP = np.zeros(256, dtype=np.int8)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1
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

    def elements(self, arrays: Containers, opening: int) -> Containers:
        """The objects or arrays that are elements of these arrays."""
        outer, inner = self._level(arrays.depth), self._level(arrays.depth + 1)
        chosen = np.zeros(len(outer.opens), dtype=np.bool_)
        chosen[arrays.numbers] = True
        parents = np.searchsorted(outer.opens, inner.opens) - 1
        mine = chosen[parents] & (self.kind[inner.opens] == opening)
        return Containers(arrays.depth + 1, np.flatnonzero(mine))

    def value_starts(self, tokens: Ints) -> Ints:
        """The position of the first byte after each token that is not white space."""
        starts = self.at[tokens] + 1
        if not _SPACE[self.text[starts]].any():
            return starts
        if self._written is None:
            self._written = np.flatnonzero(~_SPACE[self.text])
        return self._written[np.searchsorted(self._written, starts)]

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


_MOST_DIGITS = 38
_INT = pa.decimal128(38, 0)


def wider(structure: Structure, tokens: Ints, type_: pa.DataType) -> pa.DataType | None:
    """The wider type that these values need, if any. Values that no wider type holds are ignored."""
    if type_ == pa.int32():
        return pa.int64() if _beyond_int(_numbers(structure, tokens, 10)) else None
    if type_ == pa.float32():
        return pa.float64() if _beyond_float(_numbers(structure, tokens, 4)) else None
    if pt.is_decimal128(type_):
        digits = max(
            _digits(_numbers(structure, tokens, 1), type_.scale), _digits(_strings(structure, tokens), type_.scale)
        )
        return pa.decimal128(digits, type_.scale) if type_.precision < digits <= _MOST_DIGITS else None
    return None


def _numbers(structure: Structure, tokens: Ints, least: int) -> pa.StringArray:
    """Literals of numbers that have at least so many characters."""
    starts, ends = structure.value_starts(tokens), structure.at[tokens + 1]
    first = structure.text[starts]
    digits = ((first >= ord("0")) & (first <= ord("9"))) | (first == ord("-"))
    mine = digits & (ends - starts >= least)
    return pc.utf8_trim_whitespace(structure.slices(starts[mine], ends[mine]).cast(pa.string()))


def _strings(structure: Structure, tokens: Ints) -> pa.StringArray:
    mine = tokens[structure.kind[tokens + 1] == QUOTE]
    return structure.slices(structure.at[mine + 1] + 1, structure.at[mine + 2]).cast(pa.string())


def _beyond_int(literals: pa.StringArray) -> bool:
    """Whether a whole number needs 64 bits."""
    whole = literals.filter(pc.match_substring_regex(literals, pattern=r"\A-?[0-9]{1,19}\z")).cast(_INT)
    small = pc.and_(pc.greater_equal(whole, _whole(-(2**31))), pc.less_equal(whole, _whole(2**31 - 1)))
    large = pc.and_(pc.greater_equal(whole, _whole(-(2**63))), pc.less_equal(whole, _whole(2**63 - 1)))
    return bool(pc.any(pc.and_not(large, small)).as_py())


def _whole(number: int) -> pa.Scalar:
    return pa.scalar(number, _INT)


def _beyond_float(literals: pa.StringArray) -> bool:
    """Whether a number is finite as a double and not as a float, or is an integer that only a double holds exactly."""
    doubles = cast_or_null(literals, pa.float64()).drop_null().to_numpy()
    long = (
        literals.filter(pc.match_substring_regex(literals, pattern=r"\A-?[0-9]{8,16}\z")).cast(pa.float64()).to_numpy()
    )
    with np.errstate(over="ignore"):
        too_large = np.isfinite(doubles) & np.isinf(doubles.astype(np.float32))
        rounded = (np.abs(long) < 2**53) & (long.astype(np.float32) != long)
    return bool(too_large.any() or rounded.any())


def _digits(literals: pa.StringArray, scale: int) -> int:
    """How many digits the largest number has that needs no finer scale."""
    shaped = pc.match_substring_regex(
        literals, pattern=r"\A[+-]?[0-9]{1,38}(?:\.[0-9]{0,38})?(?:[eE][+-]?[0-9]{1,2})?\z"
    )
    values = cast_or_null(literals.filter(shaped), pa.decimal256(76, scale)).drop_null()
    largest = pc.max(pc.abs(values)).as_py()
    return len(str(int(largest.scaleb(scale)))) if largest else 0
