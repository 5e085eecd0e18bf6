"""Values of the types JSON, Variant and Dynamic. They come as JSON texts; what the column would change is refused. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.schema.fields import Field, Judge, Path, Schema

_EXACT = 2**53
"""Up to here, a double holds every integer."""
_INTEGERS = (-(2**63), 2**64 - 1)
_DEEPEST = 64


@dataclass(frozen=True)
class KeptWhole(Judge):
    """Whether the type JSON keeps a document. A member that is null or an empty object is as good as absent there.

    It reads documents in Python, one by one: nothing else here finds a key that occurs twice. `typed`: paths with a type of their own,
    each with the field that says what it takes. `skipped`: paths that the column does not keep.
    """

    typed: tuple[tuple[Path, Field], ...] = ()
    skipped: tuple[Path, ...] = ()

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        documents = [None if each is None else _read(each) for each in texts.to_pylist()]
        problems = [each if isinstance(each, str) else None for each in documents]
        for path in self.skipped:
            for at, each in enumerate(documents):
                if isinstance(each, dict) and _at(each, path) not in (None, {}):
                    problems[at] = problems[at] or f"holds {'.'.join(path)!r}, which the column skips"
        for path, field in self.typed:
            for at, problem in self._unfit(path, field, documents).items():
                problems[at] = problems[at] or problem
        return pa.array(problems, pa.string())

    def decisive(self) -> object:
        if not self.typed and not self.skipped:
            return "a document"
        return ["a document", [[path, each.canonical()] for path, each in self.typed], self.skipped]

    def _unfit(self, path: Path, field: Field, documents: Sequence[dict[str, Any] | str | None]) -> dict[int, str]:
        """The documents whose value at a typed path the type does not hold exactly, or that lack one: it would get a default."""
        where = repr(".".join(path))
        held = {at: _at(each, path) for at, each in enumerate(documents) if isinstance(each, dict)}
        found = {at: f"holds a value on the way to {where}" for at, each in held.items() if each is _BLOCKED}
        lacking = [at for at, each in held.items() if each is None]
        if field.required:
            found |= dict.fromkeys(lacking, f"lacks {where}, which the column would set to a default")
        there = [at for at, each in held.items() if each is not None and each is not _BLOCKED]
        records = pa.array([json.dumps({field.name: held[at]}).encode() for at in there], pa.binary())
        kept = set(_decoder(field).decode(records).kept.tolist())
        return found | {at: f"holds no {field.called} at {where}" for i, at in enumerate(there) if i not in kept}


_BLOCKED = object()


def _at(document: dict[str, Any], path: Path) -> Any:
    """The value there. None: there is none. `_BLOCKED`: something that is no object is on the way."""
    found: Any = document
    for name in path:
        if found is None:
            return None
        if not isinstance(found, dict):
            return _BLOCKED
        found = found.get(name)
    return found


class _Twice(Exception):
    """A key occurs twice in one object."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _read(text: str) -> dict[str, Any] | str:
    """The document; or what ClickHouse would refuse or change in it."""
    try:
        document = json.loads(text, object_pairs_hook=_members)
        if not isinstance(document, dict):
            return "is not an object"
        return next(_inside(document, 0), document)
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

    any_type = True
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
