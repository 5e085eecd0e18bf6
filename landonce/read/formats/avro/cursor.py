"""Reads many Avro bodies at once: one position per value, moved forward by one field of all values at a time.

Avro has no separators, so nothing but reading says where a value ends. Here no value is read beyond the end of its own
record, and a record counts only if its last field ends where the record does: a truncated record next to one that is too
long cannot pass for two good ones.

A fault ends its record only. The position then stays at the record's end, where everything reads as zero: no length, no
items, no further fault; the columns keep one row per value, and the caller leaves out the rows of `Faults`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.protocol.reasons import Code, Reason, of_field
from landonce.read.formats.avro.schema import Array, Enum, Fixed, Map, Member, Node, Primitive, Record, Union

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

CUT = Reason("is cut off: the record ends inside it", Code.MALFORMED)
NO_NUMBER = Reason("holds a number that is too large for its Avro type", Code.MALFORMED)
NO_LENGTH = Reason("holds a length that is not valid", Code.MALFORMED)
NO_BRANCH = Reason("names a branch that its union does not have", Code.MALFORMED)
NO_SYMBOL = Reason("names a symbol that its enum does not have", Code.INVALID_VALUE)
NO_ROOM = Reason("holds more items than its record has room for", Code.MALFORMED)
_PAD = 16
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_FEW, _MANY = 16, 256
"""Arrays of this many records, with at least this many items, are walked item by item."""
_ITEMS_WITHOUT_BYTES = 2**16
_U = np.uint64


@dataclass
class Faults:
    """Why records cannot land: the first reason of each."""

    reasons: dict[int, Reason] = field(default_factory=dict)

    def add(self, records: Longs, where: str, problem: Reason) -> None:
        reason = of_field(where, problem) if where else problem.reworded(f"the record {problem}")
        for record in records.tolist():
            self.reasons.setdefault(record, reason)


@dataclass
class Body:
    """The bytes of all records, with zeros after them."""

    data: Bytes
    windows: npt.NDArray[np.uint64]
    """The eight bytes from each position on, as one number."""
    size: int
    buffer: pa.Buffer

    @staticmethod
    def of(values: pa.BinaryArray) -> tuple[Body, Longs, Longs]:
        """Also returns where each value starts and ends."""
        _, offsets, buffer = values.buffers()
        edges = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        first, last = int(edges[0]), int(edges[-1])
        data = np.zeros(last - first + _PAD, np.uint8)
        if last > first:
            data[: last - first] = np.frombuffer(buffer, np.uint8, last - first, first)
        starts = edges - first
        count = len(data) - 7
        windows = np.ndarray((count,), "<u8", data, strides=(1,))
        return Body(data, windows, last - first, pa.py_buffer(data)), starts[:-1].copy(), starts[1:].copy()


@dataclass
class Cursor:
    """Where the next field of each value is. `record`: which record a value is of; an array has many values of one."""

    body: Body
    at: Longs
    end: Longs
    record: Longs
    faults: Faults

    def __len__(self) -> int:
        return len(self.at)

    def part(self, rows: Longs) -> Cursor:
        return Cursor(self.body, self.at[rows], self.end[rows], self.record[rows], self.faults)

    def put(self, rows: Longs, part: Cursor) -> None:
        """Continues behind what a part has read."""
        self.at[rows] = part.at

    def fail(self, rows: npt.NDArray[np.bool_], where: str, problem: Reason) -> None:
        """Ends the records of these rows (a mask)."""
        if rows.any():
            self.faults.add(self.record[rows], where, problem)
            self.at[rows] = self.end[rows]

    def advance(self, by: Longs | int, where: str) -> npt.NDArray[np.bool_] | None:
        """Moves every position; returns those that would have left their records, if any."""
        self.at = self.at + by
        beyond = self.at > self.end
        if not beyond.any():
            return None
        self.fail(beyond, where, CUT)
        return beyond

    def longs(self, where: str) -> Longs:
        """The next varint of each value."""
        ended = self.at >= self.end
        here = np.where(ended, self.body.size, self.at)
        first = self.body.data[here]
        if (first & 0x80).any():
            value, length, valid = _varints(self.body, here)
        else:
            raw = first.astype(np.int64)
            value, length, valid = (raw >> 1) ^ -(raw & 1), np.ones(len(raw), np.int64), None
        if ended.any():
            self.fail(ended, where, CUT)
            length[ended] = 0
        beyond = self.advance(length, where)
        if beyond is not None:
            value[beyond] = 0
        if valid is not None and not valid.all():
            self.fail(~valid, where, NO_NUMBER)
            value[~valid] = 0
        return value

    def ints(self, where: str) -> Longs:
        found = self.longs(where)
        wide = (found < -(2**31)) | (found >= 2**31)
        if wide.any():
            self.fail(wide, where, NO_NUMBER)
            found[wide] = 0
        return found

    def lengths(self, where: str) -> Longs:
        """The next length of each value, which its record has room for."""
        found = self.longs(where)
        wrong = (found < 0) | (found > self.end - self.at)
        if wrong.any():
            negative = wrong & (found < 0)
            self.fail(negative, where, NO_LENGTH)
            self.fail(wrong & ~negative, where, CUT)
            found[wrong] = 0
        return found

    def spans(self, where: str) -> tuple[Longs, Longs]:
        """The start and end of the next bytes or string of each value."""
        length = self.lengths(where)
        start = self.at
        self.at = start + length
        return start, self.at

    def binaries(self, where: str) -> pa.BinaryArray:
        """The next bytes or string of each value. Between two of them is a gap, which is a value of its own until `take`."""
        start, end = self.spans(where)
        return self.cut(start, end)

    def cut(self, start: Longs, end: Longs) -> pa.BinaryArray:
        count = len(start)
        if not count:
            return pa.array([], pa.binary())
        edges = np.empty(2 * count, np.int32)
        edges[0::2], edges[1::2] = start, end
        if (np.diff(edges) < 0).any():  # values of damaged records may overlap; these records are rejected
            pieces = zip(start.tolist(), end.tolist(), strict=True)
            return pa.array([self.body.data[first:last].tobytes() for first, last in pieces], pa.binary())
        array = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), self.body.buffer])
        return array.take(pa.array(np.arange(0, 2 * count, 2)))

    def fixed(self, size: int, where: str) -> Bytes:
        """The next `size` bytes of each value, one row for each."""
        self.advance(size, where)
        if not len(self) or not 0 < size <= len(self.body.data):
            return np.zeros((len(self), size), np.uint8)
        rows = np.lib.stride_tricks.sliding_window_view(self.body.data, size)
        return rows[np.maximum(self.at - size, 0)]


def _varints(body: Body, here: Longs) -> tuple[Longs, Longs, npt.NDArray[np.bool_]]:
    """The zigzag varints at these places, their lengths, and whether they fit 64 bits."""
    window = body.windows[here]
    stops = ~window & _U(0x8080808080808080)
    lowest = stops & (~stops + _U(1))
    below = (lowest << _U(1)) - _U(1)  # all bits if there is no stop: the varint is longer than eight bytes
    bits = window & below & _U(0x7F7F7F7F7F7F7F7F)
    bits = (bits & _U(0x007F007F007F007F)) | ((bits & _U(0x7F007F007F007F00)) >> _U(1))
    bits = (bits & _U(0x00003FFF00003FFF)) | ((bits & _U(0x3FFF00003FFF0000)) >> _U(2))
    bits = (bits & _U(0x000000000FFFFFFF)) | ((bits & _U(0x0FFFFFFF00000000)) >> _U(4))
    length = np.bitwise_count(below).astype(np.int64) >> 3 if hasattr(np, "bitwise_count") else _lengths(below)
    valid = np.ones(len(here), np.bool_)
    long = np.flatnonzero(stops == 0)
    if len(long):
        last = len(body.data) - 1
        ninth = body.data[np.minimum(here[long] + 8, last)].astype(np.uint64)
        tenth = body.data[np.minimum(here[long] + 9, last)].astype(np.uint64)
        ends_at_nine = ninth < 0x80
        tenth = np.where(ends_at_nine, _U(0), tenth)
        bits[long] |= ((ninth & _U(0x7F)) << _U(56)) | (tenth << _U(63))
        length[long] = np.where(ends_at_nine, 9, 10)
        valid[long] = tenth <= 1
    value = (bits >> _U(1)).view(np.int64) ^ -(bits & _U(1)).view(np.int64)
    return value, length, valid


def _lengths(below: npt.NDArray[np.uint64]) -> Longs:
    """How many whole bytes of ones each number has: `numpy.bitwise_count` came with numpy 2."""
    ones = (below & _U(0x0101010101010101)) * _U(0x0101010101010101)
    counted: Longs = (ones >> _U(56)).view(np.int64)
    return counted


def fewest_bytes(node: Node) -> int:
    """The shortest encoding of a type."""
    if isinstance(node, Primitive):
        return _WIDTHS.get(node.kind, 1)
    if isinstance(node, Fixed):
        return node.size
    if isinstance(node, Record):
        return sum(fewest_bytes(each.type) for each in node.fields)
    return 1


def width_of(node: Node) -> int | None:
    """The bytes of a type whose values all have the same size."""
    if isinstance(node, Primitive):
        return _WIDTHS.get(node.kind)
    return node.size if isinstance(node, Fixed) else None


def skip(node: Node, cursor: Cursor, where: str) -> None:
    """Moves behind the next value, whatever it is."""
    width = width_of(node)
    if width is not None:
        cursor.advance(width, where)
    elif isinstance(node, Primitive):
        if node.kind in ("bytes", "string"):
            cursor.spans(where)
        else:
            cursor.longs(where)
    elif isinstance(node, Enum):
        cursor.longs(where)
    elif isinstance(node, Record):
        for each in node.fields:
            skip(each.type, cursor, inside(where, each.name))
    elif isinstance(node, Array | Map):
        items(entry_of(node), cursor, where)
    elif isinstance(node, Union):
        for branch, rows in branches(len(node.branches), cursor, where):
            part = cursor.part(rows)
            skip(node.branches[branch], part, where)
            cursor.put(rows, part)


def inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def entry_of(node: Array | Map) -> Node:
    """What is repeated: an item, or a key and its value."""
    if isinstance(node, Array):
        return node.items
    return Record("entry", (Member("key", Primitive("string")), Member("value", node.values)))


def branches(count: int, cursor: Cursor, where: str) -> list[tuple[int, Longs]]:
    """The rows of each branch of a union that occurs."""
    found = cursor.longs(where)
    wrong = (found < 0) | (found >= count)
    if wrong.any():
        cursor.fail(wrong, where, NO_BRANCH)
        found[wrong] = 0
    used = np.flatnonzero(np.bincount(found, minlength=count))
    return [(int(each), np.flatnonzero(found == each)) for each in used]


def items(item: Node, cursor: Cursor, where: str) -> tuple[Longs, Cursor]:
    """Moves behind arrays: how many items each has, and a cursor at the start of every item, in order."""
    finder = _Items(item, cursor, f"{where}[]")
    finder.run()
    return finder.result()


class _Items:
    """Finds items. All arrays take one item, or one block, in each step; few long arrays are walked item by item."""

    def __init__(self, item: Node, cursor: Cursor, where: str) -> None:
        self.item, self.cursor, self.where = item, cursor, where
        self.width, self.fewest = width_of(item), fewest_bytes(item)
        self.left: Longs = np.zeros(len(cursor), np.int64)
        self.seen: Longs = np.zeros(len(cursor), np.int64)
        self.found: list[tuple[Longs, Longs, Longs]] = []
        """Rows, the number of each item in its row, and where it starts."""

    def run(self) -> None:
        active: Longs = np.arange(len(self.cursor))
        while len(active):
            self._open_blocks(active[self.left[active] == 0])
            active = active[self.left[active] > 0]
            if not len(active):
                return
            if self.width is not None:
                self._take_blocks(active)
            elif len(active) <= _FEW and self.left[active].max() >= _MANY:
                for row in active.tolist():
                    self._walk(row)
            else:
                self._take_one(active)

    def _open_blocks(self, rows: Longs) -> None:
        """Reads how many items the next block has; a negative number is followed by its size in bytes."""
        if not len(rows):
            return
        part = self.cursor.part(rows)
        count = part.longs(self.where)
        sized = np.flatnonzero(count < 0)
        if len(sized):
            inner = part.part(sized)
            inner.longs(self.where)
            part.put(sized, inner)
            count[sized] = -count[sized]
        room = (part.end - part.at) // self.fewest if self.fewest else np.full(len(rows), _ITEMS_WITHOUT_BYTES)
        wrong = (count < 0) | (count > room)
        if self.fewest == 0:
            wrong |= self.seen[rows] + count > _ITEMS_WITHOUT_BYTES
        part.fail(wrong, self.where, NO_ROOM)
        count[wrong] = 0
        self.cursor.put(rows, part)
        self.left[rows] = count

    def _take_one(self, rows: Longs) -> None:
        part = self.cursor.part(rows)
        self.found.append((rows, self.seen[rows], part.at.copy()))
        skip(self.item, part, self.where)
        self.cursor.put(rows, part)
        self.seen[rows] += 1
        self.left[rows] -= 1
        failed = rows[part.at >= part.end]  # nothing follows the last item of a good array but its end, which is a byte
        self.left[failed] = 0

    def _take_blocks(self, rows: Longs) -> None:
        """Items of one size: those of a whole block at once."""
        assert self.width is not None
        count = self.left[rows]
        owner = np.repeat(rows, count)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        self.found.append((owner, self.seen[owner] + number, self.cursor.at[owner] + number * self.width))
        part = self.cursor.part(rows)
        part.advance(count * self.width, self.where)
        self.cursor.put(rows, part)
        self.seen[rows] += count
        self.left[rows] = 0

    def _walk(self, row: int) -> None:
        """One block of one array."""
        data, at, end = self.cursor.body.data, int(self.cursor.at[row]), int(self.cursor.end[row])
        memory = data.data
        starts = []
        try:
            for _ in range(int(self.left[row])):
                starts.append(at)
                at = walk(self.item, memory, at, end)
        except WalkFault as fault:
            self.cursor.faults.add(self.cursor.record[row : row + 1], self.where, fault.problem)
            at = end
        count = len(starts)
        self.found.append((np.full(count, row), self.seen[row] + np.arange(count), np.array(starts, np.int64)))
        self.cursor.at[row] = at
        self.seen[row] += count
        self.left[row] = 0

    def result(self) -> tuple[Longs, Cursor]:
        rows, numbers, starts = (
            np.concatenate([np.empty(0, np.int64), *each])
            for each in (zip(*self.found, strict=True) if self.found else ((), (), ()))
        )
        first = np.cumsum(self.seen) - self.seen
        place = first[rows] + numbers
        at: Longs = np.empty(len(rows), np.int64)
        owner: Longs = np.empty(len(rows), np.int64)
        at[place], owner[place] = starts, rows
        cursor = self.cursor
        return self.seen, Cursor(cursor.body, at, cursor.end[owner], cursor.record[owner], cursor.faults)


class WalkFault(Exception):
    """Raised by `walk`."""

    def __init__(self, problem: Reason) -> None:
        super().__init__(problem)
        self.problem = problem


def walk(node: Node, data: memoryview, at: int, end: int) -> int:
    """Like `skip`, for one value: where it ends."""
    width = width_of(node)
    if width is not None:
        at += width
    elif isinstance(node, Record):
        for each in node.fields:
            at = walk(each.type, data, at, end)
    elif isinstance(node, Union):
        branch, at = _varint(data, at, end)
        if not 0 <= branch < len(node.branches):
            raise WalkFault(NO_BRANCH)
        at = walk(node.branches[branch], data, at, end)
    elif isinstance(node, Array | Map):
        at = _walk_blocks(entry_of(node), data, at, end)
    else:
        number, at = _varint(data, at, end)
        if isinstance(node, Primitive) and node.kind in ("bytes", "string"):
            if number < 0:
                raise WalkFault(NO_LENGTH)
            at += number
    if at > end:
        raise WalkFault(CUT)
    return at


def _walk_blocks(item: Node, data: memoryview, at: int, end: int) -> int:
    fewest, seen = fewest_bytes(item), 0
    while True:
        count, at = _varint(data, at, end)
        if count == 0:
            return at
        if count < 0:
            count = -count
            _, at = _varint(data, at, end)
        seen += count
        if (count * fewest > end - at) if fewest else seen > _ITEMS_WITHOUT_BYTES:
            raise WalkFault(NO_ROOM)
        for _ in range(count):
            at = walk(item, data, at, end)


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    bits = shift = 0
    while True:
        if at >= end:
            raise WalkFault(CUT)
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise WalkFault(NO_NUMBER)
    if bits >= 2**64:
        raise WalkFault(NO_NUMBER)
    return (bits >> 1) ^ -(bits & 1), at
