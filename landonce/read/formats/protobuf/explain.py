"""Why bytes are not a message: the first field where they break, without their content.

Only for records that `google.protobuf` refuses: it says no more than that they cannot be parsed. Reasons have no positions
and no lengths, so that dead letters can be counted by reason.
"""

from __future__ import annotations

from landonce.read.formats.protobuf.wire import GROUP, MESSAGE, Wire

_VARINT, _EIGHT, _SIZED, _OPEN, _CLOSE, _FOUR = range(6)
_WIDTHS = {1: 8, 6: 8, 16: 8, 2: 4, 7: 4, 15: 4}
"""By type, the bytes of one value of fixed width."""
_DEEPEST = 100
_LARGEST_TAG, _LONGEST_TAG = 2**32 - 1, 5


class _Broken(Exception):
    pass


def explain(value: bytes, wire: Wire) -> str | None:
    """Where the bytes break; None if this finds nothing."""
    try:
        _message(value, 0, len(value), wire, 0, None)
    except _Broken as broken:
        return str(broken)
    return None


def _message(value: bytes, at: int, end: int, wire: Wire | None, depth: int, closing: int | None) -> int:
    """Walks over the fields from `at` to `end`, or to the end of the group `closing`. Returns where it stopped."""
    if depth > _DEEPEST:
        raise _Broken(f"messages are nested deeper than {_DEEPEST} levels")
    fields = {each.number: each for each in wire.inside} if wire is not None else {}
    while at < end:
        start = at
        tag, at = _varint(value, at, end, "the number of a field")
        number, kind = tag >> 3, tag & 7
        if number == 0 or tag > _LARGEST_TAG or kind > _FOUR or at - start > _LONGEST_TAG:
            raise _Broken("it holds a field without a valid number and type")
        if kind == _CLOSE:
            if closing != number:
                raise _Broken("a group ends that did not begin")
            return at
        field = fields.get(number)
        at = _value(value, at, end, kind, number, field, depth)
    if closing is not None:
        raise _Broken("it ends inside a group")
    return at


def _value(value: bytes, at: int, end: int, kind: int, number: int, field: Wire | None, depth: int) -> int:
    name = f"field {field.name!r}" if field is not None else "an unknown field"
    if kind == _VARINT:
        return _varint(value, at, end, name)[1]
    if kind == _OPEN:
        inner = field if field is not None and field.type == GROUP else None
        return _message(value, at, end, inner, depth + 1, number)
    size = {_EIGHT: 8, _FOUR: 4}.get(kind)
    if size is None:
        size, at = _varint(value, at, end, f"the length of {name}")
    if size > end - at:
        raise _Broken(f"it ends inside {name}")
    if kind == _SIZED and field is not None:
        if field.type == MESSAGE:
            _message(value, at, at + size, field, depth + 1, None)
        elif field.repeated and size % _WIDTHS.get(field.type, 1):
            raise _Broken(f"{name} does not hold whole numbers")
    return at + size


def _varint(value: bytes, at: int, end: int, what: str) -> tuple[int, int]:
    found = 0
    for step in range(10):
        if at >= end:
            raise _Broken(f"it ends inside {what}")
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return found, at
    raise _Broken(f"{what} has more than 10 bytes")
