"""Which row a record changes: by its value, or else by its Kafka key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from landonce.config.source import Convert
from landonce.read.changes import Changes
from landonce.read.decoding import Decoding, Identities, conversions_of
from landonce.read.formats.text.plain import Plain
from landonce.read.schema.fields import Field, Schema

SCHEMA = Schema((Field("id", pa.int64()), Field("city", pa.string()), Field("n", pa.int32(), required=True)))


@dataclass(frozen=True)
class Sent:
    """A record as Kafka's client gives it."""

    body: bytes | None
    named: bytes | None = None

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 0, -1

    def key(self) -> bytes | None:
        return self.named

    def value(self) -> bytes | None:
        return self.body

    def headers(self) -> None:
        return None


def of(changes: Changes, *records: Sent, key: tuple[str, ...] = ("id",), decoding: Decoding | None = None) -> list[Any]:
    return Identities(SCHEMA, decoding or Decoding(), key, changes).of(records)


def test_the_value_tells_it_though_the_record_cannot_land() -> None:
    upsert = Changes("upsert")
    assert of(upsert, Sent(b'{"id": 1, "n": "many"}'), Sent(b'{"id": 2}', b"7"), Sent(b"{", b'{"id": 3}')) == [
        (1,),
        (2,),
        (3,),
    ]
    assert of(upsert, Sent(b'{"id": "1"}', b"4"), Sent(None, b"5"), Sent(b"{"), Sent(b"{", b"x")) == [
        (4,),
        (5,),
        None,
        None,
    ]
    assert of(upsert, Sent(b'{"id": 1, "city": "Rome"}'), Sent(b"{", b"1"), key=("id", "city")) == [(1, "Rome"), None]
    assert of(upsert) == []


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        (Changes("operation"), {"op": "u", "id": 1, "n": "many"}),
        (Changes("debezium"), {"op": "u", "before": None, "after": {"id": 1, "n": "many"}}),
        (Changes("debezium"), {"op": "d", "before": {"id": 1}, "after": None}),
        (Changes("dms"), {"data": {"id": 1}, "metadata": {"operation": "update", "record-type": "data"}}),
    ],
)
def test_every_way_to_say_what_changed(changes: Changes, value: dict[str, Any]) -> None:
    assert of(changes, Sent(json.dumps(value).encode(), b"9"), Sent(b"[]", b'{"id": 9}'), Sent(b"[]")) == [
        (1,),
        (9,),
        None,
    ]


def test_keys_without_fields_tell_nothing() -> None:
    decoding = Decoding(keys=Plain(text=True))
    assert of(
        Changes("debezium"), Sent(b'{"op": "c", "after": {"id": 1}}', b"9"), Sent(b"{", b"9"), decoding=decoding
    ) == [(1,), None]


def test_a_time_that_python_does_not_know_is_a_key() -> None:
    long_ago = Schema((Field("at", pa.timestamp("us", "UTC")),))
    decoding = Decoding(convert=conversions_of(Convert.model_validate({"fields": {"at": {"epoch": "s"}}})))
    found = Identities(long_ago, decoding, ("at",), Changes("upsert")).of([Sent(b'{"at": 1000000000000}')])
    assert found == [(10**18,)]
