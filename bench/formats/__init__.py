"""The decoders of all formats side by side: the same fields, and as many bytes per record as JSON needs."""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass
from rich.console import Console

from bench.measure import Land, measure_rounds, ratios
from bench.report import Section, speed, times
from landonce.read.decoding import Decoding, decoder_of
from landonce.read.formats import Format
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.json.decode import Json
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import Messages, ProtobufSource
from landonce.read.formats.text.csv import Csv
from landonce.read.formats.text.plain import Framed, Plain
from landonce.read.record_columns import VALUE, record_fields
from landonce.read.schema.ddl import parse_schema
from landonce.read.schema.fields import Schema
from landonce.read.schema.registry import Registered, Registry

_MOST = 400_000
_AT_ONCE = 20_000
"""Records that a worker decodes together."""
_FRAME = b"\0\0\0\0\1"
_VERSIONS = 3
"""Schemas of writers, in turn, where records are framed: three neighbours have three."""
_NESTED = ", nested"
"""How the names of those end that decode nested records."""


def _record(name: str, /, **fields: Any) -> dict[str, Any]:
    listed = [{"name": each, "type": type_} for each, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


@dataclass(frozen=True)
class Shape:
    """Records of one kind, in the words of each format. Their field `note` may have any length."""

    schema: str
    avro: dict[str, Any]
    proto: str
    row: Callable[[int], dict[str, Any]]


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


def _nested_row(number: int) -> dict[str, Any]:
    items = [{"sku": f"sku-{number % 89 + at}", "price": at + 0.25, "count": at} for at in range(number % 4)]
    return {
        "id": number,
        "customer": {"name": f"customer {number % 997}", "city": ("Bern", "Basel", "Biel")[number % 3]},
        "items": items,
        "tags": [f"tag-{at}" for at in range(number % 3)],
        "note": f"note {number * 2654435761 % 10**8:08d}",
    }


PLAIN = Shape(
    "id BIGINT NOT NULL, project STRING, event STRING, amount DOUBLE, quantity INT, paid BOOLEAN, at BIGINT, note STRING",
    _record(
        "Order",
        **{"id": "long", "project": "string", "event": "string", "amount": "double", "quantity": "int"},
        **{"paid": "boolean", "at": "long", "note": "string"},
    ),
    """syntax = "proto3";
message Order {
  int64 id = 1; string project = 2; string event = 3; double amount = 4; int32 quantity = 5; bool paid = 6; int64 at = 7;
  string note = 8;
}
""",
    _row,
)
NESTED = Shape(
    "id BIGINT NOT NULL, customer STRUCT<name: STRING, city: STRING>, "
    "items ARRAY<STRUCT<sku: STRING, price: DOUBLE, count: INT>>, tags ARRAY<STRING>, note STRING",
    _record(
        "Order",
        id="long",
        customer=_record("Customer", name="string", city="string"),
        items={"type": "array", "items": _record("Item", sku="string", price="double", count="int")},
        tags={"type": "array", "items": "string"},
        note="string",
    ),
    """syntax = "proto3";
message Customer { string name = 1; string city = 2; }
message Item { string sku = 1; double price = 2; int32 count = 3; }
message Order { int64 id = 1; Customer customer = 2; repeated Item items = 3; repeated string tags = 4; string note = 5; }
""",
    _nested_row,
)


@dataclass
class Figures:
    """Seconds per round, for the same rows."""

    records: int
    bytes_per_record: float
    seconds: dict[str, list[float]]

    def ratio(self, name: str) -> list[float]:
        """Of JSON with the same fields."""
        return ratios(self.seconds[name], self.seconds["json" + _NESTED * name.endswith(_NESTED)])

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {f"ratio_{name}": median(self.ratio(name)) for name in self.seconds}

    def section(self) -> Section:
        rows = []
        for name, seconds in self.seconds.items():
            beside = "" if name.removesuffix(_NESTED) == "json" else f"; {times(self.ratio(name))} × JSON"
            rows.append((name, f"{speed(self.records, seconds)}{beside}"))
        before = _BEFORE.format(size=self.bytes_per_record, versions=_VERSIONS)
        return Section("Formats", before, tuple(rows), _AFTER)


_BEFORE = """\
One process decodes records of eight plain fields to Arrow, 20,000 at a time, as a worker does. Records have {size:.0f} bytes in
every format: Avro and Protobuf need fewer for the same fields, so their records are padded with a longer text field,
and so are those of CSV and TSV. `string` and `raw` are the bytes of JSON as one column. Framed records of Avro and
Protobuf come from {versions} writers with schemas of their own, in turn. Nested records have an object, an array of up
to three objects and an array of up to two strings, and as many bytes as nested JSON.
"""
_AFTER = """\
Only decoding is measured: no Kafka and no target. Schemas come from a file, or are known already, as after the first record of each: a
registry is asked once per schema and process.
"""


def measure(folder: Path, records: int, repetitions: int, warm_ups: int, console: Console) -> Figures:
    del folder
    count = min(records, _MOST)
    console.print(f"formats: {count:,} records")
    names = tuple(_row(0))
    plain: dict[str, tuple[Format, Encode]] = {
        "json": (Json(), _json),
        "json, framed": (Framed(Json()), lambda row: _FRAME + _json(row)),
        "string": (Plain(text=True), _json),
        "raw": (Plain(text=False), _json),
        "csv": (Csv(names), _csv),
        "tsv": (Csv(names, "\t"), partial(_csv, delimiter="\t")),
        "avro": _avro(PLAIN),
        "avro, framed": _avro_framed(PLAIN),
        "protobuf": _protobuf(PLAIN),
        "protobuf, framed": _protobuf_framed(PLAIN),
    }
    nested = {"json": (Json(), _json), "avro": _avro(NESTED), "protobuf": _protobuf(NESTED)}
    competitors, size = _competitors(PLAIN, plain, count)
    more, _ = _competitors(NESTED, nested, count)
    competitors |= {name + _NESTED: each for name, each in more.items()}
    return Figures(count, size, measure_rounds(competitors, repetitions, warm_ups, count, console))


Encode = Callable[[dict[str, Any]], bytes]


def _competitors(shape: Shape, formats: dict[str, tuple[Format, Encode]], count: int) -> tuple[dict[str, Land], float]:
    """With the bytes of a record in JSON."""
    rows = [shape.row(number) for number in range(count)]
    sizes = [len(_json(row)) for row in rows]
    competitors: dict[str, Land] = {}
    for name, (format_, encode) in formats.items():
        encoded = [_padded(row, encode, size) for row, size in zip(rows, sizes, strict=True)]
        batches = [pa.array(encoded[at : at + _AT_ONCE], pa.binary()) for at in range(0, count, _AT_ONCE)]
        competitors[name] = _decoding(format_, shape.schema, batches)
    return competitors, sum(sizes) / count


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _csv(row: dict[str, Any], delimiter: str = ",") -> bytes:
    return delimiter.join(
        str(value).lower() if isinstance(value, bool) else str(value) for value in row.values()
    ).encode()


def _avro(shape: Shape) -> tuple[Format, Encode]:
    schema = fastavro.parse_schema(shape.avro)

    def encode(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        return out.getvalue()

    return Avro((json.dumps(shape.avro),)), encode


@dataclass(frozen=True)
class _Known(Registry):
    """Schemas that were asked for before."""

    known: tuple[Registered, ...] = ()

    def schema(self, number: int) -> Registered:
        return self.known[number - 1]


def _avro_framed(shape: Shape) -> tuple[Format, Encode]:
    """Each version has a field of its own, which the table lacks."""
    texts, schemas = [], []
    for version in range(_VERSIONS):
        added = [{"name": f"since_{version}", "type": "int", "default": version}]
        text = {**shape.avro, "fields": [*shape.avro["fields"], *added]}
        texts.append(json.dumps(text))
        schemas.append(fastavro.parse_schema(text))

    def encode(row: dict[str, Any]) -> bytes:
        version = row["id"] % _VERSIONS
        out = io.BytesIO()
        out.write(b"\0" + (version + 1).to_bytes(4, "big"))
        fastavro.schemaless_writer(out, schemas[version], row)
        return out.getvalue()

    known = _Known("http", "nowhere", 1, known=tuple(Registered("AVRO", each) for each in texts))
    return Avro(registry=known, framing="confluent"), encode


def _protobuf_framed(shape: Shape) -> tuple[Format, Encode]:
    _, plainly = _protobuf(shape)
    texts = [
        shape.proto.rstrip().removesuffix("}") + f"  int32 since_{each} = {90 + each};\n}}\n"
        for each in range(_VERSIONS)
    ]

    def encode(row: dict[str, Any]) -> bytes:
        frame = bytes(1) + int(row["id"] % _VERSIONS + 1).to_bytes(4, "big") + bytes(1)
        return frame + plainly(row)

    known = _Known("http", "nowhere", 1, known=tuple(Registered("PROTOBUF", each) for each in texts))
    return Protobuf(ProtobufSource(registry=known)), encode


def _protobuf(shape: Shape) -> tuple[Format, Encode]:
    with tempfile.NamedTemporaryFile("w", suffix=".proto") as file:
        file.write(shape.proto)
        file.flush()
        source = ProtobufSource.of_file(Path(file.name), "Order")
    message = GetMessageClass(Messages(source.descriptors).find("Order"))
    return Protobuf(source), lambda row: bytes(message(**row).SerializeToString())


def _padded(row: dict[str, Any], encode: Encode, size: int) -> bytes:
    """The record with a longer note, so that it has as many bytes, give or take one."""
    encoded = encode(row)
    if len(encoded) >= size:
        return encoded
    return encode({**row, "note": row["note"] + "x" * (size - len(encoded))})


def _decoding(format_: Format, schema: str, batches: list[pa.BinaryArray]) -> Land:
    """Without fields, a record is its value."""
    fields = parse_schema(schema) if format_.has_fields else Schema(record_fields([VALUE]))
    decode_ = decoder_of(fields, Decoding(format_))
    messages: list[Any] = [None] * _AT_ONCE  # nothing but key, headers and timestamp is taken of them

    def decode(_: str) -> float:
        began = time.perf_counter()
        for each in batches:
            found = decode_(each, messages[: len(each)])
            if len(found.kept) != len(each):
                raise RuntimeError(f"{format_}: {found.rejects[:1]}")
        return time.perf_counter() - began

    return decode
