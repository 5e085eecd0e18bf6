"""`check`, `state` and `verify` know a sink of another package by what it says of itself, and give one sentence where it cannot."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from landonce.check import check_pipeline
from landonce.cli.command import operations_of
from landonce.cli.state.show import _look
from landonce.config.model import LedgerSection, Source
from landonce.engine.retention import Retention
from landonce.errors import ConfigError, NothingToDo, TableUnfit
from landonce.ledger.memory import MemoryLedger
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Extent, GroupOffsets, SourceView
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.contract import Guarantee, Sink
from landonce.sinks.operations import Before, Operations, Upkeep
from landonce.sinks.parts import Parts, open_parts
from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.promise import Promise
from landonce.sinks.run import OpenSink, Run
from landonce.sinks.section import LedgerPlace, SinkSection
from landonce.sinks.snapshot import SnapshotSink
from landonce.sinks.transactional import TransactionalSink
from landonce.verify.audit import opened_audit


@dataclass(frozen=True)
class Pigeons(Sink):
    """A sink that says nothing of itself but what it must."""

    guarantee = Guarantee.TRANSACTIONAL

    def __str__(self) -> str:
        return "pigeons"

    @property
    def identity(self) -> str:
        return "pigeons"

    def open(self, run: Run) -> OpenSink:
        raise AssertionError("check, state and verify open no sink for a run")

    def promise(self, config: Pipeline) -> Promise:
        return Promise(f"{config.pipeline} arrives", (), ())


class Outside(SinkSection):
    def to_sink(self, pipeline: str) -> Sink:
        return Pigeons()


class Beside(Outside):
    def ledger_place(self, *, named: bool) -> LedgerPlace:
        return LedgerPlace.BESIDE_ROWS


class Brokers:
    def survey(self, topics: tuple[str, ...]) -> SourceView:
        return SourceView("cluster", (("t", "id"),), ((Partition("t", 0), Extent(0, 10)),))

    def group(self, name: str, partitions: object) -> GroupOffsets:
        return GroupOffsets(0, {}, {})

    def first_times(self, positions: dict[Partition, int]) -> dict[Partition, int]:
        return dict.fromkeys(positions, 1_000)


@pytest.fixture(params=[Outside, Beside])
def parts(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    monkeypatch.setattr(Retention, "findings", lambda *_: ())
    config = Pipeline(
        pipeline="p",
        source=Source.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}}),
        sink=request.param(),
        ledger=LedgerSection(sqlite=tmp_path / "ledger"),
        dead_letters={"path": tmp_path / "dead"},  # type: ignore[arg-type]
    )
    opened = replace(open_parts(config), broker=Brokers())  # type: ignore[arg-type]
    yield opened
    opened.ledger.close()


def operations(parts: Parts) -> Operations:
    return operations_of(parts)


def test_check_says_what_can_be_said_of_any_sink(parts: Parts) -> None:
    check = check_pipeline(parts)
    assert [each.name for each in check.sections] == [
        "pipeline file", "Kafka", "ledger", "position", "Spark", "dead letters",
    ]  # fmt: skip
    assert not check.refused
    assert check.sections[3].findings[0].what == (
        "t[0] would begin at offset 0 of [0, 10): at most 10 records to deliver, 0 before that are left out; its first "
        "record is of 1970-01-01T00:00:01Z"
    )
    assert check.promise.what == "p arrives"


def test_state_shows_any_sink(parts: Parts) -> None:
    ledger = MemoryLedger("p")
    ledger.create(LedgerState("p", "lineage"))
    seen = _look(operations(replace(parts, ledger=ledger)))
    assert seen.ledger is not None
    assert seen.claimed == ()
    place = seen.kept.document
    assert place == {"target": "pigeons"} if isinstance(parts.config.sink, Beside) else "sqlite" in place


def test_verify_says_in_one_sentence_that_there_is_no_audit(parts: Parts) -> None:
    with pytest.raises(TableUnfit, match=r"^pigeons offers no audit: landonce can write to its target and cannot read"):
        opened_audit(parts).__enter__()


def test_what_a_sink_cannot_is_one_sentence(parts: Parts) -> None:
    target = operations(parts)
    with pytest.raises(NothingToDo, match="nothing to settle"):
        target.settle("block", "owner", landed=True)
    with pytest.raises(NothingToDo, match="pigeons cannot tell whether the pipeline file fits"):
        target.fingerprint()
    with pytest.raises(ConfigError, match="pigeons cannot continue where another writer stopped"):
        target.take_over(Before(), "owner")
    with pytest.raises(ConfigError, match="maintain is for Iceberg tables, and pigeons is not one"):
        target.maintain(Upkeep(), None, ())  # type: ignore[arg-type]


EXAMPLES = {
    "landonce-duckdb": ("landonce_duckdb", "DuckDb", {"path": "x.duckdb", "table": "events", "create": True}),
    "landonce-delta": ("landonce_delta", "Delta", {"table": "events", "create": True}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_table_of_another_package_is_checked_before_and_after_it_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transactional sink and a snapshot sink."""
    module, section, options = EXAMPLES[name]
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / name))
    monkeypatch.setattr(Retention, "findings", lambda *_: ())
    kafka = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "schema": "id BIGINT NOT NULL, word STRING"}
    config = Pipeline(
        pipeline="p",
        source=Source.model_validate({"kafka": kafka}),
        sink=getattr(importlib.import_module(module), section).model_validate(options),
    ).beside(tmp_path)
    parts = replace(open_parts(config), broker=Brokers())  # type: ignore[arg-type]
    sections = {each.name: each.findings for each in check_pipeline(parts).sections}
    assert "the first start creates it" in sections["table"][0].what
    assert not list(tmp_path.glob("*"))

    sink = parts.sink
    assert isinstance(sink, TransactionalSink | SnapshotSink)
    sink.open_table().create(parse_schema("id BIGINT NOT NULL, word STRING"))
    check = check_pipeline(parts)
    assert [each.name for each in check.sections][2:6] == ["ledger", "table", "records", "position"]
    assert not check.refused, check.sections
    assert operations(parts).fingerprint()
    with pytest.raises(TableUnfit, match="offers no audit"):
        opened_audit(parts).__enter__()
    parts.ledger.close()
