"""`epoch` and `empty` of `convert`, for records of Avro and Protobuf, whose schemas say what their values are."""

from __future__ import annotations

import io
import json
from datetime import datetime, timezone
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass

from landonce.config.convert import Convert
from landonce.protocol.reasons import Code
from landonce.read.convert.decode import fitted
from landonce.read.decoding import conversions_of
from landonce.read.formats import Decoded, Format
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.avro.schema import fingerprint
from landonce.read.formats.protobuf.format import Protobuf
from landonce.read.formats.protobuf.source import Messages, ProtobufSource, compile_text
from landonce.read.registry import Registered, Registry
from landonce.read.schema.ddl import parse_schema

UTC = timezone.utc
AT = datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
MS = 1_700_000_000_250
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; int64 at = 2; string note = 3; repeated int64 seen = 4; bytes raw = 5; }'
SCHEMA = "id BIGINT NOT NULL, at TIMESTAMP, note STRING, seen ARRAY<TIMESTAMP>, raw BINARY"
CONVERT = {
    "fields": {"at": {"epoch": "ms"}, "note": {"empty": None}, "seen[]": {"epoch": "ms"}, "raw": {"empty": None}}
}


def schema_of(at: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": "long",
        "at": ["null", at],
        "note": ["null", "string"],
        "seen": {"type": "array", "items": at},
        "raw": "bytes",
    }
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": type_} for name, type_ in fields.items()],
    }


COUNTED, TIMED = schema_of("long"), schema_of({"type": "long", "logicalType": "timestamp-millis"})
TIMED["fields"].reverse()  # a fingerprint knows no logical types
AVRO = Avro((json.dumps(COUNTED), json.dumps(TIMED)), framing="single-object")


def body(schema: dict[str, Any], **fields: Any) -> bytes:
    out = io.BytesIO(b"")
    out.write(b"\xc3\x01" + fingerprint(json.dumps(schema)))
    row = {"id": 1, "at": None, "note": None, "seen": [], "raw": b"", **fields}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def decoded(format_: Format, values: list[bytes], *, schema: str = SCHEMA, convert: Any = CONVERT) -> Decoded:
    rules = conversions_of(Convert.model_validate(convert))
    decoder = fitted(format_, rules).decoder(parse_schema(schema), max_record_bytes=2**20)
    return decoder.decode(pa.array(values, pa.binary()))


def test_avro_integers_become_times_and_empty_texts_null() -> None:
    """Also beside records of a writer whose schema says that they are times."""
    values = [
        body(COUNTED, at=MS, note="", seen=[MS, 0], raw=b""),
        body(TIMED, id=2, at=AT, note="x", seen=[AT], raw=b"\0"),
        body(COUNTED, id=3, at=None, note=" ", seen=[]),
        body(COUNTED, id=4, at=2**62),
    ]
    found = decoded(AVRO, values)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert found.table.to_pylist() == [
        {"id": 1, "at": AT, "note": None, "seen": [AT, epoch], "raw": None},
        {"id": 2, "at": AT, "note": "x", "seen": [AT], "raw": b"\0"},
        {"id": 3, "at": None, "note": " ", "seen": [], "raw": None},
    ]
    assert found.kept.tolist() == [0, 1, 2]
    assert [(each.index, str(each.reason)) for each in found.rejects] == [
        (3, "field 'at' is out of the range of TIMESTAMP")
    ]


def debezium(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "connect.name": f"io.debezium.time.{name}"}


def test_a_writers_own_unit_counts_more_than_an_epoch() -> None:
    """Debezium's times too, in a record with integers that have no unit."""
    types = {
        "id": "long",
        "micros": debezium("long", "MicroTimestamp"),
        "nanos": ["null", debezium("long", "NanoTimestamp")],
        "day": debezium("int", "Date"),
        "plain": "long",
        "seen": {"type": "array", "items": ["int", debezium("long", "MicroTimestamp")]},
        "raw": debezium("long", "MicroTimestamp"),
    }
    schema = {"type": "record", "name": "Row", "fields": [{"name": k, "type": v} for k, v in types.items()]}
    row = {"id": 1, "micros": MS * 1000, "nanos": MS * 10**6, "day": 19_675, "plain": MS, "raw": MS}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {**row, "seen": []})
    value = out.getvalue()
    columns = (
        "id BIGINT, micros TIMESTAMP, nanos TIMESTAMP, day DATE, plain TIMESTAMP, seen ARRAY<TIMESTAMP>, raw BIGINT"
    )
    found = decoded(Avro((json.dumps(schema),)), [value], schema=columns, convert={"default": {"epoch": "ms"}})
    assert found.table.to_pylist() == [
        {"id": 1, "micros": AT, "nanos": AT, "day": AT.date(), "plain": AT, "seen": [], "raw": MS}
    ]


def test_an_epoch_inside_structs_and_maps() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": "long"}, {"name": "n", "type": "long"}]}
    fields = [
        {"name": "s", "type": inner},
        {"name": "l", "type": {"type": "array", "items": "I"}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
    ]
    schema = {"type": "record", "name": "Row", "fields": fields}
    out = io.BytesIO()
    pair = {"at": MS, "n": MS}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"s": pair, "l": [pair], "m": {"k": MS}})
    part = "STRUCT<at: TIMESTAMP, n: BIGINT>"
    found = decoded(
        Avro((json.dumps(schema),)),
        [out.getvalue()],
        schema=f"s {part}, l ARRAY<{part}>, m MAP<STRING, TIMESTAMP>",
        convert={"default": {"epoch": "ms"}},
    )
    right = {"at": AT, "n": MS}
    assert found.table.to_pylist() == [{"s": right, "l": [right], "m": [("k", AT)]}]


def test_a_damaged_record_is_called_so() -> None:
    """It is not called a record of another type, by whichever schema it was written."""
    values = [body(COUNTED, at=MS, raw=b"abc")[:-1], body(TIMED, at=AT, raw=b"abc")[:-1]]
    rejects = decoded(AVRO, values).rejects
    assert [each.reason.code for each in rejects] == [Code.MALFORMED] * 2
    assert str(rejects[0].reason) == "field 'raw' is cut off: the record ends inside it"


def test_a_damaged_message_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a registry, where one message has an integer for a time, and another a Timestamp."""
    texts = {
        1: 'syntax = "proto3"; message Order { int64 id = 1; int64 at = 2; string note = 3; }',
        2: 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        "message Order { int64 id = 1; google.protobuf.Timestamp at = 2; string note = 3; }",
    }
    monkeypatch.setattr(Registry, "schema", lambda _, number: Registered("PROTOBUF", texts[number]))
    format_ = Protobuf(ProtobufSource(registry=Registry("http", "nowhere", 1)))
    heads = [b"\0\0\0\0" + bytes([number]) + b"\0" for number in (1, 2)]
    counted = GetMessageClass(Messages(compile_text(texts[1], {})).find("Order"))(id=1, at=MS, note="abc")
    timed = GetMessageClass(Messages(compile_text(texts[2], {})).find("Order"))(id=2, note="abc")
    timed.at.FromDatetime(AT)
    whole = [head + each.SerializeToString() for head, each in zip(heads, (counted, timed), strict=True)]
    columns = "id BIGINT, at TIMESTAMP, note STRING"
    assert [each["at"] for each in decoded(format_, whole, schema=columns).table.to_pylist()] == [AT, AT]
    rejects = decoded(format_, [each[:-1] for each in whole], schema=columns).rejects
    assert [each.reason.code for each in rejects] == [Code.MALFORMED] * 2


def test_protobuf_integers_become_times_and_its_empty_texts_null() -> None:
    source = ProtobufSource(compile_text(PROTO, {}), "Order")
    message = GetMessageClass(Messages(source.descriptors).find("Order"))
    values = [message(id=1, at=MS, seen=[MS]).SerializeToString(), message(id=2, at=0, note="x").SerializeToString()]
    with pytest.raises(TypeError, match="cannot become TIMESTAMP"):
        decoded(Protobuf(source), values, convert="strict")
    rows = decoded(Protobuf(source), values).table.to_pylist()
    assert rows[0] == {"id": 1, "at": AT, "note": None, "seen": [AT], "raw": None}
    assert rows[1]["note"] == "x"


def test_without_the_options_an_integer_is_no_time_and_an_empty_text_stays() -> None:
    """The control."""
    assert len(decoded(AVRO, [body(COUNTED, at=MS)], convert="strict").rejects) == 1
    found = decoded(AVRO, [body(COUNTED, note="")], schema="id BIGINT, note STRING", convert="strict")
    assert found.table.to_pylist() == [{"id": 1, "note": ""}]


def test_what_is_required_is_missing_where_it_is_empty() -> None:
    found = decoded(AVRO, [body(COUNTED, note=""), body(COUNTED, note="x")], schema="id BIGINT, note STRING NOT NULL")
    assert [str(each.reason) for each in found.rejects] == ["missing required field 'note'"]


@pytest.mark.parametrize("convert", ["fit", {"fields": {"id": "fit", "note": {"empty": None}}}])
def test_fit_alone_is_refused(convert: Any) -> None:
    with pytest.raises(ValueError, match="only the options `epoch` and `empty`"):
        decoded(AVRO, [], convert=convert)


def test_the_options_for_all_fields() -> None:
    found = decoded(AVRO, [body(COUNTED, at=MS, note="")], convert={"default": {"epoch": "ms", "empty": None}})
    assert found.table.to_pylist()[0]["at"] == AT
    assert found.table.to_pylist()[0]["note"] is None
