"""Avro schemas as plain values: parsed from their JSON, with every name resolved. Pure.

A schema that contains itself is refused: a table has no column of unlimited depth. Unknown logical types are ignored,
as Avro's specification demands, and so are those that do not fit their type. Defaults are encoded as bytes, so that they are decoded like
any other value.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from landonce.read.schema.fields import Path

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_LOGICAL = {
    "int": {"date", "time-millis"},
    "long": {
        "time-micros",
        *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
    },
    "string": {"uuid"},
}
_DEBEZIUM = {
    "io.debezium.time.Date": ("int", "date"),
    "io.debezium.time.Time": ("int", "time-millis"),
    "io.debezium.time.MicroTime": ("long", "time-micros"),
    "io.debezium.time.Timestamp": ("long", "local-timestamp-millis"),
    "io.debezium.time.MicroTimestamp": ("long", "local-timestamp-micros"),
    "io.debezium.time.NanoTimestamp": ("long", "local-timestamp-nanos"),
}
"""By the name that Connect writes beside a type."""
_WIDEST_DECIMAL = 76
NO_DEFAULT = object()
KEY_MARK = "landonce.dedup_key"
"""The property of a field that is part of the key of an event: `true`, or its position in the key."""
BAD_MARK = -1


class BadSchema(ValueError):
    """The text is not a schema that landonce can decode by. The message says why, without the schema's text."""


@dataclass(frozen=True)
class Logical:
    """The meaning of a primitive or fixed type."""

    name: str
    precision: int = 0
    scale: int = 0
    loose: bool = False
    """It is Debezium's, and not Avro's: a column of integers takes the number as it is."""


@dataclass(frozen=True)
class Primitive:
    kind: str
    logical: Logical | None = None


@dataclass(frozen=True)
class Fixed:
    name: str
    size: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Enum:
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Array:
    items: Node


@dataclass(frozen=True)
class Map:
    values: Node


@dataclass(frozen=True)
class Member:
    """A field of a record."""

    name: str
    type: Node
    aliases: tuple[str, ...] = ()
    default: Any = field(default=NO_DEFAULT, compare=False)
    key: int = field(default=0, compare=False)
    """Its position in the key of an event; 0 if it is not part of the key, `BAD_MARK` if the schema says something else."""


@dataclass(frozen=True)
class Record:
    name: str
    fields: tuple[Member, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Union:
    branches: tuple[Node, ...]


Node = Primitive | Fixed | Enum | Array | Map | Record | Union
Named = Fixed | Enum | Record


def kind_of(node: Node) -> str:
    """Avro's word for the type."""
    return node.kind if isinstance(node, Primitive) else type(node).__name__.lower()


def branch_names(branches: Sequence[Node]) -> tuple[str, ...]:
    """The names of a union's branches, as Avro's JSON writes them: without the namespace, unless two would be equal."""
    short = [each.name.rpartition(".")[2] if isinstance(each, Named) else kind_of(each) for each in branches]
    return tuple(
        each.name if isinstance(each, Named) and short.count(name) > 1 else name
        for each, name in zip(branches, short, strict=True)
    )


def parse(text: str, referenced: Iterable[str] = ()) -> Node:
    """The schema of this JSON text. `referenced`: texts of schemas whose names it uses, in the order of their dependencies."""
    parser = _Parser()
    try:
        for each in referenced:
            parser.node(json.loads(each), "")
        return parser.node(json.loads(text), "")
    except RecursionError:
        raise BadSchema("the Avro schema is nested too deeply") from None
    except BadSchema:
        raise
    except ValueError:
        raise BadSchema("the Avro schema is not JSON") from None


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Node | None] = {}
        """By full name. None: the type is being defined, so the type that uses it is inside it."""

    def node(self, raw: Any, space: str) -> Node:
        if isinstance(raw, str):
            return self._by_name(raw, space)
        if isinstance(raw, list):
            return self._union(raw, space)
        if not isinstance(raw, dict) or "type" not in raw:
            raise BadSchema("a type of the Avro schema is neither a name, nor a list, nor an object with `type`")
        kind = raw["type"]
        if not isinstance(kind, str):
            return self.node(kind, space)
        if kind in PRIMITIVES:
            return Primitive(kind, _logical(raw, kind))
        if kind == "array":
            return Array(self.node(_need(raw, "items"), space))
        if kind == "map":
            return Map(self.node(_need(raw, "values"), space))
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(raw, kind, space)
        return self._by_name(kind, space)

    def _by_name(self, name: str, space: str) -> Node:
        if name in PRIMITIVES:
            return Primitive(name)
        for full in (_full(name, space), name):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise BadSchema(f"type {full} of the Avro schema contains itself; a table cannot hold that")
                return found
        known = name if _NAME.fullmatch(name) and len(name) < 200 else "(no valid name)"
        raise BadSchema(f"type {known} of the Avro schema is not defined")

    def _union(self, raw: list[Any], space: str) -> Union:
        branches = tuple(self.node(each, space) for each in raw)
        names = [each.name if isinstance(each, Named) else kind_of(each) for each in branches]
        if not branches or len(set(names)) < len(names) or "union" in names:
            raise BadSchema("a union of the Avro schema is empty, holds a union, or holds a type twice")
        return Union(branches)

    def _define(self, raw: Mapping[str, Any], kind: str, space: str) -> Node:
        full = _full(_need(raw, "name"), raw.get("namespace", space) or "")
        inner = full.rpartition(".")[0]
        if not _NAME.fullmatch(full) or full in PRIMITIVES:
            raise BadSchema("a name of the Avro schema is not valid")
        if full in self._named:
            raise BadSchema(f"type {full} of the Avro schema is defined twice")
        aliases = tuple(_full(each, inner) for each in _aliases(raw))
        self._named[full] = None
        made: Node
        if kind == "enum":
            made = _enum(raw, full, aliases)
        elif kind == "fixed":
            size = _need(raw, "size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**30:
                raise BadSchema(f"the size of {full} in the Avro schema is not valid")
            made = Fixed(full, size, _logical(raw, "fixed", size), aliases)
        else:
            made = Record(full, self._members(raw, full, inner), aliases)
        self._named[full] = made
        return made

    def _members(self, raw: Mapping[str, Any], full: str, space: str) -> tuple[Member, ...]:
        members = []
        fields = _need(raw, "fields")
        if not isinstance(fields, list):
            raise BadSchema(f"the fields of {full} in the Avro schema are not a list")
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise BadSchema(f"a field of {full} in the Avro schema has no name")
            type_ = self.node(_need(each, "type"), space)
            default, mark = each.get("default", NO_DEFAULT), each.get(KEY_MARK, 0)
            position = int(mark) if isinstance(mark, int) and mark >= 0 else BAD_MARK
            members.append(Member(each["name"], type_, _aliases(each), default, position))
        if len({each.name for each in members}) < len(members):
            raise BadSchema(f"{full} in the Avro schema has two fields of one name")
        return tuple(members)


def _enum(raw: Mapping[str, Any], full: str, aliases: tuple[str, ...]) -> Enum:
    symbols = _need(raw, "symbols")
    if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols) or not symbols:
        raise BadSchema(f"the symbols of {full} in the Avro schema are not valid")
    if len(set(symbols)) < len(symbols):
        raise BadSchema(f"{full} in the Avro schema has a symbol twice")
    default = raw.get("default")
    return Enum(full, tuple(symbols), default if default in symbols else None, aliases)


def _need(raw: Mapping[str, Any], key: str) -> Any:
    if key not in raw:
        raise BadSchema(f"a type or field of the Avro schema lacks `{key}`")
    return raw[key]


def _aliases(raw: Mapping[str, Any]) -> tuple[str, ...]:
    aliases = raw.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise BadSchema("the aliases of a type or field of the Avro schema are not a list of names")
    return tuple(aliases)


def _full(name: Any, space: str) -> str:
    if not isinstance(name, str) or not isinstance(space, str):
        raise BadSchema("a name of the Avro schema is not a string")
    return name if "." in name or not space else f"{space}.{name}"


def _logical(raw: Mapping[str, Any], kind: str, size: int = 0) -> Logical | None:
    name = raw.get("logicalType")
    if not isinstance(name, str):
        of_kind, meant = _DEBEZIUM.get(str(raw.get("connect.name")), ("", ""))
        return Logical(meant, loose=True) if of_kind == kind else None
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = raw.get("precision"), raw.get("scale", 0)
        if type(precision) is not int or type(scale) is not int:
            return None
        room = len(str(2 ** (8 * min(size, _WIDEST_DECIMAL) - 1) - 1)) - 1 if size else 0
        widest = min(_WIDEST_DECIMAL, room) if kind == "fixed" else _WIDEST_DECIMAL
        return Logical(name, precision, scale) if 0 <= scale <= precision and 0 < precision <= widest else None
    if kind == "fixed":
        return Logical(name) if (name, size) in (("uuid", 16), ("duration", 12)) else None
    return Logical(name) if name in _LOGICAL.get(kind, ()) else None


def marks(record: Record, above: Path = ()) -> Iterator[tuple[int, Path]]:
    """The fields of the key of an event, with their positions. Raises `BadSchema` for marks that no key can have."""
    for each in record.fields:
        path = (*above, each.name)
        if each.key == BAD_MARK:
            raise BadSchema(f"{KEY_MARK} of field {'.'.join(path)!r} is neither true nor a position from 1 on")
        if each.key:
            yield each.key, path
        for inner, several in records_in(each.type):
            found = list(marks(inner, path))
            if found and several:
                raise BadSchema(f"field {'.'.join(found[0][1])!r} is in an array or a map, and cannot be part of a key")
            yield from found


def records_in(node: Node) -> Iterator[tuple[Record, bool]]:
    """The records of a field, and whether a value may hold several."""
    if isinstance(node, Record):
        yield node, False
    elif isinstance(node, Union):
        for each in node.branches:
            yield from records_in(each)
    elif isinstance(node, Array | Map):
        for record, _ in records_in(node.items if isinstance(node, Array) else node.values):
            yield record, True


def fingerprint(text: str) -> bytes:
    """The Rabin fingerprint (CRC-64-AVRO) of the schema's canonical form, in the byte order of single-object encoding."""
    form = json.dumps(_canonical(json.loads(text), ""), separators=(",", ":"), ensure_ascii=False)
    crc = _EMPTY
    for byte in form.encode():
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc.to_bytes(8, "little")


def _canonical(raw: Any, space: str) -> Any:
    """Avro's Parsing Canonical Form."""
    if isinstance(raw, str):
        return raw if raw in PRIMITIVES else _full(raw, space)
    if isinstance(raw, list):
        return [_canonical(each, space) for each in raw]
    kind = raw["type"]
    if not isinstance(kind, str):
        return _canonical(kind, space)
    if kind in PRIMITIVES:
        return kind
    if kind == "array":
        return {"type": "array", "items": _canonical(raw["items"], space)}
    if kind == "map":
        return {"type": "map", "values": _canonical(raw["values"], space)}
    if kind not in ("record", "error", "enum", "fixed"):
        return _full(kind, space)
    full = _full(raw["name"], raw.get("namespace", space) or "")
    inner = full.rpartition(".")[0]
    made: dict[str, Any] = {"name": full, "type": kind}
    if kind == "enum":
        made["symbols"] = raw["symbols"]
    elif kind == "fixed":
        made["size"] = int(raw["size"])
    else:
        made["fields"] = [{"name": each["name"], "type": _canonical(each["type"], inner)} for each in raw["fields"]]
    return made


_EMPTY = 0xC15D213AA4D7A795


def _table() -> tuple[int, ...]:
    made = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_EMPTY if crc & 1 else 0)
        made.append(crc)
    return tuple(made)


_TABLE = _table()
_UNFIT = (AttributeError, KeyError, OverflowError, TypeError, ValueError, struct.error)


def encode(node: Node, value: Any) -> bytes:
    """A default, as a schema's JSON writes it, in Avro's binary encoding. Raises `ValueError` if it does not fit its type."""
    try:
        return _encode(node, value)
    except _UNFIT:
        raise ValueError("the default does not fit its type") from None


def _encode(node: Node, value: Any) -> bytes:
    if isinstance(node, Union):  # the default is of the first branch; since Avro 1.12 it may be of any
        for number, branch in enumerate(node.branches):
            with suppress(*_UNFIT):
                return _varint(number) + _encode(branch, value)
        raise ValueError
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
