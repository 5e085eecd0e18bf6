"""The id of an event: 128 bits that are equal for events with equal keys, and only for them.

The id is `blake2b(canonical bytes, digest_size=16, person=b"landonce-id-v1")`. The canonical bytes are the name of the
rule (four bytes for its length, then UTF-8; of the rule `*`, the value that chose it; if that is null, and `on_null` is `value`, the length
2**32 - 1 and no bytes), followed by each part of the key: a tag, four bytes for the length of the
value, the value. All numbers are big-endian.

    tag    value
    b      boolean: 1 byte, 0 or 1
    i      integer in the range of int64: 8 bytes, signed
    u      integer above that range: 8 bytes, unsigned
    f      float: a double; -0 becomes 0, and every NaN the same NaN (7ff8000000000000)
    n      decimal: as text, digits without trailing zeros, `e`, exponent: 12.50 is `125e-1`, 100 is `1e2`, 0 is `0e0`
    s      string: UTF-8
    x      binary: its bytes
    g      UUID: its 16 bytes
    t      timestamp: 8 bytes of seconds since the epoch in UTC (rounded down), 4 bytes of nanoseconds
    d      date: 8 bytes, days since the epoch
    c      time of day: 8 bytes, nanoseconds since midnight
    k      Kafka key: its bytes
    h      header: its bytes
    z      null, if `on_null` is `value`: no bytes

Neither a width, a unit nor a version of the schema is in it, so an id survives when a field is widened. Floats of records are read as doubles
(`rule.with_doubles`), because 0.1 in 4 bytes is another number. A timestamp
without a zone counts as UTC. If `on_null` is `unique`, an event with a null in its key has the empty name and one part:

    o      coordinates: 4 bytes of partition, 8 bytes of offset, the topic's label in UTF-8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from landonce.config.dedup import OTHERS
from landonce.dedup.blake2b import Words, digests
from landonce.dedup.rule import HEADER, KAFKA_KEY, KeyColumn, KeyRule, type_class
from landonce.protocol.reasons import UNREADABLE, Code, Reason
from landonce.read.formats import Indexes

_BYTES = pa.large_binary()
_PIECE = 65_536
"""Rows whose canonical bytes are in memory at a time."""
_HEAD = np.dtype([("tag", "u1"), ("length", ">u4")])
_MOMENT = np.dtype([("seconds", ">i8"), ("nanoseconds", ">u4")])
_PLACE = np.dtype([("tag", "u1"), ("length", ">u4"), ("partition", ">i4"), ("offset", ">i8")])
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_MS = 86_400_000
_DECIMALS = {4: pa.decimal32, 8: pa.decimal64, 16: pa.decimal128, 32: pa.decimal256}

Values = dict[KeyColumn, pa.Array]
Tags = int | npt.NDArray[np.uint8]
"""The same for all rows, or one for each."""


class Coordinates(NamedTuple):
    """Where the rows come from: a topic's label, a partition, and an offset for each row."""

    label: str
    partition: int
    offsets: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ids:
    """The halves of each row's id. A rejected row has none: its halves are 0."""

    hi: Words
    lo: Words
    rejects: dict[int, Reason] = field(default_factory=dict)
    """The reason by the row's index. It holds no content of the record."""

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Which rows have an id."""
        found = np.ones(len(self.hi), np.bool_)
        found[list(self.rejects)] = False
        return found


def compute(
    rule: KeyRule,
    rows: pa.Table,
    keys: pa.BinaryArray | None,
    headers: Mapping[str, pa.BinaryArray],
    coordinates: Coordinates | None,
) -> Ids:
    """The id of each row. `keys`, `headers` and `coordinates` have a value for each row; only those that the rule needs are read."""
    count = rows.num_rows
    values = {column: _values(column, rows, keys, headers) for column in rule.columns}
    offsets = (coordinates.offsets,) if coordinates is not None else ()
    if any(len(each) != count for each in (*values.values(), *offsets)):
        raise ValueError(f"keys, headers and offsets must have {count} values, one for each row")
    ids = Ids(np.zeros(count, np.uint64), np.zeros(count, np.uint64))
    for start in range(0, count, _PIECE):
        messages, places = [pa.array([], _BYTES)], [np.empty(0, np.int64)]
        piece = {column: each.slice(start, _PIECE) for column, each in values.items()}
        for rule_names, columns, members in _by_rule(rule, piece, min(_PIECE, count - start), start, ids.rejects):
            members, rule_names = _with_headers(piece, columns, rule_names, members, start, ids.rejects)
            here = {column: _only(piece[column], members) for column in columns}
            message = _canonical(rule_names, here, len(members), null_is_value=rule.on_null == "value")
            if message.null_count and rule.on_null == "unique":
                message = pc.coalesce(message, _of_coordinates(coordinates, start + members))
            elif message.null_count:
                chosen = {rule.by: rule_names} if rule.by is not None else {}
                for column, each in {**chosen, **here}.items():
                    why = Reason(f"{column} is null, and is part of the key", Code.BAD_KEY, str(column))
                    for row in (start + members)[each.is_null().to_numpy(zero_copy_only=False)].tolist():
                        ids.rejects.setdefault(row, why)
                members = members[message.is_valid().to_numpy(zero_copy_only=False)]
                message = message.drop_null()
            messages.append(message)
            places.append(start + members)
        at = np.concatenate(places)
        ids.hi[at], ids.lo[at] = digests(pa.concat_arrays(messages))
    return ids


def _values(
    column: KeyColumn, rows: pa.Table, keys: pa.BinaryArray | None, headers: Mapping[str, pa.BinaryArray]
) -> pa.Array:
    """The values of a part of the key: plain, in one piece, text and bytes as large binary."""
    if column.kind in (KAFKA_KEY, HEADER):
        found = keys if column.kind == KAFKA_KEY else headers.get(column.path[0])
        if found is None:
            raise ValueError(f"{column} is in the key, and is not given")
        return found.cast(_BYTES)
    top, *inner = column.path
    found = rows.column(top)
    if inner:
        found = pc.struct_field(found, inner)
    if type_class(found.type) != column.kind:
        raise ValueError(f"{column} is {found.type}; the rule was made for a field of the class {column.kind}")
    if pt.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    if column.kind == "uuid":
        found = pa.chunked_array([chunk.storage for chunk in found.chunks], pa.binary(16))
    return (found.cast(_BYTES) if column.kind in ("string", "binary", "uuid") else found).combine_chunks()


def _only(values: pa.Array, members: Indexes) -> pa.Array:
    return values if len(members) == len(values) else values.take(pa.array(members))


def _by_rule(
    rule: KeyRule, piece: Values, count: int, start: int, rejects: dict[int, Reason]
) -> Iterator[tuple[pa.LargeBinaryArray, tuple[KeyColumn, ...], Indexes]]:
    """Each rule with its rows, and the name that each row has it under: its value in `by`, so that events with different values are never
    copies. Rows without a rule are rejected; the piece begins at `start`."""
    if rule.by is None:
        name, columns = rule.keys[0]
        yield pa.repeat(pa.scalar(name.encode(), _BYTES), count), columns, np.arange(count)
        return
    names = [name for name, _ in rule.keys]
    chosen = piece[rule.by]
    text = chosen if pt.is_large_binary(chosen.type) else chosen.cast(pa.string()).cast(_BYTES)
    others = names.index(OTHERS) if OTHERS in names else -1
    found = pc.index_in(text, pa.array([name.encode() for name in names], _BYTES)).fill_null(others).to_numpy()
    for number, (_, columns) in enumerate(rule.keys):
        members = np.flatnonzero(found == number)
        if len(members):
            yield _only(text, members), columns, members
    ruleless = Reason(f"{rule.by}: no key rule for its value", Code.BAD_KEY, str(rule.by))
    rejects.update(dict.fromkeys((start + np.flatnonzero(found < 0)).tolist(), ruleless))


def _with_headers(
    piece: Values,
    columns: tuple[KeyColumn, ...],
    names: pa.LargeBinaryArray,
    members: Indexes,
    start: int,
    rejects: dict[int, Reason],
) -> tuple[Indexes, pa.LargeBinaryArray]:
    """The rows whose headers could be read, if the key holds one, and their names. An unread header is not a null: it may be any value."""
    for column in columns:
        if column.kind == HEADER:
            unread = pc.equal(_only(piece[column], members), pa.scalar(UNREADABLE[1], _BYTES)).fill_null(False)
            if unread.true_count:
                bad = unread.to_numpy(zero_copy_only=False)
                why = Reason(f"{column} cannot be read: the name of a header is not UTF-8", Code.BAD_KEY, str(column))
                rejects.update(dict.fromkeys((start + members[bad]).tolist(), why))
                names, members = names.filter(pa.array(~bad)), members[~bad]
    return members, names


# Canonical bytes


def _canonical(names: pa.LargeBinaryArray, values: Values, count: int, *, null_is_value: bool) -> pa.LargeBinaryArray:
    """The canonical bytes of each row; null if a part is null and null is no value."""
    lengths = pc.binary_length(names).fill_null(-1).to_numpy().astype(">u4")
    parts: list[Any] = [_items(lengths), names.fill_null(b"") if null_is_value else names]
    for column, each in values.items():
        tags, encoded = _ENCODERS[column.kind](each)
        if null_is_value and encoded.null_count:
            tags = np.where(encoded.is_valid().to_numpy(zero_copy_only=False), tags, ord("z"))
            encoded = encoded.fill_null(b"")
        heads = np.empty(count, _HEAD)
        heads["tag"] = tags
        heads["length"] = pc.binary_length(encoded).fill_null(0).to_numpy()
        parts += [_items(heads), encoded]
    return pc.binary_join_element_wise(*parts, _empty())


def _of_coordinates(coordinates: Coordinates | None, rows: Indexes) -> pa.LargeBinaryArray:
    if coordinates is None:
        raise ValueError("events with a null in their key are unique by their coordinates, and these are not given")
    label = coordinates.label.encode()
    heads = np.empty(len(rows), _PLACE)
    heads["tag"] = ord("o")
    heads["length"] = len(label) + 12
    heads["partition"] = coordinates.partition
    heads["offset"] = coordinates.offsets[rows]
    return pc.binary_join_element_wise(pa.scalar(bytes(4), _BYTES), _items(heads), pa.scalar(label, _BYTES), _empty())


@cache
def _empty() -> pa.Scalar:
    """Made when it is needed: making a scalar loads pandas, if it is installed."""
    return pa.scalar(b"", _BYTES)


def _items(values: npt.NDArray[Any], like: pa.Array | None = None) -> pa.LargeBinaryArray:
    """The bytes of each item of a numpy array; null where `like` is null."""
    ends = np.arange(len(values) + 1, dtype=np.int64) * values.dtype.itemsize
    data = pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))
    made = pa.Array.from_buffers(_BYTES, len(values), [None, pa.py_buffer(ends), data])
    return made if like is None or not like.null_count else pc.if_else(like.is_valid(), made, pa.scalar(None, _BYTES))


def _numbers(array: pa.Array, type_: pa.DataType) -> npt.NDArray[Any]:
    """The values as this type; 0 for null."""
    found: npt.NDArray[Any] = array.cast(type_).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _integer(array: pa.Array) -> tuple[Tags, pa.Array]:
    if not pt.is_uint64(array.type):
        return ord("i"), _items(_numbers(array, pa.int64()).astype(">i8"), array)
    numbers = _numbers(array, pa.uint64())
    return np.where(numbers < 2**63, ord("i"), ord("u")).astype(np.uint8), _items(numbers.astype(">u8"), array)


def _float(array: pa.Array) -> tuple[Tags, pa.Array]:
    numbers = _numbers(array, pa.float64())
    one_nan = np.where(np.isnan(numbers), np.nan, numbers)
    return ord("f"), _items((one_nan + 0.0).astype(">f8"), array)  # -0 + 0 is 0


def _decimal(array: pa.Array) -> tuple[Tags, pa.Array]:
    whole = _DECIMALS[array.type.byte_width](array.type.precision, 0)
    text = pa.Array.from_buffers(whole, len(array), array.buffers(), offset=array.offset).cast(pa.string())
    digits = pc.ascii_rtrim(text, "0")
    zero = pc.equal(text, "0")
    cut = pc.subtract(pc.subtract(pc.binary_length(text), pc.binary_length(digits)), array.type.scale)
    exponent = pc.if_else(zero, 0, cut).cast(pa.string())
    return ord("n"), pc.binary_join_element_wise(pc.if_else(zero, "0", digits), exponent, "e").cast(_BYTES)


def _timestamp(array: pa.Array) -> tuple[Tags, pa.Array]:
    ticks = _TICKS[array.type.unit]
    seconds, rest = np.divmod(_numbers(array, pa.int64()), ticks)
    moments = np.empty(len(array), _MOMENT)
    moments["seconds"], moments["nanoseconds"] = seconds, rest * (10**9 // ticks)
    return ord("t"), _items(moments, array)


def _date(array: pa.Array) -> tuple[Tags, pa.Array]:
    days = _numbers(array, pa.int32()) if pt.is_date32(array.type) else _numbers(array, pa.int64()) // _DAY_MS
    return ord("d"), _items(days.astype(">i8"), array)


def _time(array: pa.Array) -> tuple[Tags, pa.Array]:
    ticks = _numbers(array, pa.int32() if pt.is_time32(array.type) else pa.int64()).astype(np.int64)
    return ord("c"), _items((ticks * (10**9 // _TICKS[array.type.unit])).astype(">i8"), array)


_ENCODERS: dict[str, Callable[[pa.Array], tuple[Tags, pa.Array]]] = {
    "boolean": lambda array: (ord("b"), _items(_numbers(array, pa.uint8()), array)),
    "integer": _integer,
    "float": _float,
    "decimal": _decimal,
    "string": lambda array: (ord("s"), array),
    "binary": lambda array: (ord("x"), array),
    "uuid": lambda array: (ord("g"), array),
    "timestamp": _timestamp,
    "date": _date,
    "time": _time,
    KAFKA_KEY: lambda array: (ord("k"), array),
    HEADER: lambda array: (ord("h"), array),
}
"""The tags and bytes of a column's values, by the kind of the column. Null stays null."""
