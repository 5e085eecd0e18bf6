"""Numbers that are too large for the type of their column, and the smallest type that holds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.read.formats.json.structure import QUOTE, Ints, Structure
from landonce.read.formats.json.texts import cast_or_null

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
