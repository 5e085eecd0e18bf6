"""The README's pipeline file, program and commands work as they stand there; so do the commands of the page on audits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pages import console, run_commands, run_page

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
README = (Path(__file__).parents[2] / "README.md").read_text()
UP = ("make ", "landonce up", "landonce down")
"""Servers run already. A test of `up` and `down` is in `test_cli_state`."""


def create(kafka: LocalKafka, topic: str) -> None:
    """The Kafka of `landonce up` creates topics by itself, that of the tests does not."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=30)


def test_your_own_topic_in_ten_lines(kafka: LocalKafka, clickhouse: LocalClickHouse, tmp_path: Path) -> None:
    create(kafka, "clicks")
    (file,) = re.findall(r"```yaml\n(# clicks.yaml\n.*?)```", README, re.DOTALL)
    (program,) = re.findall(r"```python\n(# produce.py.*?)```", README, re.DOTALL)
    (url,) = re.findall(r'url: "(.*?)"', file)
    file = file.replace(url, clickhouse.url).replace("localhost:9092", kafka.bootstrap_servers)
    (tmp_path / "clicks.yaml").write_text(file)
    (tmp_path / "produce.py").write_text(program.replace("localhost:9092", kafka.bootstrap_servers))
    commands = [each for each in console(README) if not each.startswith(UP)]
    assert commands == [
        "python produce.py",
        "landonce check clicks.yaml",
        "landonce run clicks.yaml",
        "landonce verify clicks.yaml --values",
        "landonce state show clicks.yaml",
    ]
    commands[2] += " --once"
    printed = run_commands(commands, tmp_path)
    assert "1000 landed" in printed[2]
    assert clickhouse.ask("SELECT count(), uniqExact(number) FROM clicks").split() == ["1000", "1000"]
    assert "exactly once: 1000 read, 1000 landed" in printed[3]


def test_the_page_on_audits(kafka: LocalKafka, tmp_path: Path) -> None:
    create(kafka, "audited")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(20):
        producer.produce("audited", f'{{"number": {number}}}')
    assert producer.flush(30) == 0
    source = f'{{kafka: {{bootstrap_servers: "{kafka.bootstrap_servers}", topics: [audited]}}}}'
    sink = '{sql: {url: "sqlite:///target.db", table: clicks, create: true}}'
    (tmp_path / "clicks.yaml").write_text(f"pipeline: clicks\nsource: {source}\nsink: {sink}\n")
    run_commands(["landonce run clicks.yaml --once"], tmp_path, spark=False)
    assert run_page("verify.md", None, (), tmp_path, spark=False) == 4
