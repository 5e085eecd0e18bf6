"""One Kafka value is one Avro body, framed or not, and becomes one row, or a reject with a reason.

Three framings:

- `confluent`: a zero byte, the id of the writer's schema in four bytes, the body. The schema comes from a registry. Several
  schemas may be mixed; an id that the registry does not know rejects its records;
- `single-object`: C3 01, the fingerprint of the writer's schema in eight bytes, the body. The schemas are in files;
- `none`: the body alone. The one schema is in a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.config.formats import AvroFormat
from landonce.errors import ConfigError
from landonce.read.formats import Collected, Decoded, Format, Indexes
from landonce.read.formats.avro.cursor import Body, Cursor, Faults, Longs
from landonce.read.formats.avro.plan import Mismatch, Plan, plan
from landonce.read.formats.avro.schema import BadSchema, Node, fingerprint, parse
from landonce.read.formats.avro.suggest import fields_of
from landonce.read.formats.json.columns import check_supported
from landonce.read.formats.json.decode import blocks
from landonce.read.registry import Registry, UnknownSchema, registry_of
from landonce.read.schema.fields import Schema

VERSION = 1
"""Increased whenever the decoder makes other rows from the same bytes: it is part of every plan's fingerprint."""

Framing = Literal["none", "single-object", "confluent"]
_TRAILING = "the record goes on after the last field of its Avro schema"


@dataclass(frozen=True)
class Avro(Format):
    """Each value is an Avro body. `schemas`: the texts of the writers' schemas; with a registry there are none."""

    schemas: tuple[str, ...] = ()
    registry: Registry | None = None
    reader: str | None = None
    """The text of the schema that all records are resolved to. None: each is read by its writer's own."""
    framing: Framing = "none"

    def __post_init__(self) -> None:
        """Raises `BadSchema` for a text that is no schema, so that nothing starts with it."""
        if (self.registry is not None) != (self.framing == "confluent") or bool(self.schemas) == bool(self.registry):
            raise BadSchema("Avro needs a registry, or the schema's text and no registry")
        if self.framing == "none" and len(self.schemas) > 1:
            raise BadSchema("records without framing have one schema")
        for each in (*self.schemas, *([self.reader] if self.reader is not None else [])):
            parse(each)

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> AvroDecoder:
        return AvroDecoder(schema, self, max_record_bytes=max_record_bytes)

    def decisive(self) -> tuple[object, ...]:
        texts = [hashlib.sha256(each.encode()).hexdigest() for each in (*self.schemas, self.reader or "")]
        return "avro", VERSION, self.framing, str(self.registry or ""), *texts

    def fields(self, values: Sequence[bytes]) -> Schema | None:
        """The reader's fields, or those of the schemas that these records were written with."""
        if self.reader is not None:
            return _suggested([parse(self.reader)])
        written = [writer_of(self, key) for key in sorted(_keys(self, values))]
        known = [each for each in written if not isinstance(each, str)]
        return _suggested(known) if known else None


def _suggested(schemas: Sequence[Node]) -> Schema:
    try:
        return fields_of(schemas)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"no schema is declared, and Avro's does not give one: {error}.",
            safe="Nothing was created.",
            command="declare `source.kafka.schema` in {file}",
        ) from None


def _keys(format_: Avro, values: Sequence[bytes]) -> set[bytes]:
    if format_.framing == "none":
        return {b""}
    head, size = _HEADS[format_.framing]
    return {each[len(head) : size] for each in values if each.startswith(head) and len(each) >= size}


_HEADS = {"confluent": (b"\0", 5), "single-object": (b"\xc3\x01", 10)}
"""How a framed value begins, and how many bytes are before its body."""


def writer_of(format_: Avro, key: bytes) -> Node | str:
    """The schema of a frame's id or fingerprint, or the reason why its records are rejected."""
    try:
        if format_.framing == "none":
            return parse(format_.schemas[0])
        if format_.framing == "single-object":
            known = {fingerprint(each): each for each in format_.schemas}
            return parse(known[key]) if key in known else f"no schema has the fingerprint {key[::-1].hex()}"
        assert format_.registry is not None
        number = int.from_bytes(key, "big")
        found = format_.registry.schema(number)
        if found.kind != "AVRO":
            return f"schema {number} of the registry is {found.kind}, not AVRO"
        return parse(found.text, [text for _, text in found.referenced])
    except UnknownSchema:
        return f"schema {int.from_bytes(key, 'big')} is not in the registry"
    except BadSchema as error:
        return str(error) if format_.framing != "confluent" else f"schema {int.from_bytes(key, 'big')}: {error}"


class AvroDecoder:
    """Decodes arrays of record values. It keeps what it knows of each writer's schema."""

    def __init__(self, schema: Schema, source: Avro, *, max_record_bytes: int) -> None:
        if not 0 < max_record_bytes <= 2**30:
            raise ValueError(f"max_record_bytes must be between 1 and {2**30}, not {max_record_bytes}")
        for each in schema.fields:
            check_supported(each)
        self._schema = schema
        self._arrow = schema.arrow
        self._source = source
        self._reader = parse(source.reader) if source.reader is not None else None
        self._max_record_bytes = max_record_bytes
        self._plans: dict[bytes, Plan] = {}
        if source.framing == "none":
            found = self._plan(b"")
            if isinstance(found, str):
                raise TypeError(found)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decodes every value, or says why not: ``len(kept) + len(rejects) == len(values)``."""
        found = Collected(self._arrow)
        values = values.cast(pa.binary())
        rows = self._screen(found, values)
        records = values if len(rows) == len(values) else values.take(pa.array(rows))
        for start, stop in blocks(records):
            self._decode_block(found, rows[start:stop], records.slice(start, stop - start))
        return found.result()

    def _screen(self, found: Collected, values: pa.BinaryArray) -> Indexes:
        lengths = pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False)
        missing, long = lengths < 0, lengths > self._max_record_bytes
        for at in np.flatnonzero(missing).tolist():
            found.reject(at, "no value (a tombstone)")
        for at in np.flatnonzero(long).tolist():
            found.reject(at, f"record of {lengths[at]} bytes exceeds max_record_bytes={self._max_record_bytes}")
        return np.flatnonzero(~missing & ~long)

    def _decode_block(self, found: Collected, rows: Indexes, records: pa.BinaryArray) -> None:
        body, start, end = Body.of(records)
        for key, members in self._by_schema(found, rows, body, start, end):
            made = self._plan(key)
            if isinstance(made, str):
                for at in members.tolist():
                    found.reject(rows[at], made)
                continue
            faults = Faults()
            cursor = Cursor(body, start[members], end[members], np.arange(len(members)), faults)
            row = made.read(cursor)
            for at in np.flatnonzero(cursor.at < cursor.end).tolist():
                faults.reasons.setdefault(at, _TRAILING)
            self._collect(found, rows[members], row, faults)

    def _collect(self, found: Collected, rows: Indexes, row: pa.StructArray, faults: Faults) -> None:
        if faults.reasons:
            for at, reason in faults.reasons.items():
                found.reject(rows[at], reason)
            keep = np.ones(len(rows), np.bool_)
            keep[list(faults.reasons)] = False
            rows, row = rows[keep], row.filter(pa.array(keep))
        found.keep(rows, row.flatten())

    def _by_schema(
        self, found: Collected, rows: Indexes, body: Body, start: Longs, end: Longs
    ) -> Iterator[tuple[bytes, Indexes]]:
        """The records of each writer's schema. Moves `start` behind the frames; rejects values without a frame."""
        if self._source.framing == "none":
            yield b"", np.arange(len(rows))
            return
        head, size = _HEADS[self._source.framing]
        framed = end - start >= size
        for at, byte in enumerate(head):
            framed &= body.data[np.minimum(start + at, body.size)] == byte
        for at in np.flatnonzero(~framed).tolist():
            found.reject(rows[at], f"does not begin with the {size} bytes of {self._source.framing} framing")
        members = np.flatnonzero(framed)
        keys = np.zeros(len(members), np.uint64)
        for at in range(len(head), size):
            keys = (keys << np.uint64(8)) | body.data[start[members] + at]
        start += size
        for key in np.unique(keys):
            yield int(key).to_bytes(size - len(head), "big"), members[keys == key]

    def _plan(self, key: bytes) -> Plan | str:
        """A reason is not kept: a registry may know the id a moment later."""
        if key in self._plans:
            return self._plans[key]
        writer = writer_of(self._source, key)
        if isinstance(writer, str):
            return writer
        try:
            self._plans[key] = plan(writer, self._reader, self._schema)
        except Mismatch as error:
            return str(error)
        return self._plans[key]


def avro_of(section: AvroFormat) -> Avro:
    """The format of this section, with the texts of its files."""
    reader = _schema_text(section.reader, "reader") if section.reader is not None else None
    if section.registry is not None:
        return Avro(registry=registry_of(section.registry), reader=reader, framing="confluent")
    return Avro(tuple(_schema_text(each, "schema") for each in section.files), None, reader, section.framing)


def _schema_text(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        parse(text)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"source.kafka.format.avro.{key}: {path} is not an Avro schema: {problem}.", command="correct the file"
        ) from None
    return text
