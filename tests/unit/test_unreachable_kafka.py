"""Brokers that cannot be reached: it is said soon, and with the reason."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from landonce.engine import pipeline, retention
from landonce.engine.observe import Silent
from landonce.errors import LandonceError, SourceUnavailable
from landonce.read.kafka.broker import Broker
from landonce.sinks.pipeline_file import parse


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ("127.0.0.1:1", "cannot be reached: .*Connection refused"),
        ("no.such.host.invalid:9092", "cannot be reached: .*resolve"),
    ],
)
def test_the_reason_is_said_within_seconds(servers: str, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=reason):
        Broker(servers, {}).survey(["clicks"])
    assert time.monotonic() - began < 8
    assert capfd.readouterr().err == "", "librdkafka's own lines"


def test_what_check_and_verify_ask_of_topics_prints_no_lines_of_librdkafka(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(retention, "_PATIENCE", 1.0)
    (finding,) = retention.Retention("127.0.0.1:1", {}).findings("clicks", {})
    assert "how long records are kept cannot be asked" in finding.what
    assert capfd.readouterr().err == ""


def test_a_run_says_it_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {
        "pipeline": "p",
        "source": {"kafka": {"bootstrap_servers": "127.0.0.1:1", "topics": ["clicks"], "schema": "id BIGINT"}},
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "clicks", "create": True}},
    }
    heard: list[str] = []

    class Listening(Silent):
        def trouble(self, what: str) -> None:
            heard.append(what)

    def no_spark(*_: object, **__: object) -> None:
        raise LandonceError("Spark is started")

    monkeypatch.setattr(pipeline, "open_session", no_spark)
    with pytest.raises(LandonceError, match="Spark is started"):
        pipeline.run_pipeline(parse(yaml.safe_dump(document), tmp_path / "p.yaml"), observer=Listening())
    assert len(heard) == 1
    assert "Connection refused" in heard[0]
    assert "tried again for 300 s" in heard[0]
