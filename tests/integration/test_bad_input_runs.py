"""The corpus of bad input through real runs: every record lands or is a dead letter with a reason, and no command prints a traceback."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml
from confluent_kafka import Producer
from corpus import ALL, LIMIT, Corpus, avro_frames, protobuf_frames
from corpus.avro_bodies import TEXT
from corpus.avro_frames import NEWER
from corpus.protobuf_messages import DESCRIPTORS
from deliveries import ask, letters
from plain_process import UNDISTURBED, PlainProcess
from pyiceberg.catalog import load_catalog
from running import running
from schema_registry import LocalSchemaRegistry
from sql_runs import asking_postgres

from landonce.local import LocalClickHouse, LocalKafka
from landonce.read.schema.registry import Registered

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SECTIONS: dict[str, Any] = {
    "avro": {"avro": {"schema": "order.avsc"}},
    "avro_object": {"avro": {"schema": ["order.avsc", "newer.avsc"], "framing": "single-object"}},
    "protobuf": {"protobuf": {"schema": "order.desc", "message": "Order"}},
}
"""Of formats with schemas in files."""
FROM_FILES = [each for each in ALL if not each.name.endswith("_framed")]


def run(
    kafka: LocalKafka, url: str, folder: Path, topic: str, values: list[bytes | None], **source: Any
) -> tuple[int, str]:
    """Exit code and all that `landonce run --once` prints."""
    sink = {"sql": {"url": url, "table": "t", "create": True}}
    return run_into(sink, kafka, folder, topic, [(value, None, []) for value in values], **source)


Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Value, key and headers."""


def run_into(
    sink: dict[str, Any], kafka: LocalKafka, folder: Path, topic: str, records: list[Record], **source: Any
) -> tuple[int, str]:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": 20 * 2**20})
    for value, key, headers in records:
        producer.produce(topic, value, key, partition=0, headers=headers)
    assert producer.flush(60) == 0
    document = {
        "pipeline": "bad",
        "source": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], **source}},
        "sink": sink,
        "dead_letters": {"path": "dead", "limit": "100%"},
    }
    (folder / "p.yaml").write_text(yaml.safe_dump(document))
    log = folder / "printed"
    process = PlainProcess(["run", "p.yaml", "--once"], {**os.environ, **UNDISTURBED}, log, folder=folder)
    return process.wait(100), log.read_text()


def counted(printed: str) -> tuple[int, ...]:
    """What was read, landed, dead-lettered and filtered."""
    (line,) = re.findall(r"^bad: (\d+) read = (\d+) landed \+ (\d+) dead-lettered \+ (\d+) filtered$", printed, re.M)
    return tuple(map(int, line))


@pytest.mark.parametrize("corpus", FROM_FILES, ids=lambda each: each.name)
def test_every_record_lands_or_is_a_dead_letter(
    corpus: Corpus,
    kafka: LocalKafka,
    new_database: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic = new_topic(1, max_message_bytes=str(20 * 2**20))
    source = source_of(corpus, tmp_path)
    each_is_accounted_for(corpus, source, corpus.cases, kafka, new_database(), topic, tmp_path)


REGISTERED: dict[str, dict[int, Registered]] = {
    "avro_framed": avro_frames.REGISTERED,
    "protobuf_framed": protobuf_frames.REGISTERED,
}
FILLER = '{"type": "record", "name": "Filler", "fields": []}'


@pytest.mark.parametrize("corpus", [each for each in ALL if each.name in REGISTERED], ids=lambda each: each.name)
def test_every_framed_record_lands_or_is_a_dead_letter(
    corpus: Corpus,
    kafka: LocalKafka,
    new_database: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """With a real registry, which numbers schemas as the corpus does. It refuses to hold what is no schema, and no schema can have the
    largest id: the two cases are left to `tests/unit/test_bad_input.py`."""
    with running(LocalSchemaRegistry(tmp_path / "registry")) as registry:
        held = {number for number, each in REGISTERED[corpus.name].items() if number == added(registry, each)}
        wanting = [number.to_bytes(4, "big") for number in REGISTERED[corpus.name].keys() - held]
        cases = {name: each for name, each in corpus.cases.items() if each is None or each[1:5] not in wanting}
        assert len(corpus.cases) - len(cases) <= 2
        section = {corpus.name.removesuffix("_framed"): {"registry": {"url": registry.url}}}
        source = {"format": section, "schema": corpus.schema, "max_record_bytes": LIMIT}
        each_is_accounted_for(corpus, source, cases, kafka, new_database(), new_topic(1), tmp_path)


def added(registry: LocalSchemaRegistry, schema: Registered) -> int | None:
    """The number of the schema in the registry. One that it does not hold leaves its number to a filler."""
    try:
        return registry.register(f"s{hash(schema)}", schema.text, schema.kind)
    except HTTPError:
        registry.register("filler", FILLER)
        return None


def each_is_accounted_for(
    corpus: Corpus,
    source: dict[str, Any],
    cases: Mapping[str, bytes | None],
    kafka: LocalKafka,
    url: str,
    topic: str,
    folder: Path,
) -> None:
    values = list(cases.values())
    code, printed = run(kafka, url, folder, topic, values, **source)
    assert code == 0, printed
    listed = asking_postgres(url)(f"SELECT _offset, {', '.join(corpus.plain)} FROM t")
    all_as_expected(corpus, "postgresql", cases, printed, {at: tuple(row) for at, *row in listed}, folder)


def all_as_expected(
    corpus: Corpus,
    target: str,
    cases: Mapping[str, bytes | None],
    printed: str,
    rows: Mapping[int, tuple[Any, ...]],
    folder: Path,
    more: int = 0,
) -> None:
    """Each case is a row with the values of its record, or a letter with its reason. `more` rows came after them."""
    assert "Traceback" not in printed
    read, landed, dead, filtered = counted(printed)
    assert read == len(cases) + more == landed + dead + filtered
    refused = {each["offset"]: each["reason"] for each in letters(folder / "dead")}
    reasons = {name: refused[offset] for offset, name in enumerate(cases) if offset in refused}
    assert reasons == {name: why for name, why in corpus.reasons(target).items() if name in cases}
    assert len(rows) == landed
    for at, row in corpus.fields(list(cases.values())).items():
        assert at in refused or rows[at] == row


KEYS = (None, b"", b"\xff\xfe", b"\0", b"'; DROP TABLE t; --", "ключ 😀".encode(), b"k" * 100_000, b"\\N\t\n")
HEADERS: tuple[list[tuple[str, bytes | None]], ...] = (
    [],
    [("a", None)],
    [("", b"")],
    [("ключ`'\"\\", b"\xff\0")],
    [("a", b"1"), ("a", b"2")],
    [(f"h{number}", b"x" * 100) for number in range(100)],
    [("n" * 30_000, b"\t\n")],
)


MORE = {"json": b'{"id":7}', "csv": b"7,,,,,"}
"""A good record, for every key."""


@pytest.mark.parametrize(
    "corpus",
    FROM_FILES,
    ids=lambda each: each.name,
)
def test_every_record_with_any_key_and_headers_lands_in_clickhouse_or_is_a_dead_letter(
    corpus: Corpus,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_table: Callable[[], str],
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    table, url = new_table(), clickhouse.url
    sink = {"clickhouse": {"url": url, "table": table, "create": True}}
    given = zip(corpus.cases.values(), cycle(KEYS), cycle(HEADERS), strict=False)
    more = [(MORE[corpus.name], key, []) for key in KEYS] if corpus.name in MORE else []
    records: list[Record] = [*given, *more]
    columns = ["_key", "_headers"]
    code, printed = run_into(
        sink,
        kafka,
        tmp_path,
        new_topic(1, max_message_bytes=str(20 * 2**20)),
        records,
        record_columns=columns,
        **source_of(corpus, tmp_path),
    )
    assert code == 0, printed
    rows = ask(
        url,
        f"SELECT _offset, {', '.join(f'hex(toString({each})) AS {each}_' for each in corpus.plain)}, "
        f"hex(_key) AS k, isNull(_key) AS none, mapApply((a, b) -> (hex(a), hex(b)), _headers) AS h FROM {table}",
    )
    fields = {row["_offset"]: tuple(_field(corpus, each, row[f"{each}_"]) for each in corpus.plain) for row in rows}
    all_as_expected(corpus, "clickhouse", corpus.cases, printed, fields, tmp_path, len(more))
    for row in rows:
        _, key, headers = records[row["_offset"]]
        assert (None if row["none"] else bytes.fromhex(row["k"])) == key
        assert {bytes.fromhex(name).decode() for name in row["h"]} == {name for name, _ in headers}


def _field(corpus: Corpus, name: str, digits: str | None) -> Any:
    if digits is None:
        return None
    content = bytes.fromhex(digits)
    return int(content) if name == "id" else content if corpus.name == "raw" else content.decode(errors="replace")


def source_of(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """The section, and the schemas that it names."""
    (folder / "order.avsc").write_text(TEXT)
    (folder / "newer.avsc").write_text(NEWER)
    (folder / "order.desc").write_bytes(DESCRIPTORS)
    return {
        "format": SECTIONS.get(corpus.name, corpus.format),
        "schema": corpus.schema,
        "max_record_bytes": LIMIT,
    }


@pytest.mark.parametrize(
    "corpus",
    FROM_FILES,
    ids=lambda each: each.name,
)
def test_every_record_lands_in_iceberg_or_is_a_dead_letter(
    corpus: Corpus, kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    lake, topic = tmp_path / "lake", new_topic(1, max_message_bytes=str(20 * 2**20))
    lake.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}"}
    sink = {"iceberg": {"table": "db.t", "create": True, "catalog": catalog}}
    records: list[Record] = [(value, None, []) for value in corpus.cases.values()]
    code, printed = run_into(sink, kafka, tmp_path, topic, records, **source_of(corpus, tmp_path))
    assert code == 0, printed
    table = load_catalog("landonce", **catalog).load_table("db.t")
    listed = table.scan(selected_fields=("_offset", *corpus.plain)).to_arrow().to_pylist()
    fields = {row["_offset"]: tuple(row[each] for each in corpus.plain) for row in listed}
    all_as_expected(corpus, "iceberg", corpus.cases, printed, fields, tmp_path)


def test_a_value_of_10_mb_lands_and_a_larger_one_than_the_limit_does_not(
    kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(1, max_message_bytes=str(20 * 2**20))
    values = [json.dumps({"id": size, "s": "x" * size * 10**6}).encode() for size in (0, 10, 17, 1)]
    code, printed = run(kafka, "sqlite:///t.db", tmp_path, topic, [*values], schema="id BIGINT, s STRING")
    assert (code, counted(printed)) == (0, (4, 3, 1, 0)), printed
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        found = connection.execute("SELECT id, length(s) FROM t ORDER BY _offset").fetchall()
    assert found == [(0, 0), (10, 10**7), (1, 10**6)]
    (letter,) = letters(tmp_path / "dead")
    assert letter["reason"] == f"record of {len(values[2])} bytes exceeds max_record_bytes=16777216"
