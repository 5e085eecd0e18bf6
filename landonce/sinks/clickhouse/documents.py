"""Values of the types JSON, Variant and Dynamic. They come as JSON texts; what the column would change is refused. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.fields import Field, Judge, Schema

_EXACT = 2**53
"""Up to here, a double holds every integer."""
_INTEGERS = (-(2**63), 2**64 - 1)
_DEEPEST = 64


class KeptWhole(Judge):
    """Whether the type JSON keeps a document. A member that is null or an empty object is as good as absent there.

    It reads documents in Python, one by one: nothing else here finds a key that occurs twice.
    """

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        return pa.array([None if each is None else _problem(each) for each in texts.to_pylist()], pa.string())

    def decisive(self) -> object:
        return "a document"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptWhole)

    def __hash__(self) -> int:
        return hash(KeptWhole)


class _Twice(Exception):
    """A key occurs twice in one object."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _problem(text: str) -> str | None:
    """What ClickHouse would refuse or change in a document; None if nothing."""
    try:
        document = json.loads(text, object_pairs_hook=_members)
        if not isinstance(document, dict):
            return "is not an object"
        return next(_inside(document, 0), None)
    except _Twice:
        return "holds a key twice"
    except (RecursionError, ValueError):  # Python limits the digits of an integer, too
        return "is not a document that ClickHouse keeps exactly"


def _inside(value: Any, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        yield "is nested too deeply"
    elif isinstance(value, dict):
        if any("." in key for key in value):
            yield "holds a key with a dot, which ClickHouse would split"
        for each in value.values():
            yield from _inside(each, depth + 1)
    elif isinstance(value, list):
        numbers = list(_numbers(value))
        if any(isinstance(each, float) for each in numbers) and any(
            isinstance(each, int) and abs(each) > _EXACT for each in numbers
        ):
            yield "holds an array with fractions and with integers that a double cannot hold exactly"
        for each in value:
            yield from _inside(each, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield "holds a number beyond the range of a double"
    elif isinstance(value, int) and not _INTEGERS[0] <= value <= _INTEGERS[1]:
        yield "holds an integer of more than 64 bits"


def _numbers(array: list[Any]) -> Iterator[int | float]:
    """The numbers of an array and of arrays in it: ClickHouse gives them one type."""
    for each in array:
        if isinstance(each, list):
            yield from _numbers(each)
        elif isinstance(each, (int, float)) and not isinstance(each, bool):
            yield each


@dataclass(frozen=True)
class OneOf(Judge):
    """Which of several types holds a JSON value: the first one that holds it exactly."""

    members: tuple[Field, ...]
    called: str

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        held = reduce(pc.or_, (each.is_valid() for each in self.split(texts)), texts.is_null())
        return pc.if_else(held, pa.scalar(None, pa.string()), f"is no value of {self.called}")

    def decisive(self) -> object:
        return [each.canonical() for each in self.members]

    def split(self, texts: pa.StringArray) -> list[pa.Array]:
        """A column for each member, which is NULL where another one holds the value.

        A text may come from an expression, and be no JSON: inside of a record it must not become more than a value.
        """
        columns = []
        left = np.array([at for at, text in enumerate(texts.to_pylist()) if _is_one_value(text)], dtype=np.int64)
        for each in self.members:
            some = texts.take(pa.array(left)).cast(pa.binary())
            records = pc.binary_join_element_wise(b'{"%b":' % each.name.encode(), some, b"}", b"")
            decoded = _decoder(each).decode(records)
            rows = np.full(len(texts), -1)
            rows[left[decoded.kept]] = np.arange(len(decoded.kept))
            columns.append(decoded.table.column(0).combine_chunks().take(pa.array(rows, mask=rows < 0)))
            left = np.delete(left, decoded.kept)
        return columns

    def lists(self, texts: pa.StringArray) -> pa.StructArray:
        """The values as they are sent: for each member a list of one value or none."""
        lists = [list_of_one(each) for each in self.split(texts)]
        return pa.StructArray.from_arrays(lists, [str(at) for at in range(1, len(lists) + 1)])


def _is_one_value(text: str | None) -> bool:
    try:
        return text is not None and json.loads(text) is not None
    except (RecursionError, ValueError):
        return False


def list_of_one(values: pa.Array) -> pa.ListArray:
    """For each value a list of it, for each NULL an empty list."""
    offsets = np.concatenate(([0], np.cumsum(values.is_valid().to_numpy(zero_copy_only=False))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values.drop_null())


@lru_cache(maxsize=256)
def _decoder(field: Field) -> JsonDecoder:
    return JsonDecoder(Schema((field,)))
