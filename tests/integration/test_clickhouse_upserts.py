"""Records that change rows of a ReplacingMergeTree: FINAL is what a dict is that the changes were replayed in.

The judge is a dict of what the producer sent, compared with what a plain SELECT … FINAL answers. Merges run whenever a test says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from mirrored import REPLACING, SHAPES, Mirror, Row, crash_at
from pipelines import SmallPipeline, landonce
from test_replay_kills import killed_at
from typer.testing import CliRunner

from landonce import errors
from landonce.cli import app
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.clickhouse import keyed

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def mirror(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> Mirror:
    return Mirror(SmallPipeline(kafka, clickhouse, tmp_path, new_topic(partitions=2), new_table()))


@pytest.mark.parametrize("mode", SHAPES)
def test_final_is_the_dict_after_every_batch(
    mirror: Mirror, mode: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.mode = mode
    mirror.write_file()
    for _ in range(2):
        mirror.change(120)
        assert mirror.run().landed == 120
        mirror.exact()
        mirror.merge()
        mirror.exact()
    audited = landonce(capsys, monkeypatch, "verify", mirror.site.file, "--values", "--json")
    assert audited.code == 0, audited.out + audited.err
    _, newest = max(mirror.rows.values(), key=lambda row: row[1])
    mirror.site.clickhouse.ask(
        f"ALTER TABLE {mirror.site.table} UPDATE n = -1 WHERE n = {newest} SETTINGS mutations_sync = 2"
    )
    assert landonce(capsys, monkeypatch, "verify", mirror.site.file, "--values").code != 0


def test_the_created_table_and_what_check_says_of_it(
    mirror: Mirror, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.write_file()
    before = landonce(capsys, monkeypatch, "check", mirror.site.file)
    assert f"ENGINE = {REPLACING}" in before.out, before.out
    mirror.change(20)
    mirror.run()
    (engine,) = mirror.site.clickhouse.ask(
        f"SELECT engine_full FROM system.tables WHERE name = '{mirror.site.table}'"
    ).splitlines()
    assert engine.replace("(id)", "id").startswith(f"{REPLACING} ORDER BY id"), engine
    after = landonce(capsys, monkeypatch, "check", mirror.site.file)
    assert after.code == 0, after.out
    assert "FINAL shows the last change of each id" in after.out
    assert "changes of one key come in one partition" in after.out


REFUSED = {
    "another engine": ("MergeTree ORDER BY id", "keeps the newest row"),
    "no mark of deletions": ("ReplacingMergeTree(_version) ORDER BY id", "a mark of deletions UInt8"),
    "another version": ("ReplacingMergeTree(n, _is_deleted) ORDER BY id", "needs a version UInt64"),
    "another sorting key": (f"{REPLACING} ORDER BY (id, n)", "which must be the key (id)"),
    "only a function of the key": (f"{REPLACING} ORDER BY (id % 10)", "which must be the key (id)"),
    "a partition that changes": (f"{REPLACING} PARTITION BY n % 2 ORDER BY id", "may change"),
    "a TTL": (f"{REPLACING} ORDER BY id TTL at + INTERVAL 1 DAY", "before the rows that it deletes"),
    "CLEANUP": (
        f"{REPLACING} ORDER BY id SETTINGS allow_experimental_replacing_merge_with_cleanup = 1",
        "come back to life",
    ),
}


@pytest.mark.parametrize(("engine", "why"), REFUSED.values(), ids=REFUSED)
def test_tables_in_which_final_would_not_be_the_source_are_refused(mirror: Mirror, engine: str, why: str) -> None:
    window = "non_replicated_deduplication_window = 1000"
    ends = f", {window}" if "SETTINGS" in engine else f" SETTINGS {window}"
    mirror.site.clickhouse.ask(
        f"CREATE TABLE {mirror.site.table} (id Int64, city Nullable(String), n Int64, at DateTime DEFAULT now(), _version UInt64, "
        f"_is_deleted UInt8, _topic String, _partition Int32, _offset Int64) ENGINE = {engine}{ends}"
    )
    mirror.write_file()
    mirror.change(1)
    with pytest.raises(errors.TableUnfit) as refused:
        mirror.run()
    assert why in str(refused.value), refused.value


def test_a_table_of_the_users_own_with_partitions_by_its_key(mirror: Mirror) -> None:
    """Columns that take no NULL, and nested ones, get defaults in deletions, which nobody sees."""
    mirror.site.clickhouse.ask(
        f"CREATE TABLE {mirror.site.table} (id Int64, city LowCardinality(Nullable(String)), n Int64, pair Tuple(a Int8) DEFAULT tuple(1), v UInt64, "
        "gone UInt8, _topic String, _partition Int32, _offset Int64) ENGINE = ReplacingMergeTree(v, gone) PARTITION BY id % 3 ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    mirror.mode = "operation"
    mirror.write_file(create=False)
    mirror.change(150)
    mirror.run()
    mirror.exact()


def test_the_engine_names_the_columns_that_landonce_fills(
    mirror: Mirror, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.write_file(engine="ReplacingMergeTree(v, gone)")
    said = landonce(capsys, monkeypatch, "check", mirror.site.file)
    assert said.code == 0, said.out
    mirror.change(60)
    mirror.run()
    mirror.exact()
    names = mirror.site.clickhouse.ask(f"SELECT name, type FROM system.columns WHERE table = '{mirror.site.table}'")
    assert {"v\tUInt64", "gone\tUInt8"} <= set(names.splitlines())
    assert "_version" not in names


@pytest.mark.parametrize("engine", ["ReplacingMergeTree", "ReplacingMergeTree(v)", "ReplacingMergeTree(_offset, gone)"])
def test_an_engine_without_a_version_and_a_mark_is_refused_by_check_and_run(
    mirror: Mirror, engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.write_file(engine=engine)
    mirror.change(1)
    said = landonce(capsys, monkeypatch, "check", mirror.site.file, "--json")
    refused = [
        each["what"] for part in said.json["sections"] for each in part["findings"] if each["level"] == "refused"
    ]
    assert any("needs a version UInt64 and a mark of deletions" in each for each in refused), said.out
    with pytest.raises((errors.TableUnfit, errors.ConfigError)):
        mirror.run()
    assert mirror.site.clickhouse.ask(f"EXISTS TABLE {mirror.site.table}").strip() == "0"


@pytest.mark.parametrize("place", ["send.before", "send.after"])
def test_merges_in_the_middle_of_recovery(mirror: Mirror, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a pending plan have landed and are merged away before anybody looks: nothing halts, nothing is sent in vain."""
    mirror.write_file()
    mirror.change(60, keys=3)
    with monkeypatch.context() as patch:
        crash_at(place, patch, times=2)
        with pytest.raises(errors.Halt):
            mirror.run()
    if place == "send.after":
        mirror.merge()
        assert mirror.ask("count()") < [[60]], "rows were merged away"
    mirror.change(30, keys=3)
    with monkeypatch.context() as patch:
        crash_at("probe.before", patch, times=1, then=mirror.merge)
        with pytest.raises(errors.Halt):
            mirror.run()
    mirror.run()
    mirror.exact()
    state = mirror.site.ledger()
    assert (state.pending, state.totals.read, state.totals.landed) == (None, 90, 90)


def test_a_stale_copy_of_every_block_never_wins(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """What resend_harmless says: all blocks are sent again under other tokens, in a wrong order, merged or not, deletions included."""
    mirror.write_file()
    mirror.change(100)
    mirror.run()
    table = mirror.site.table
    columns = "id, city, n, _version, _is_deleted, _topic, _partition, _offset"
    mirror.site.clickhouse.ask(f"CREATE TABLE {table}_copy AS {table} ENGINE = MergeTree ORDER BY _version")
    mirror.site.clickhouse.ask(f"INSERT INTO {table}_copy ({columns}) SELECT {columns} FROM {table}")
    for merged in (False, True):
        if merged:
            mirror.merge()
        for order in ("DESC", "ASC"):
            mirror.site.clickhouse.ask(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}_copy ORDER BY _version {order}"
            )
            mirror.exact()
    mirror.merge()
    mirror.exact()


def with_letters(mirror: Mirror) -> dict[int, str]:
    """Bad records of five keys, by offset with the value that a person gives each: one has no other change, one a newer one, one a newer
    deletion, one an older change and nothing newer, and one would delete. The dict of the mirror is as if they had been right at once."""
    mirror.partitions, sent = 1, Producer({"bootstrap.servers": mirror.site.kafka.bootstrap_servers})
    fixed: dict[int, str] = {}

    def letter(key: int, row: Row | None) -> None:
        fixed[mirror.number] = json.dumps(
            {"op": "u", "id": key, "city": row[0], "n": row[1]} if row else {"op": "d", "id": key}
        )
        sent.produce(mirror.site.topic, b"{", key=json.dumps({"id": key}), partition=0)
        mirror.rows.pop(key, None)
        if row:
            mirror.rows[key] = row
        mirror.number += 1

    def change(key: int, row: Row | None) -> None:
        mirror.send(sent, key, row)
        mirror.number += 1

    change(4, ("Oslo", 0))
    change(5, ("Oslo", 1))
    for key, row in ((1, ("Rome", 2)), (2, ("Rome", 3)), (3, ("Rome", 4)), (4, ("Rome", 5)), (5, None)):
        letter(key, row)
    change(2, ("Bonn", 7))
    change(3, ("Bonn", 8))
    change(3, None)
    assert sent.flush(30) == 0
    mirror.mode = "operation"
    mirror.write_file()
    totals = mirror.run()
    assert (totals.landed, totals.dead_lettered) == (5, 5)
    return fixed


def replayed(mirror: Mirror, fixed: dict[int, str]) -> list[str]:
    """The arguments of a replay with these values."""
    site, path = mirror.site, mirror.site.folder / "fixed.jsonl"
    lines = [{"topic": site.topic, "partition": 0, "offset": at, "value": value} for at, value in fixed.items()]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return ["dead", "replay", str(site.file), "--with", str(path), "--yes"]


@pytest.mark.parametrize("merged", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_letter_that_lands_late_never_wins_over_a_newer_change(mirror: Mirror, merged: bool) -> None:
    """It has the version of its own offset. Killed in the middle, replayed twice, and delivered again: FINAL is the dict."""
    mirror.mode = "operation"
    fixed = with_letters(mirror)
    verify = ["verify", str(mirror.site.file), "--values"]
    if merged:
        mirror.merge()
    assert CliRunner().invoke(app, verify).exit_code == 0
    other = CliRunner().invoke(
        app, replayed(mirror, fixed | {3: json.dumps({"op": "u", "id": 20, "city": "Rome", "n": 3})})
    )
    assert isinstance(other.exception, errors.ReplayRefused), other.output
    assert "changes another row than the record: 20, and not 2." in str(other.exception)
    with pytest.MonkeyPatch.context() as patch:
        crash_at("send.after", patch)
        assert CliRunner().invoke(app, replayed(mirror, fixed)).exit_code != 0
    if merged:
        mirror.merge()
    for _ in range(2):
        done = CliRunner().invoke(app, replayed(mirror, fixed))
        assert done.exit_code == 0 or isinstance(done.exception, errors.NothingToDo), done.output
        assert mirror.site.ledger().totals == Totals(landed=10)
    mirror.exact()
    audited = CliRunner().invoke(app, verify)
    assert audited.exit_code == 0, audited.output
    again = CliRunner().invoke(app, ["dead", "replay", str(mirror.site.file), "--again", "--yes"])
    assert isinstance(again.exception, errors.ReplayRefused), again.output
    assert "nobody can tell which replayed letters have lost theirs" in str(again.exception)


def test_a_replay_that_a_signal_ends_leaves_final_as_it_should_be(mirror: Mirror) -> None:
    """Again and again, each time a step later."""
    mirror.mode = "operation"
    fixed = with_letters(mirror)
    for place in ("send.after", "record.before", "letters.removed"):
        killed_at(mirror.site, place, *replayed(mirror, fixed))
    again = CliRunner().invoke(app, replayed(mirror, fixed))
    assert isinstance(again.exception, errors.NothingToDo), again.output
    assert mirror.site.ledger().totals == Totals(landed=10)
    mirror.exact()
    audited = CliRunner().invoke(app, ["verify", str(mirror.site.file), "--values"])
    assert audited.exit_code == 0, audited.output


@pytest.mark.long
def test_control_a_letter_with_a_newer_version_wins_and_undoes_changes(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.mode = "operation"
    fixed = with_letters(mirror)
    plain = keyed.versions
    monkeypatch.setattr(keyed, "versions", lambda rows: pc.add(plain(rows), pa.scalar(1000, pa.uint64())))
    assert CliRunner().invoke(app, replayed(mirror, fixed)).exit_code == 0
    assert mirror.found() == {1: ("Rome", 2), 2: ("Rome", 3), 3: ("Rome", 4), 4: ("Rome", 5)} != mirror.rows


def test_back_with_rows_kept(mirror: Mirror) -> None:
    """Changes that are made again have their old versions; a letter that was replayed is no letter again while its row is there."""
    mirror.mode = "operation"
    fixed = with_letters(mirror)
    assert CliRunner().invoke(app, replayed(mirror, fixed)).exit_code == 0
    seek = ["state", "seek", str(mirror.site.file), "--to", "earliest", "--yes"]
    removing = CliRunner().invoke(app, [*seek, "--remove-rows"])
    assert isinstance(removing.exception, errors.SeekRefused), removing.output
    done = CliRunner().invoke(app, seek)
    assert done.exit_code == 0, done.output
    assert mirror.site.ledger().totals == Totals()
    forwards = CliRunner().invoke(app, ["state", "seek", str(mirror.site.file), "--to", "latest", "--yes"])
    assert "Counted again" in forwards.output
    assert mirror.site.ledger().totals == Totals(landed=10)
    audited = CliRunner().invoke(app, ["verify", str(mirror.site.file), "--values"])
    assert audited.exit_code == 0, audited.output
    assert CliRunner().invoke(app, seek).exit_code == 0
    mirror.run()
    mirror.exact()
    assert mirror.site.ledger().totals == Totals(landed=10)
    audited = CliRunner().invoke(app, ["verify", str(mirror.site.file), "--values"])
    assert audited.exit_code == 0, audited.output
    mirror.change(40)
    mirror.run()
    mirror.merge()
    assert CliRunner().invoke(app, seek).exit_code == 0
    mirror.run()
    assert mirror.found() == mirror.rows
    totals = mirror.site.ledger().totals
    assert (totals.read, totals.filtered) == (50, 0)
    audited = CliRunner().invoke(app, ["verify", str(mirror.site.file), "--values"])
    assert audited.exit_code == 0, audited.output


def test_control_a_merge_with_cleanup_brings_a_deleted_row_back(mirror: Mirror) -> None:
    """Why such tables are refused: the mark of the deletion is gone, and the row that it deleted is sent again."""
    ask, table = mirror.site.clickhouse.ask, f"{mirror.site.table}_c"
    ask(
        f"CREATE TABLE {table} (id Int64, _version UInt64, _is_deleted UInt8) ENGINE = {REPLACING} ORDER BY id "
        "SETTINGS allow_experimental_replacing_merge_with_cleanup = 1"
    )
    for row in ("(1, 1, 0)", "(1, 2, 1)"):
        ask(f"INSERT INTO {table} VALUES {row}")
    ask(f"OPTIMIZE TABLE {table} FINAL CLEANUP")
    ask(f"INSERT INTO {table} VALUES (1, 1, 0)")
    assert ask(f"SELECT count() FROM {table} FINAL").strip() == "1"


def test_control_without_the_version_final_is_not_the_source(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one plan land in any order. With equal versions the last one that came wins."""
    monkeypatch.setattr(keyed, "versions", lambda rows: pa.array([0] * rows.num_rows, pa.uint64()))
    mirror.write_file()
    mirror.change(60, keys=3)
    with monkeypatch.context() as patch:
        crash_at("send.before", patch)
        with pytest.raises(errors.Halt):
            mirror.run()
    mirror.run()
    assert mirror.found() != mirror.rows


def test_a_topic_that_is_created_again_wins_over_the_old_one(
    mirror: Mirror, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets begin at zero again; its rows have a later label, and with it higher versions."""
    mirror.write_file()
    mirror.change(80)
    mirror.run()
    for _ in range(2):
        mirror.site.recreate_topic(partitions=2)
        mirror.change(30)
        with pytest.raises(errors.TopicRecreated):
            mirror.run()
        assert landonce(capsys, monkeypatch, "state", "rebase", mirror.site.file, "--yes").code == 0
        mirror.run()
        mirror.exact()
    labels = [label for (label,) in mirror.ask("DISTINCT _topic", "ORDER BY _version")]
    assert labels[0] == mirror.site.topic
    assert labels[2].endswith(".2"), labels
    audited = landonce(capsys, monkeypatch, "verify", mirror.site.file, "--values")
    assert audited.code == 0, audited.out + audited.err
    (mirror.site.folder / "clicks.ledger").unlink()
    with pytest.raises(errors.TargetAhead, match="never replaces one of the newer"):
        mirror.run()


def test_a_lost_ledger_changes_nothing(mirror: Mirror) -> None:
    """The table is compared with the topic; what merges removed is not missing."""
    mirror.write_file()
    mirror.change(100, keys=5)
    mirror.run()
    mirror.merge()
    (mirror.site.folder / "clicks.ledger").unlink()
    mirror.change(10, keys=5)
    mirror.run()
    mirror.exact()


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        ({"key": []}, "go together"),
        ({"mode": "insert"}, "go together"),
        ({"mode": "insert", "key": []}, "changes: needs"),
        ({"key": "nobody"}, "not in the schema"),
    ],
)
def test_a_key_that_names_no_row_is_refused(mirror: Mirror, sink: dict[str, Any], why: str) -> None:
    mirror.write_file(**sink)
    mirror.change(1)
    with pytest.raises(errors.ConfigError, match=why):
        mirror.run()
    assert mirror.site.clickhouse.ask(f"EXISTS TABLE {mirror.site.table}").strip() == "0"
