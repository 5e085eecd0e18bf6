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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from landonce.config.source import AvroFormat
from landonce.errors import ConfigError
from landonce.protocol.reasons import Code, Reason
from landonce.read.formats import Collected, Decoded, Format, Indexes, RecordType, RecordTypes
from landonce.read.formats.avro.cursor import Body, Cursor, Faults, Longs
from landonce.read.formats.avro.plan import DecodePlan, Mismatch, plan
from landonce.read.formats.avro.schema import (
    KEY_MARK,
    BadSchema,
    Member,
    Node,
    Record,
    Union,
    fingerprint,
    marks,
    parse,
)
from landonce.read.formats.avro.values import fields_of
from landonce.read.formats.json.columns import require_decodable
from landonce.read.formats.json.decode import blocks
from landonce.read.schema.fields import Schema
from landonce.read.schema.registry import Registered, Registry, UnknownSchema, registry_of

VERSION = 3
"""Increased whenever the decoder makes other rows from the same bytes: it is part of every plan's fingerprint."""
Framing = Literal["none", "single-object", "confluent"]
_FRAME = 5
"""The bytes of Confluent's frame."""
_FRAMED = "Confluent's framing, a zero byte and a schema id"
_FORMS = {b"Obj\x01": "an Avro container file", b"{": "JSON", b"\0": _FRAMED}
"""How values begin that are often sent by mistake."""
_TRAILING = Reason("the record goes on after the last field of its Avro schema", Code.MALFORMED)


@dataclass(frozen=True)
class Avro(Format):
    """Each value is an Avro body. `schemas`: the texts of the writers' schemas; with a registry there are none."""

    schemas: tuple[str, ...] = ()
    registry: Registry | None = None
    reader: str | None = None
    """The text of the schema that all records are resolved to. None: each is read by its writer's own."""
    referenced: tuple[str, ...] = ()
    """The texts of the schemas that the reader's uses."""
    framing: Framing = "none"
    bare: bool = False
    """A value that is no record is the only field of the schema."""
    single: bool = False
    """Every value is the only field of the schema, a record, too."""
    marks_nulls: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raises `BadSchema` for a text that is no schema, so that nothing starts with it."""
        if (self.registry is not None) != (self.framing == "confluent") or bool(self.schemas) == bool(self.registry):
            raise BadSchema("Avro needs a registry, or the schema's text and no registry")
        if self.framing == "none" and len(self.schemas) > 1:
            raise BadSchema("records without framing have one schema")
        for each in self.schemas:
            parse(each)
        _ = self.readers

    @property
    def readers(self) -> Node | None:
        """The reader's schema."""
        return parse(self.reader, self.referenced) if self.reader is not None else None

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> AvroDecoder:
        return AvroDecoder(schema, self, max_record_bytes=max_record_bytes)

    def decisive(self) -> tuple[object, ...]:
        texts = [
            hashlib.sha256(each.encode()).hexdigest() for each in (*self.schemas, self.reader or "", *self.referenced)
        ]
        return "avro", VERSION, self.framing, str(self.registry or ""), *texts

    def fields(self, values: Sequence[bytes]) -> Schema | None:
        """The reader's fields, or those of the schemas that these records were written with."""
        if (reader := self.readers) is not None:
            return _suggested([reader])
        written = [writer_of(self, key) for key in sorted(_keys(self, values))]
        known = [each for each in written if not isinstance(each, str)]
        return _suggested(known) if known else None

    def described(self) -> Schema | None:
        reader = self.readers
        nodes = [reader] if reader is not None else [parse(each) for each in self.schemas]
        try:
            return fields_of(nodes) if nodes else None
        except TypeError:  # no one table has the fields of these schemas
            return None

    def for_keys(self) -> Avro:
        return replace(self, bare=True)

    def alone(self) -> Avro:
        return replace(self, single=True)

    @property
    def has_types(self) -> bool:
        return True

    def examples(self, values: pa.BinaryArray) -> list[bytes]:
        groups = by_schema(self.framing, *Body.of(values.cast(pa.binary())))[1]
        return [values[int(members[0])].as_py() or b"" for _, members in groups if len(members)]

    def types_of(self, values: pa.BinaryArray) -> RecordTypes:
        number, known = np.full(len(values), -1, np.int64), dict[RecordType, int]()
        body, start, end = Body.of(values.cast(pa.binary()))
        for key, members in by_schema(self.framing, body, start, end)[1]:
            try:
                types = _types_by(self, key)
            except LookupError:
                continue
            branch = np.zeros(len(members), np.int64)
            if len(types) > 1:
                cursor = Cursor(body, start[members], end[members], np.arange(len(members)), Faults())
                branch = cursor.longs("")
            for at, each in enumerate(types):
                if each is not None:
                    number[members[branch == at]] = known.setdefault(each, len(known))
        return RecordTypes(number, tuple(known))

    def types(self, values: Sequence[bytes], subjects: Sequence[str]) -> tuple[RecordType, ...]:
        if (reader := self.readers) is not None:
            return _types(reader)
        if self.registry is None:
            return tuple(each for text in self.schemas for each in _types(parse(text)))
        written = [writer_of(self, key) for key in sorted(_keys(self, values))]
        nodes = [each for each in written if not isinstance(each, str)]
        for subject in subjects:
            with suppress(UnknownSchema):
                found = self.registry.latest(subject)
                if found.kind == "AVRO":
                    nodes.append(parse(found.text, [text for _, text in found.referenced]))
        return tuple(dict.fromkeys(each for node in nodes for each in _types(node)))


def _types(node: Node) -> tuple[RecordType, ...]:
    """The types of records of one schema: of a union, one for each record."""
    branches = node.branches if isinstance(node, Union) else (node,)
    try:
        return tuple(RecordType.of(each.name, marks(each)) for each in branches if isinstance(each, Record))
    except BadSchema as error:
        raise ConfigError(f"{error}.", command=f"correct {KEY_MARK} in the Avro schema") from None


@lru_cache(maxsize=1024)
def _types_by(format_: Avro, key: bytes) -> tuple[RecordType | None, ...]:
    """The types of records with this frame: one, or one for each branch of a union. Raises `LookupError` if the schema is not known: it may
    be, a moment later."""
    writer = writer_of(format_, key)
    if isinstance(writer, str):
        raise LookupError(writer)
    branches = writer.branches if isinstance(writer, Union) else (writer,)
    if (reader := format_.readers) is None:
        return tuple(next(iter(_types(each)), None) for each in branches)
    wanted = _types(reader)
    names = [each.name if isinstance(each, Record) else "" for each in branches]
    only = wanted[0] if len(wanted) == 1 else None
    return tuple(next((each for each in wanted if each.name == name), only if name else None) for name in names)


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


_HEADS = {"none": (b"", 0), "confluent": (b"\0", 5), "single-object": (b"\xc3\x01", 10)}
"""How a framed value begins, and how many bytes are before its body."""


def writer_of(format_: Avro, key: bytes) -> Node | Reason:
    """The schema of a frame's id or fingerprint, or the reason why its records are rejected."""
    try:
        if format_.framing == "none":
            return parse(format_.schemas[0])
        if format_.framing == "single-object":
            known = {fingerprint(each): each for each in format_.schemas}
            return parse(known[key]) if key in known else _unknown(f"no schema has the fingerprint {key[::-1].hex()}")
        assert format_.registry is not None
        number = int.from_bytes(key, "big")
        found = format_.registry.schema(number)
        if found.kind != "AVRO":
            return _unknown(f"schema {number} of the registry is {found.kind}, not AVRO")
        return parse(found.text, [text for _, text in found.referenced])
    except UnknownSchema:
        return _unknown(f"schema {int.from_bytes(key, 'big')} is not in the registry")
    except BadSchema as error:
        return _unknown(
            f"schema {int.from_bytes(key, 'big')}: {error}" if format_.framing == "confluent" else str(error)
        )


def _unknown(words: str) -> Reason:
    return Reason(words, Code.UNKNOWN_SCHEMA)


def by_schema(
    framing: Framing, body: Body, start: Longs, end: Longs
) -> tuple[npt.NDArray[np.bool_], list[tuple[bytes, Indexes]]]:
    """Which values have a frame, and the values of each writer's schema. Moves `start` behind the frames."""
    if framing == "none":
        return np.ones(len(start), np.bool_), [(b"", np.arange(len(start)))]
    head, size = _HEADS[framing]
    framed = end - start >= size
    for at, byte in enumerate(head):
        framed &= body.data[np.minimum(start + at, body.size)] == byte
    members = np.flatnonzero(framed)
    keys = np.zeros(len(members), np.uint64)
    for at in range(len(head), size):
        keys = (keys << np.uint64(8)) | body.data[start[members] + at]
    start += size
    return framed, [(int(key).to_bytes(size - len(head), "big"), members[keys == key]) for key in np.unique(keys)]


class AvroDecoder:
    """Decodes arrays of record values. It keeps what it knows of each writer's schema."""

    def __init__(self, schema: Schema, source: Avro, *, max_record_bytes: int) -> None:
        require_decodable(schema, max_record_bytes)
        self._schema = schema
        self._arrow = schema.arrow
        self._source = source
        reader = source.readers
        self._reader = self._whole(reader) if reader is not None else None
        self._max_record_bytes = max_record_bytes
        self._plans: dict[bytes, DecodePlan] = {}
        if source.framing == "none":
            found = self._plan(b"")
            if isinstance(found, Reason):
                raise TypeError(found)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decodes every value, or says why not: ``len(kept) + len(rejects) == len(values)``."""
        found = Collected(self._arrow)
        rows, records = found.screen(values, self._max_record_bytes)
        for start, stop in blocks(records):
            self._decode_block(found, rows[start:stop], records.slice(start, stop - start))
        return found.result()

    def _decode_block(self, found: Collected, rows: Indexes, records: pa.BinaryArray) -> None:
        body, start, end = Body.of(records)
        for key, members in self._by_schema(found, rows, records, body, start, end):
            made = self._plan(key)
            if isinstance(made, Reason):
                for at in members.tolist():
                    found.reject(rows[at], made)
                continue
            faults = Faults()
            cursor = Cursor(body, start[members], end[members], np.arange(len(members)), faults)
            row = made.read(cursor)
            _end(cursor)
            if faults.reasons and self._source.framing == "none":
                _name_forms(faults, made, records, body, start, end)
            found.settle(rows[members], row.flatten(), faults.reasons)

    def _by_schema(
        self, found: Collected, rows: Indexes, records: pa.BinaryArray, body: Body, start: Longs, end: Longs
    ) -> Iterator[tuple[bytes, Indexes]]:
        """The records of each writer's schema. Moves `start` behind the frames; rejects values without a frame."""
        framed, groups = by_schema(self._source.framing, body, start, end)
        _, size = _HEADS[self._source.framing]
        unframed = Reason(f"does not begin with the {size} bytes of {self._source.framing} framing", Code.BAD_FRAME)
        for at in np.flatnonzero(~framed).tolist():
            form = _form(records[at].as_py())
            cut = form == _FRAMED and self._source.framing == "confluent"
            found.reject(rows[at], _naming(unframed, "" if cut else form))
        yield from groups

    def _whole(self, writer: Node) -> Node:
        """A record has the encoding of its fields, so that one value is a record with one field."""
        bare = self._source.bare and len(self._schema.fields) == 1 and not isinstance(writer, Record | Union)
        if not bare and not self._source.single:
            return writer
        return Record("key", (Member(self._schema.fields[0].place().names[0], writer),))

    def _plan(self, key: bytes) -> DecodePlan | Reason:
        """A reason is not kept: a registry may know the id a moment later."""
        if key in self._plans:
            return self._plans[key]
        writer = writer_of(self._source, key)
        if isinstance(writer, Reason):
            return writer
        try:
            self._plans[key] = plan(self._whole(writer), self._reader, self._schema)
        except Mismatch as error:
            return Reason(str(error), Code.SCHEMA_MISMATCH)
        return self._plans[key]


def _end(cursor: Cursor) -> None:
    """Each record ends with its last field."""
    for at in np.flatnonzero(cursor.at < cursor.end).tolist():
        cursor.faults.reasons.setdefault(at, _TRAILING)


def _name_forms(
    faults: Faults, made: DecodePlan, records: pa.BinaryArray, body: Body, start: Longs, end: Longs
) -> None:
    """Adds to the reasons what the values are instead. One is framed if it can be read behind a frame."""
    forms = {at: _form(records[at].as_py()) for at in faults.reasons}
    framed = np.array([at for at, form in forms.items() if form == _FRAMED and end[at] - start[at] >= _FRAME], np.int64)
    behind = Faults()
    cursor = Cursor(body, start[framed] + _FRAME, end[framed], np.arange(len(framed)), behind)
    made.read(cursor)
    _end(cursor)
    good = set(np.delete(framed, list(behind.reasons)).tolist())
    for at, form in forms.items():
        faults.reasons[at] = _naming(faults.reasons[at], form if form != _FRAMED or at in good else "")


def _form(value: bytes) -> str:
    """What a value is that is not what the file says, by how it begins. Empty if that is not known."""
    return next((form for head, form in _FORMS.items() if value.startswith(head)), "")


def _naming(reason: Reason, form: str) -> Reason:
    return reason.reworded(f"{reason}; the value looks like {form}") if form else reason


def avro_of(section: AvroFormat) -> Avro:
    """The format of this section, with the texts of its files, and of its reader's schema in the registry."""
    registry = registry_of(section.registry) if section.registry is not None else None
    reader, referenced = None, tuple[str, ...]()
    if section.reader is not None and section.reader.file is not None:
        reader = _schema_text(section.reader.file, "reader")
    elif section.reader is not None:
        assert registry is not None
        found = _registered(registry, section.reader.subject or "", section.reader.version)
        reader, referenced = found.text, tuple(text for _, text in found.referenced)
    if registry is not None:
        return Avro((), registry, reader, referenced, "confluent")
    return Avro(tuple(_schema_text(each, "schema") for each in section.files), None, reader, framing=section.framing)


def _registered(registry: Registry, subject: str, version: int | None) -> Registered:
    """The newest version is asked for once, at the start: a later one counts from the next start on."""
    called = (
        f"source.kafka.format.avro.reader: {f'version {version}' if version else 'the newest version'} of {subject!r}"
    )
    try:
        found = registry.version(subject, version) if version else registry.latest(subject)
        if found.kind != "AVRO":
            raise BadSchema(f"it is {found.kind}")
        parse(found.text, [text for _, text in found.referenced])
    except UnknownSchema:
        raise ConfigError(
            f"{called} is not in the registry.", command="correct `source.kafka.format` in {file}"
        ) from None
    except BadSchema as error:
        raise ConfigError(
            f"{called} is not an Avro schema: {error}.", command="correct `source.kafka.format` in {file}"
        ) from None
    return found


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
