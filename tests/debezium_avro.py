"""Change events as Debezium's Avro converter writes them: the schemas' real shape, with Connect's and Debezium's names of types."""

from __future__ import annotations

import io
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import fastavro

NAMESPACE = "shop.public.customers"


def connect(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": {"type": "long", "connect.default": 0}, "default": 0},
    {"name": "name", "type": ["null", "string"], "default": None},
    {
        "name": "credit",
        "type": [
            "null",
            connect(
                "bytes",
                "org.apache.kafka.connect.data.Decimal",
                scale=2,
                precision=10,
                logicalType="decimal",
                **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}},
            ),
        ],
        "default": None,
    },
    {"name": "born", "type": ["null", connect("int", "io.debezium.time.Date")], "default": None},
    {"name": "seen", "type": ["null", connect("long", "io.debezium.time.MicroTimestamp")], "default": None},
    {"name": "joined", "type": ["null", connect("string", "io.debezium.time.ZonedTimestamp")], "default": None},
    {"name": "wakes", "type": ["null", connect("long", "io.debezium.time.MicroTime")], "default": None},
    {"name": "active", "type": {"type": "boolean", "connect.default": True}, "default": True},
]
SCHEMA = "id BIGINT, name STRING, credit DECIMAL(10,2), born DATE, seen TIMESTAMP, joined TIMESTAMP, wakes TIME, active BOOLEAN"


def envelope(columns: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The schema of values."""
    row = {"type": "record", "name": "Value", "fields": columns or COLUMNS, "connect.name": f"{NAMESPACE}.Value"}
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [
            {"name": "version", "type": "string"},
            {"name": "connector", "type": "string"},
            {"name": "ts_ms", "type": "long"},
            {
                "name": "snapshot",
                "type": [connect("string", "io.debezium.data.Enum", **{"connect.default": "false"}), "null"],
                "default": "false",
            },
            {"name": "lsn", "type": ["null", "long"], "default": None},
        ],
        "connect.name": "io.debezium.connector.postgresql.Source",
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": NAMESPACE,
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
        "connect.name": f"{NAMESPACE}.Envelope",
    }


KEY = {
    "type": "record",
    "name": "Key",
    "namespace": NAMESPACE,
    "fields": [{"name": "id", "type": {"type": "long", "connect.default": 0}, "default": 0}],
    "connect.name": f"{NAMESPACE}.Key",
}
SOURCE = {"version": "3.0.0.Final", "connector": "postgresql", "ts_ms": 1, "snapshot": "false", "lsn": 7}


def customer(number: int, **given: Any) -> dict[str, Any]:
    """A row, as the wire holds it."""
    return {
        "id": number,
        "name": f"n{number}",
        "credit": Decimal(number) / 4,
        "born": 10_000 + number,
        "seen": 1_700_000_000_000_000 + number,
        "joined": "2026-11-18T10:00:00.5+02:00",
        "wakes": 3_600_000_000 + number,
        "active": bool(number % 2),
        **given,
    }


def row_of(given: dict[str, Any]) -> dict[str, Any]:
    """The same row, as a table holds it. The test's own arithmetic, without landonce."""
    epoch = datetime(1970, 1, 1)
    moment = datetime.fromisoformat(given["joined"]) if given["joined"] else None
    return {
        **given,
        "credit": None if given["credit"] is None else given["credit"].quantize(Decimal("0.01")),
        "born": None if given["born"] is None else date.fromordinal(date(1970, 1, 1).toordinal() + given["born"]),
        "seen": None if given["seen"] is None else epoch + _micros(given["seen"]),
        "joined": None if moment is None else (moment - moment.utcoffset()).replace(tzinfo=None),  # type: ignore[operator]
        "wakes": None if given["wakes"] is None else (epoch + _micros(given["wakes"])).time(),
    }


def _micros(value: int) -> Any:
    from datetime import timedelta

    return timedelta(microseconds=value)


def change(op: str, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1_700_000_000_000}


def written(value: Any, schema: Any) -> bytes:
    """The body. Debezium's own types are integers on the wire."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()
