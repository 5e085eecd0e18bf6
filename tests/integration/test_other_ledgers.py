"""Ledgers that are not databases: one in the memory of a process, and one that only ClickHouse can keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pipelines import SmallPipeline, landonce

from landonce.engine.pipeline import run_pipeline
from landonce.errors import ConfigError
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load, parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def test_a_ledger_in_memory_forgets_and_nothing_lands_twice(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    tmp_path: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = SmallPipeline(kafka, clickhouse, tmp_path, new_topic(), new_table())
    small.make_table()
    small.write_file(ledger={"memory": True}, dead_letters={"path": "dead"})
    small.produce(b'{"id": %d}' % number if number != 3 else b"no json" for number in range(6))
    assert run_pipeline(load(small.file), once=True) == Totals(landed=5, dead_lettered=1)
    small.produce([b'{"id": 6}'])
    assert run_pipeline(load(small.file), once=True) == Totals(landed=6, dead_lettered=1), "all of it is compared"
    rows = clickhouse.ask(f"SELECT _offset FROM {small.table} ORDER BY _offset").split()
    assert rows == ["0", "1", "2", "4", "5", "6"]
    assert len(list(tmp_path.glob("dead/*.jsonl"))) == 1
    said = landonce(capsys, monkeypatch, "check", small.file)
    assert "the position is lost when the process ends" in said.out


@pytest.mark.parametrize(
    "sink", ["sql: {url: 'sqlite:///x.db', table: t}", "iceberg: {tables: [{table: d.t}, {table: d.u}]}"]
)
def test_only_clickhouse_keeps_a_keeper_map(sink: str, tmp_path: Path) -> None:
    text = f"""
pipeline: p
source: {{kafka: {{bootstrap_servers: "localhost:9092", topics: [t]}}}}
sink: {{{sink}}}
ledger: {{keeper_map: {{path: /landonce}}}}
"""
    with pytest.raises(ConfigError, match="ledger"):
        open_parts(parse(text, tmp_path / "p.yaml"))
