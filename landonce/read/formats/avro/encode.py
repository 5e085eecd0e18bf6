"""Defaults of Avro schemas as bytes, so that they are decoded like any other value. Pure."""

from __future__ import annotations

import struct
from typing import Any

from landonce.read.formats.avro.schema import NO_DEFAULT, Array, Enum, Fixed, Map, Node, Record, Union

_UNFIT = (AttributeError, KeyError, OverflowError, TypeError, ValueError, struct.error)


def encode(node: Node, value: Any) -> bytes:
    """A default, as a schema's JSON writes it, in Avro's binary encoding. Raises `ValueError` if it does not fit its type."""
    try:
        return _encode(node, value)
    except _UNFIT:
        raise ValueError("the default does not fit its type") from None


def _encode(node: Node, value: Any) -> bytes:
    if isinstance(node, Union):
        return _of_union(node, value)
    if isinstance(node, Record):
        members = [value.get(each.name, each.default) for each in node.fields]
        return b"".join(_encode(each.type, member) for each, member in zip(node.fields, members, strict=True))
    if isinstance(node, Array):
        if not isinstance(value, list):
            raise TypeError
        return _block([_encode(node.items, each) for each in value])
    if isinstance(node, Map):
        return _block([_sized(key.encode()) + _encode(node.values, each) for key, each in value.items()])
    if isinstance(node, Enum):
        return _varint(node.symbols.index(value))
    if isinstance(node, Fixed):
        raw: bytes = value.encode("latin-1")
        if len(raw) != node.size:
            raise ValueError
        return raw
    return _of_primitive(node.kind, value)


def _of_union(node: Union, value: Any) -> bytes:
    """A default is of the first branch; since Avro 1.12 it may be of any."""
    for number, branch in enumerate(node.branches):
        try:
            return _varint(number) + _encode(branch, value)
        except _UNFIT:
            continue
    raise ValueError


def _of_primitive(kind: str, value: Any) -> bytes:
    number = isinstance(value, int) and not isinstance(value, bool)
    if kind == "null" and value is None:
        return b""
    if kind == "boolean" and isinstance(value, bool):
        return bytes([value])
    if kind in ("int", "long") and number and -(2 ** (bits := 31 if kind == "int" else 63)) <= value < 2**bits:
        return _varint(value)
    if kind in ("float", "double") and (number or isinstance(value, float)):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind in ("bytes", "string") and value is not NO_DEFAULT:
        return _sized(value.encode("latin-1" if kind == "bytes" else "utf-8"))
    raise TypeError


def _block(items: list[bytes]) -> bytes:
    return (_varint(len(items)) + b"".join(items) if items else b"") + b"\0"


def _sized(raw: bytes) -> bytes:
    return _varint(len(raw)) + raw


def _varint(value: int) -> bytes:
    left, made = (value << 1) ^ (value >> 63), bytearray()
    while left >= 0x80:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])
