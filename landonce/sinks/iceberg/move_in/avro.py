"""One Avro value with its schema before it, as Iceberg's sink writes them to its control topic. Pure.

C2 01 | length of the schema, 2 bytes | the schema as JSON | the value
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_MAGIC = b"\xc2\x01"
_HEADER = 4


@dataclass
class _Bytes:
    """A value, and how far it is read."""

    data: bytes
    at: int

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if count < 0 or len(taken) < count:
            raise ValueError("an Avro value ends too early")
        self.at += count
        return taken

    def number(self) -> int:
        """Zigzag, seven bits a byte."""
        found, shift = 0, 0
        while True:
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return (found >> 1) ^ -(found & 1)


Read = Callable[[_Bytes], Any]


def decode(message: bytes) -> Any:
    """The value: records are dicts. `ValueError` for what is not in this form."""
    if message[:2] != _MAGIC:
        raise ValueError("not an Avro value with its schema before it")
    end = _HEADER + int.from_bytes(message[2:_HEADER], "big")
    return _reader_of(message[_HEADER:end])(_Bytes(message, end))


@lru_cache(maxsize=64)
def _reader_of(schema: bytes) -> Read:
    return _Schema().reader(json.loads(schema), "")


_PRIMITIVE: dict[str, Read] = {
    "null": lambda _: None,
    "boolean": lambda data: data.take(1) == b"\x01",
    "int": _Bytes.number,
    "long": _Bytes.number,
    "float": lambda data: struct.unpack("<f", data.take(4))[0],
    "double": lambda data: struct.unpack("<d", data.take(8))[0],
    "bytes": lambda data: data.take(data.number()),
    "string": lambda data: data.take(data.number()).decode(),
}


@dataclass
class _Schema:
    """A schema while it is read: types that have a name are written out once, and named from then on."""

    named: dict[str, Read] = field(default_factory=dict)

    def reader(self, schema: Any, space: str) -> Read:
        if isinstance(schema, list):
            options = [self.reader(each, space) for each in schema]
            return lambda data: options[data.number()](data)
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or self._known(schema, space)
        kind = schema["type"]
        if kind == "array":
            item = self.reader(schema["items"], space)
            return lambda data: _blocks(data, lambda: item(data))
        if kind == "map":
            value = self.reader(schema["values"], space)
            return lambda data: dict(_blocks(data, lambda: (data.take(data.number()).decode(), value(data))))
        if kind in ("record", "fixed", "enum"):
            return self._naming(schema, kind, space)
        return self.reader(kind, space)

    def _naming(self, schema: dict[str, Any], kind: str, space: str) -> Read:
        space = schema.get("namespace", space)
        name = f"{space}.{schema['name']}" if space and "." not in schema["name"] else schema["name"]
        if kind == "fixed":
            self.named[name] = lambda data: data.take(schema["size"])
        elif kind == "enum":
            self.named[name] = lambda data: schema["symbols"][data.number()]
        else:
            fields: list[tuple[str, Read]] = []
            self.named[name] = lambda data: {field: read(data) for field, read in fields}
            fields += [(each["name"], self.reader(each["type"], space)) for each in schema["fields"]]
        return self.named[name]

    def _known(self, name: str, space: str) -> Read:
        """A name without a namespace may also be of none, as Java writes it."""
        found = self.named.get(f"{space}.{name}") or self.named.get(name)
        if found is None:
            raise ValueError(f"an Avro schema names {name!r}, and does not say what it is")
        return found


def _blocks(data: _Bytes, read: Callable[[], Any]) -> list[Any]:
    """Items come in blocks, each with their number before it; where that is negative, with its size too."""
    items: list[Any] = []
    while count := data.number():
        if count < 0:
            count = -count
            data.number()
        items += [read() for _ in range(count)]
    return items
