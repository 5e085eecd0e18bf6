"""Records that change rows of a CollapsingMergeTree: FINAL, and sums with the sign, are what a dict is that the changes were replayed in.

A block that lands twice, or not at all, breaks the sums for good. Merges run whenever a test says so, and take rows away.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from mirrored import Mirror, crash_at
from pipelines import SmallPipeline, landonce

from landonce import errors
from landonce.engine.dead_letters import letters_in
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol import operate
from landonce.protocol.ledger import Totals
from landonce.protocol.ranges import Range
from landonce.sinks import deduplicating
from landonce.sinks.clickhouse import probe
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ENGINE = "CollapsingMergeTree(_sign)"


class Collapsing(Mirror):
    """Sums are compared, too."""

    def exact(self) -> None:
        super().exact()
        self.summed()

    def summed(self) -> None:
        """Every key has the sign 1 in all, or 0 and no values."""
        rows = self.ask("id, sum(_sign), sum(n * _sign)", "GROUP BY id")
        sums = {int(key): (int(sign), int(n)) for key, sign, n in rows if (int(sign), int(n)) != (0, 0)}
        assert sums == {key: (1, n) for key, (_, n) in self.rows.items()}


@pytest.fixture
def mirror(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> Collapsing:
    made = Collapsing(SmallPipeline(kafka, clickhouse, tmp_path, new_topic(partitions=2), new_table()), mode="debezium")
    made.write_file(engine=ENGINE)
    return made


@pytest.mark.parametrize("mode", ["debezium", pytest.param("dms", marks=pytest.mark.long)])
def test_final_and_sums_are_the_dict_after_every_batch(
    mirror: Collapsing, mode: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.mode = mode
    mirror.write_file(engine=ENGINE)
    said = landonce(capsys, monkeypatch, "check", mirror.site.file)
    assert f"ENGINE = {ENGINE}" in said.out, said.out
    for _ in range(2):
        mirror.change(150)
        assert mirror.run().landed == 150
        mirror.exact()
        mirror.merge()
        mirror.exact()
    said = landonce(capsys, monkeypatch, "check", mirror.site.file)
    assert said.code == 0, said.out
    assert "a second snapshot of the source would count twice" in said.out
    audited = landonce(capsys, monkeypatch, "verify", mirror.site.file, "--values")
    assert audited.code == 0, audited.out + audited.err
    gone = next(key for key in range(25) if key not in mirror.rows)
    for key, sign in ((gone, -1), (next(iter(mirror.rows)), 1)):
        columns = "city, n, _topic, _partition, _offset"
        mirror.site.clickhouse.ask(
            f"INSERT INTO {mirror.site.table} (id, {columns}, _sign) SELECT {key}, {columns}, {sign} FROM {mirror.site.table} LIMIT 1"
        )
        mirror.merge()
        audited = landonce(capsys, monkeypatch, "verify", mirror.site.file)
        assert audited.code != 0, "a row that was added or taken away twice is found"
        mirror.site.clickhouse.ask(
            f"ALTER TABLE {mirror.site.table} DELETE WHERE id = {gone} SETTINGS mutations_sync = 2"
        )


@pytest.mark.parametrize("place", ["send.before", "send.after", "probe.after"])
@pytest.mark.parametrize("merged", [True, pytest.param(False, marks=pytest.mark.long)])
def test_merges_in_the_middle_of_recovery(
    mirror: Collapsing, place: str, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.change(60, keys=4)
    mirror.run()
    for count in (40, 30):
        mirror.change(count, keys=4)
        with monkeypatch.context() as patch:
            crash_at("send.after" if place == "probe.after" else place, patch)
            with pytest.raises(errors.Halt):
                mirror.run()
        if merged:
            mirror.merge()
        if place == "probe.after":
            with monkeypatch.context() as patch:
                crash_at(place, patch)
                with pytest.raises(errors.Halt):
                    mirror.run()
        mirror.run()
        mirror.exact()
    assert (mirror.site.ledger().pending, mirror.site.ledger().totals.landed) == (None, 130)


@pytest.mark.parametrize("place", ["send.before", "send.after"])
@pytest.mark.parametrize("merged", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_block_that_only_deletes_is_proven_by_what_is_gone(
    mirror: Collapsing, place: str, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of it after a merge, not even a row that was taken away."""
    mirror.change(40, keys=6)
    mirror.run()
    producer = Producer({"bootstrap.servers": mirror.site.kafka.bootstrap_servers})
    for key in [each for each in mirror.rows if each % 2 == 0]:
        mirror.send(producer, key, None)
    assert producer.flush(30) == 0
    with monkeypatch.context() as patch:
        crash_at(place, patch)
        with pytest.raises(errors.Halt):
            mirror.run()
    if merged:
        mirror.merge()
    mirror.run()
    mirror.exact()
    mirror.merge()
    mirror.exact()


def test_control_a_probe_by_coordinates_alone_counts_twice(mirror: Collapsing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions that were merged away look as if they had never come, and are sent again under the next token."""
    monkeypatch.setattr(probe, "still_there", lambda *_: True)
    monkeypatch.setattr(deduplicating_token(), "_LONGEST_PLAN", 0)
    mirror.change(40, keys=6)
    mirror.run()
    producer = Producer({"bootstrap.servers": mirror.site.kafka.bootstrap_servers})
    for key in [each for each in mirror.rows if each % 2 == 0]:
        mirror.send(producer, key, None)
    assert producer.flush(30) == 0
    with monkeypatch.context() as patch:
        crash_at("send.after", patch)
        with pytest.raises(errors.Halt):
            mirror.run()
    with pytest.raises(errors.RowsNotKept):
        mirror.run()
    with pytest.raises(AssertionError):
        mirror.summed()


def deduplicating_token() -> Any:
    from landonce.sinks.clickhouse import worker

    return worker


def test_a_change_without_the_row_before_is_a_dead_letter(mirror: Collapsing) -> None:
    mirror.site.produce(
        [
            b'{"op": "u", "before": null, "after": {"id": 1, "city": "Rome", "n": 1}}',
            b'{"op": "d", "before": {"id": 1}}',
        ]
    )
    assert mirror.run().dead_lettered == 2
    (letters,) = mirror.site.dead.glob("*.jsonl")
    assert "lacks the row before" in letters.read_text()


def test_so_is_one_of_dms_and_the_reason_names_the_setting(mirror: Collapsing) -> None:
    """And one whose key changes: no row would take the old one away."""
    mirror.mode = "dms"
    mirror.write_file(engine=ENGINE)
    data, row = {"id": 1, "city": "Rome", "n": 1}, {"id": 1, "city": "Oslo", "n": 2}
    changes = (
        {"data": data, "metadata": {"operation": "insert"}},
        {"data": row, "metadata": {"operation": "update"}},
        {"data": row, "metadata": {"operation": "update"}, "before-image": {"id": 1}},
        {"data": {"id": 1}, "metadata": {"operation": "delete"}},
        {"data": {**row, "id": 2}, "metadata": {"operation": "update"}, "before-image": data},
        {"metadata": {"operation": "create-table", "record-type": "control"}},
    )
    mirror.site.produce([json.dumps(each).encode() for each in changes])
    assert mirror.run() == Totals(landed=1, dead_lettered=4, filtered=1)
    mirror.rows = {1: ("Rome", 1)}
    mirror.summed()
    reasons = [each["reason"] for path in mirror.site.dead.glob("*.jsonl") for each in letters_in(path)]
    assert sum("BeforeImageSettings with FieldName before-image and ColumnFilter all" in each for each in reasons) == 3
    assert reasons.count("the key changed in place") == 1


def test_a_lost_ledger_is_refused(mirror: Collapsing) -> None:
    mirror.change(20)
    mirror.run()
    (mirror.site.folder / "clicks.ledger").unlink()
    with pytest.raises(errors.TargetAhead, match="does not know of"):
        mirror.run()


def rows_of(added: Range) -> str:
    """What these records added."""
    return f"_sign = 1 AND _partition = {added.partition.number} AND _offset >= {added.first} AND _offset < {added.end}"


def removed_in_part(mirror: Collapsing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is pending, its blocks have landed, and somebody removed one of the rows that they added. A copy of it is in a table beside."""
    mirror.change(60, keys=12)
    mirror.run()
    mirror.change(40, keys=12)
    with monkeypatch.context() as patch:
        crash_at("send.after", patch)
        with pytest.raises(errors.Halt):
            mirror.run()
    plan, table = mirror.site.ledger().pending, mirror.site.table
    assert plan is not None
    added = [
        each for block in plan.blocks for each in block.ranges if len(mirror.ask("1", f"WHERE {rows_of(each)}")) > 1
    ]
    ((offset,),) = mirror.ask("min(_offset)", f"WHERE {rows_of(added[0])}")
    row = f"{rows_of(added[0])} AND _offset = {offset}"
    mirror.site.clickhouse.ask(f"CREATE TABLE {table}_copy AS {table} ENGINE = Memory")
    mirror.site.clickhouse.ask(f"INSERT INTO {table}_copy SELECT * FROM {table} WHERE {row}")
    mirror.site.clickhouse.ask(f"ALTER TABLE {table} DELETE WHERE {row} SETTINGS mutations_sync = 2")


def test_a_block_that_is_there_in_part_is_not_filled_up(
    mirror: Collapsing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other rows would be there twice. Once the removed ones are back, the pipeline goes on."""
    removed_in_part(mirror, monkeypatch)
    with pytest.raises(errors.PartialPresence) as halted:
        mirror.run()
    assert "fill" not in halted.value.command
    assert "put back the rows" in halted.value.command
    said = landonce(capsys, monkeypatch, "state", "fill", mirror.site.file, "--yes")
    assert said.code == 1, said.out
    assert "would count twice" in said.out + said.err
    mirror.site.clickhouse.ask(f"INSERT INTO {mirror.site.table} SELECT * FROM {mirror.site.table}_copy")
    mirror.run()
    mirror.exact()
    mirror.merge()
    mirror.exact()


@pytest.mark.parametrize("whole", [True, False])
def test_nor_is_a_plan_that_says_so(mirror: Collapsing, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """And the control: a worker that fills it up writes the rest of the block a second time."""
    removed_in_part(mirror, monkeypatch)
    ledger = open_parts(parse(mirror.site.file.read_text(), mirror.site.file)).ledger
    state = mirror.site.ledger()
    ledger.change(state, operate.fill(state, "me").new)
    if whole:
        with pytest.raises(errors.PartialPresence):
            mirror.run()
        return
    land = deduplicating.land
    monkeypatch.setattr(deduplicating, "land", lambda *given, **named: land(*given, **{**named, "whole": False}))
    with suppress(errors.Halt):
        mirror.run()
    with pytest.raises(AssertionError):
        mirror.summed()


def test_rebase_says_why_it_cannot_be(
    mirror: Collapsing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the topic is another one, only an empty table helps: then rebase works, too."""
    mirror.change(20)
    mirror.run()
    mirror.site.recreate_topic(partitions=2)
    with pytest.raises(errors.TopicRecreated):
        mirror.run()
    said = landonce(capsys, monkeypatch, "state", "rebase", mirror.site.file, "--yes")
    assert said.code == 3, said.out + said.err
    words = " ".join((said.out + said.err).split())
    assert "collapses rows" in words
    assert "ledger was probably lost" not in words
    assert "an empty table" in words
    mirror.site.clickhouse.ask(f"TRUNCATE TABLE {mirror.site.table}")
    mirror.rows.clear()
    said = landonce(capsys, monkeypatch, "state", "rebase", mirror.site.file, "--yes")
    assert said.code == 0, said.out + said.err
    mirror.change(20)
    assert mirror.run().landed == 20
    mirror.exact()


REFUSED = {
    "partitions": (f"{ENGINE} PARTITION BY id % 2 ORDER BY id", "must land whole"),
    "another key": (f"{ENGINE} ORDER BY (id, n)", "must be the key"),
    "another engine": ("ReplacingMergeTree(_version, _is_deleted) ORDER BY id", "`engine` of the file says"),
    "a TTL": (f"{ENGINE} ORDER BY id TTL at + INTERVAL 9 DAY", "take away once more"),
}


@pytest.mark.parametrize(("engine", "why"), REFUSED.values(), ids=REFUSED)
def test_tables_that_cannot_hold_it_are_refused(mirror: Collapsing, engine: str, why: str) -> None:
    mirror.site.clickhouse.ask(
        f"CREATE TABLE {mirror.site.table} (id Int64, city Nullable(String), n Int64, at DateTime DEFAULT now(), _sign Int8, _version UInt64, "
        f"_is_deleted UInt8, _topic String, _partition Int32, _offset Int64) ENGINE = {engine} "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    mirror.change(1)
    with pytest.raises(errors.TableUnfit) as refused:
        mirror.run()
    assert why in str(refused.value), refused.value


@pytest.mark.parametrize("mode", ["upsert", "operation"])
def test_changes_without_the_row_before_are_refused(mirror: Collapsing, mode: str) -> None:
    mirror.mode = mode
    mirror.write_file(engine=ENGINE)
    with pytest.raises(errors.ConfigError, match="the row before each change"):
        mirror.run()
