"""The decoders of all formats side by side: the same fields, and as many bytes per record as JSON needs."""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass
from rich.console import Console

from bench.measure import Land, measure_rounds, ratios
from bench.report import Section, speed, times
from landonce.read.formats import Format
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.json.decode import Json
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import Messages, ProtobufSource
from landonce.read.formats.text.csv import Csv
from landonce.read.formats.text.plain import Framed
from landonce.read.schema.ddl import parse_schema

_MOST = 400_000
_AT_ONCE = 20_000
"""Records that a worker decodes together."""
_SCHEMA = "id BIGINT NOT NULL, project STRING, event STRING, amount DOUBLE, quantity INT, paid BOOLEAN, at BIGINT, note STRING"
_NAMES = ("id", "project", "event", "amount", "quantity", "paid", "at", "note")
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": name, "type": type_}
        for name, type_ in zip(
            _NAMES, ("long", "string", "string", "double", "int", "boolean", "long", "string"), strict=True
        )
    ],
}
_PROTO = """syntax = "proto3";
message Order {
  int64 id = 1; string project = 2; string event = 3; double amount = 4; int32 quantity = 5; bool paid = 6; int64 at = 7;
  string note = 8;
}
"""
_FRAME = b"\0\0\0\0\1"


@dataclass
class Figures:
    """Seconds per round, for the same rows."""

    records: int
    bytes_per_record: float
    seconds: dict[str, list[float]]

    def ratio(self, name: str) -> list[float]:
        return ratios(self.seconds[name], self.seconds["json"])

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {f"ratio_{name}": median(self.ratio(name)) for name in self.seconds}

    def section(self) -> Section:
        rows = []
        for name, seconds in self.seconds.items():
            beside = "" if name == "json" else f"; {times(self.ratio(name))} × JSON"
            rows.append((name, f"{speed(self.records, seconds)}{beside}"))
        before = _BEFORE.format(size=self.bytes_per_record)
        return Section("Formats", before, tuple(rows), _AFTER)


_BEFORE = """\
One process decodes records of eight plain fields to Arrow, 20,000 at a time, as a worker does. Records have {size:.0f} bytes in
every format: those that are shorter than JSON have a longer text field.
"""
_AFTER = """\
Only decoding is measured: no Kafka and no target. Schemas come from a file; a registry is asked once per schema and process.
"""


def measure(folder: Path, records: int, repetitions: int, warm_ups: int, console: Console) -> Figures:
    del folder
    count = min(records, _MOST)
    rows = [_row(number) for number in range(count)]
    plain = [_json(row) for row in rows]
    formats: dict[str, tuple[Format, Callable[[dict[str, Any]], bytes]]] = {
        "json": (Json(), _json),
        "json, framed": (Framed(Json()), lambda row: _FRAME + _json(row)),
        "csv": (Csv(_NAMES), _csv),
        "avro": (Avro((json.dumps(_AVRO),)), _avro()),
        "protobuf": _protobuf(),
    }
    console.print(f"formats: {count:,} records")
    competitors: dict[str, Land] = {}
    for name, (format_, encode) in formats.items():
        encoded = [_padded(row, encode, len(as_json)) for row, as_json in zip(rows, plain, strict=True)]
        batches = [pa.array(encoded[at : at + _AT_ONCE], pa.binary()) for at in range(0, count, _AT_ONCE)]
        competitors[name] = _decoding(format_, batches)
    size = sum(map(len, plain)) / count
    return Figures(count, size, measure_rounds(competitors, repetitions, warm_ups, count, console))


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "project": f"shop-{number % 97}",
        "event": ("view", "click", "purchase")[number % 3],
        "amount": number % 10_000 / 100,
        "quantity": number % 7,
        "paid": number % 2 == 0,
        "at": 1_700_000_000_000 + number,
        "note": f"note {number * 2654435761 % 10**8:08d}",
    }


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _csv(row: dict[str, Any]) -> bytes:
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in row.values()).encode()


def _avro() -> Callable[[dict[str, Any]], bytes]:
    schema = fastavro.parse_schema(_AVRO)

    def encode(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        return out.getvalue()

    return encode


def _protobuf() -> tuple[Format, Callable[[dict[str, Any]], bytes]]:
    with tempfile.NamedTemporaryFile("w", suffix=".proto") as file:
        file.write(_PROTO)
        file.flush()
        source = ProtobufSource.of_file(Path(file.name), "Order")
    message = GetMessageClass(Messages(source.descriptors).find("Order"))
    return Protobuf(source), lambda row: bytes(message(**row).SerializeToString())


def _padded(row: dict[str, Any], encode: Callable[[dict[str, Any]], bytes], size: int) -> bytes:
    """The record with a longer note, so that it has as many bytes, give or take one."""
    encoded = encode(row)
    if len(encoded) >= size:
        return encoded
    return encode({**row, "note": row["note"] + "x" * (size - len(encoded))})


def _decoding(format_: Format, batches: list[pa.BinaryArray]) -> Land:
    decoder = format_.decoder(parse_schema(_SCHEMA), max_record_bytes=2**20)

    def decode(_: str) -> float:
        began = time.perf_counter()
        for each in batches:
            found = decoder.decode(each)
            if len(found.kept) != len(each):
                raise RuntimeError(f"{format_}: {found.rejects[:1]}")
        return time.perf_counter() - began

    return decode
