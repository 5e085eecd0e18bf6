"""Input that breaks other readers: named cases by format, and what becomes of each.

A line of `outcomes/NAME.txt` says `case: lands ROW` or `case: dead CODE FIELD: REASON`. `python -m corpus`, in `tests`, writes these files again from what
the decoders do now: read the difference before you commit it. `outcomes/in_TARGET.txt` has what
differs in a target, as `format: case: REASON` if it holds less than the decoder makes, or `format: case: lands`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from corpus import (
    avro_bodies,
    avro_frames,
    csv_lines,
    framed_values,
    json_values,
    plain_values,
    protobuf_frames,
    protobuf_messages,
    raw_values,
    tab_lines,
)
from landonce.config.source import RecordFormat
from landonce.protocol.reasons import Reason
from landonce.read.decoding import Decoding, decoder_of, format_of
from landonce.read.formats import Decoded, Format
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import ProtobufSource
from landonce.read.schema.ddl import parse_schema

FOLDER = Path(__file__).parent / "outcomes"
LIMIT = 2 * 2**20
_SHOWN = 200


@dataclass(frozen=True)
class Corpus:
    """The cases of one format."""

    name: str
    schema: str
    format: Any
    cases: Mapping[str, bytes | None]

    def become(self, values: list[bytes | None]) -> list[str]:
        """What becomes of each record."""
        found = self._decoded(values)
        rows = found.table.cast(pa.schema([(each.name, _shown(each.type)) for each in found.table.schema]))
        outcomes = {int(at): f"lands {_row(row)}" for at, row in zip(found.kept, rows.to_pylist(), strict=True)}
        outcomes |= {each.index: _dead(each.reason) for each in found.rejects}
        assert len(outcomes) == len(found.kept) + len(found.rejects) == len(values)
        return [outcomes[at] for at in range(len(values))]

    @property
    def plain(self) -> tuple[str, ...]:
        """Columns that every target holds as they are."""
        return tuple(each.name for each in parse_schema(self.schema).fields if each.name in ("id", "s", "_value"))

    def fields(self, values: list[bytes | None]) -> dict[int, tuple[Any, ...]]:
        """What the plain columns of each record hold that the decoder takes."""
        found = self._decoded(values)
        rows = found.table.select(list(self.plain)).to_pylist()
        return {int(at): tuple(row.values()) for at, row in zip(found.kept, rows, strict=True)}

    def _decoded(self, values: list[bytes | None]) -> Decoded:
        known = self.format if isinstance(self.format, Format) else format_of(RecordFormat.model_validate(self.format))
        decoding = Decoding(known, max_record_bytes=LIMIT)
        decode = decoder_of(parse_schema(self.schema), decoding)
        array = pa.array(values, pa.binary())
        return decode(array, [_Message(each) for each in values])

    def expected(self) -> dict[str, str]:
        lines = (FOLDER / f"{self.name}.txt").read_text().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def reasons(self, target: str) -> dict[str, str]:
        """Why cases are dead letters there."""
        reasons = {name: each.split(": ", 1)[1] for name, each in self.expected().items() if each.startswith("dead ")}
        for line in (FOLDER / f"in_{target}.txt").read_text().splitlines():
            name, case, reason = line.split(": ", 2)
            if name == self.name:
                reasons[case] = reason
        return {case: reason for case, reason in reasons.items() if reason != "lands"}


def _dead(reason: Reason) -> str:
    return f"dead {reason.code.value}{' ' * bool(reason.field)}{reason.field}: {reason}"


@dataclass(frozen=True)
class _Message:
    """As Kafka's client gives it."""

    content: bytes | None

    def value(self) -> bytes | None:
        return self.content

    def key(self) -> bytes | None:
        return None

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 0, -1

    def offset(self) -> int:
        return 0


def _shown(type_: pa.DataType) -> pa.DataType:
    """Times as text: Python knows no year 0."""
    return pa.string() if pa.types.is_temporal(type_) else type_


def _row(row: dict[str, Any]) -> str:
    text = repr({name: value for name, value in row.items() if value is not None})
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _corpus(name: str, module: ModuleType) -> Corpus:
    return Corpus(name, module.SCHEMA, module.FORMAT, module.CASES)


ALL = (
    _corpus("json", json_values),
    _corpus("csv", csv_lines),
    _corpus("tsv", tab_lines),
    _corpus("framed", framed_values),
    _corpus("string", plain_values),
    _corpus("raw", raw_values),
    Corpus("avro", avro_bodies.SCHEMA, Avro((avro_bodies.TEXT,)), avro_bodies.CASES),
    Corpus("avro_framed", avro_frames.SCHEMA, avro_frames.FRAMED, avro_frames.FRAMED_CASES),
    Corpus("avro_object", avro_frames.SCHEMA, avro_frames.OBJECT, avro_frames.OBJECT_CASES),
    Corpus(
        "protobuf",
        protobuf_messages.SCHEMA,
        Protobuf(ProtobufSource(protobuf_messages.DESCRIPTORS, "Order")),
        protobuf_messages.CASES,
    ),
    _corpus("protobuf_framed", protobuf_frames),
)
