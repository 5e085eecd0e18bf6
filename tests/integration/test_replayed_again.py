"""What people did to dead letters, when the target goes back: nothing is lost, nothing lands twice, and `verify` stays exact."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pipelines import SmallPipeline
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from replayed import Replayed, event, row
from test_replay_kills import killed_at
from typer.testing import CliRunner

from landonce.cli import app
from landonce.cli import letters as commands
from landonce.engine import driver
from landonce.engine import replay as replaying
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks import operations

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BAD, BROKEN = b'{"id": "3", "name": "own"}', b'{"id": 5, "name": "b5"'
"""Lands with `convert: fit`, as another row than the one that a person makes of it; never lands."""
OWN, FIXED = (0, 3, 3, "own"), row(3)
Make = Callable[[str], Replayed]


@pytest.fixture
def make(
    kafka: LocalKafka,
    request: pytest.FixtureRequest,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    """A pipeline that has landed records 0 to 7; 3 and 5 are dead letters."""

    def made(kind: str) -> Replayed:
        server: LocalClickHouse | None = request.getfixturevalue("clickhouse") if kind == "clickhouse" else None
        site = Replayed(kind, kafka, server, tmp_path, new_topic(), new_table(), capsys, monkeypatch)
        site.write_file()
        site.send(*(event(at) if at not in (3, 5) else {3: BAD, 5: BROKEN}[at] for at in range(8)))
        assert site.run() == Totals(landed=6, dead_lettered=2)
        if server is not None:
            server.ask(f"SYSTEM START MERGES {site.table}")  # a mutation waits for them
        return site

    return made


def lenient(site: Replayed) -> None:
    """The value of record 3 lands as it is from now on."""
    site.source = {"convert": "fit"}
    site.write_file()


def edited(site: Replayed, **values: bytes) -> Path:
    """All letters as `dead export` writes them, some with other values."""
    path = site.folder / "fixed.jsonl"
    path.unlink(missing_ok=True)
    assert site.landonce("dead export", "--to", path).code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        value = values.get(f"_{line['offset']}")
        line["value"] = value.decode() if value is not None else line["value"]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def exact(site: Replayed, **counts: int) -> None:
    said = site.landonce("verify", "--values", "--json")
    assert said.code == 0, said.out + said.err
    assert {name: said.json["totals"][name] for name in counts} == counts


def done(site: Replayed, *arguments: object) -> str:
    said = site.landonce(*arguments)
    assert said.code == 0, said.out + said.err
    return said.out


def but(*offsets: int) -> list[tuple[int, int, int, str]]:
    return [row(at) for at in range(8) if at not in offsets]


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


@contextmanager
def killing(site: Replayed, step: str) -> Iterator[None]:
    """What is done here is cut short at a step, as by a kill."""

    def reach(place: str) -> None:
        if place == step:
            raise Killed(place)

    with site.monkeypatch.context() as patched:
        for module in (driver, replaying, operations, commands):
            patched.setattr(module, "reach", reach)
        with pytest.raises(Killed):
            yield


def table(site: Replayed, name: str) -> Table:
    lake = site.folder / "lake"
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    return catalog.load_table(name)


def restore_point(site: Replayed, of: str = "db.rest") -> Callable[[], None]:
    """Keeps the target as it is now, and gives what brings it back. The ledger goes back with it, but that of a fan-out. `of`: the
    table of a fan-out."""
    if site.kind == "clickhouse":
        server, name = site.clickhouse, site.table
        assert server is not None
        copied = shutil.copy(site.folder / "pipe.ledger", site.folder / "copy.ledger")
        server.ask(f"CREATE TABLE {name}_copy AS {name} ENGINE = MergeTree ORDER BY _offset")
        server.ask(f"INSERT INTO {name}_copy SELECT * FROM {name}")

        def put_back() -> None:
            shutil.copy(copied, site.folder / "pipe.ledger")
            there = f"SELECT (_partition, _offset) FROM {name}_copy"
            server.ask(
                f"ALTER TABLE {name} DELETE WHERE (_partition, _offset) NOT IN ({there}) SETTINGS mutations_sync = 2"
            )

        return put_back
    if site.kind == "sqlite":
        copy = shutil.copy(site.folder / "target.db", site.folder / "copy.db")

        def restore() -> None:
            shutil.copy(copy, site.folder / "target.db")

        return restore
    name = "db.events" if site.kind == "iceberg" else of
    snapshot = table(site, name).metadata.current_snapshot_id
    assert snapshot is not None

    def roll_back() -> None:
        with table(site, name).manage_snapshots() as change:
            change.set_current_snapshot(snapshot_id=snapshot)

    return roll_back


# The same file again.


def test_a_file_is_replayed_twice_also_where_a_value_was_not_edited(make: Make) -> None:
    site = make("sqlite")
    lenient(site)
    path = edited(site, _5=event(5))
    assert "2 landed" in done(site, "dead replay", "--with", path, "--yes")
    landed = sorted([*but(3), OWN])
    assert site.rows() == landed
    before = site.state()
    again = site.landonce("dead replay", "--with", path, "--yes")
    assert (again.code, "were replayed before" in again.err) == (1, True)
    assert (site.rows(), site.state()) == (landed, before)
    site.send(BROKEN)
    site.run()
    more = path.read_text() + edited(site, _8=event(8)).read_text()
    path.write_text(more)
    assert "1 landed" in done(site, "dead replay", "--with", path, "--yes")
    assert site.rows() == [*landed, row(8)]
    exact(site, landed=9, dead_lettered=0)


# A target that went back.


@pytest.mark.parametrize("kind", ["iceberg", "sqlite", pytest.param("clickhouse", marks=pytest.mark.long)])
def test_letters_whose_rows_went_with_the_target_land_again(make: Make, kind: str) -> None:
    """Kafka has deleted their records: nothing but the folder has them. The row of an earlier replay is there still."""
    site = make(kind)
    landed = but(3, 5)
    lenient(site)
    done(site, "dead replay", f"{site.topic}:0:3", "--yes")
    go_back = restore_point(site)
    path = edited(site, _5=event(5))
    done(site, "dead replay", "--with", path, "--yes")
    path.unlink()
    SmallPipeline.delete_records(site, 7)  # type: ignore[arg-type]
    go_back()
    site.run()
    assert site.rows() == sorted([*landed, OWN])
    assert site.letters() == []
    assert "1 landed, 0 filtered, 0 stay" in done(site, "dead replay", "--again", "--yes")
    assert site.rows() == sorted([*landed, OWN, row(5)])
    assert site.state().totals == Totals(landed=8)
    before = site.state()
    assert "0 landed" in done(site, "dead replay", "--again", "--yes")
    assert (site.rows(), site.state().totals) == (sorted([*landed, OWN, row(5)]), before.totals)
    assert site.left() == []
    exact(site)


@pytest.mark.parametrize("kind", ["iceberg", pytest.param("sqlite", marks=pytest.mark.long)])
def test_a_second_landing_is_killed_anywhere(make: Make, kind: str) -> None:
    site = make(kind)
    go_back = restore_point(site)
    done(site, "dead replay", "--with", edited(site, _3=event(3), _5=event(5)), "--yes")
    for step in ("prepare.after", "write.after", "commit.after", "record.after", "letters.removing", "letters.removed"):
        if kind == "iceberg" and step == "prepare.after":
            continue
        go_back()
        site.run()
        if step == "record.after":  # for real
            killed_at(site, step, "dead", "replay", "pipe.yaml", "--again", "--yes")
        else:
            with killing(site, step):
                site.landonce("dead replay", "--again", "--yes")
        assert site.landonce("dead replay", "--again", "--yes").code == 0
        assert site.rows() == but()
        assert (site.letters(), site.left()) == ([], [])
        assert site.state().totals == Totals(landed=8)
        exact(site, landed=8)


def test_what_cannot_land_again_is_a_letter_again(make: Make) -> None:
    site = make("sqlite")
    before = site.landonce("dead show", "--json").json["letters"]
    go_back = restore_point(site)
    lenient(site)
    done(site, "dead replay", "--with", edited(site, _5=b'{"id": "5", "name": "b5"}'), "--yes")
    go_back()
    site.source = {}
    site.write_file()
    with killing(site, "letters.removed"):
        site.landonce("dead replay", "--again", "--yes")
    assert "2 dead letters" in done(site, "dead list")
    letters = site.landonce("dead show", "--json").json["letters"]
    assert [(each["offset"], each["value"], each["key"]) for each in letters] == [
        (each["offset"], each["value"], each["key"]) for each in before
    ], "each with the record's own value"
    assert site.state().totals == Totals(landed=6, dead_lettered=2)
    exact(site, landed=6, dead_lettered=2)
    assert "there is no such dead letter" in site.landonce("dead replay", "--again", "--yes").err


def test_a_fan_out_counts_letters_as_landed_and_the_folder_holds_them_whole(make: Make) -> None:
    """Its ledger does not go back with a table."""
    site = make("fan-out")
    letters = site.landonce("dead show", "--json").json["letters"]
    go_back = restore_point(site)
    done(site, "dead replay", "--with", edited(site, _3=event(3), _5=event(5)), "--yes")
    go_back()
    site.send(event(8))
    site.run()
    said = site.landonce("dead replay", "--again", "--yes")
    assert (said.code, "ReplayRefused" in said.err, "only 0" in said.err) == (3, True, True)
    assert site.rows() == [*but(3, 5), row(8)]
    (path,) = site.dead.glob("*.replayed")
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["value"].encode() for each in kept] == [event(3), event(5)]
    for each, letter in zip(kept, letters, strict=True):
        assert {**each, **each["original"]}.items() >= letter.items()


def test_a_table_that_was_rolled_back_leaves_letters_of_other_tables_as_people_left_them(make: Make) -> None:
    """What was removed of one table is delivered again to that one alone. The same records are rejected again: one landed in the other table,
    one was dropped, and one is a letter still."""
    site = make("fan-out")
    site.send(event(8, "a"))
    site.run()
    go_back = restore_point(site, "db.a")
    site.send(BROKEN, BROKEN, BROKEN, event(12, "a"))
    site.run()
    path = edited(site, _9=event(9))
    path.write_text(next(line for line in path.read_text().splitlines() if json.loads(line)["offset"] == 9) + "\n")
    done(site, "dead replay", "--with", path, "--yes")
    done(site, "dead drop", f"{site.topic}:0:10", "--yes")
    landed = sorted([*but(3, 5), row(8, "a"), row(9), row(12, "a")])
    before = site.state()
    assert (site.rows(), site.letters()) == (landed, [3, 5, 11])
    go_back()
    assert site.rows() == [each for each in landed if each[1] != 12], "the other table keeps the row of the letter"
    site.dead_letters = {"on_bad": "halt"}
    site.write_file()
    site.run()
    assert site.state().batch > before.batch
    assert (site.rows(), site.letters(), site.state().totals) == (landed, [3, 5, 11], before.totals)
    said = site.landonce("dead replay", "--with", path, "--yes")
    assert (said.code, "were replayed before" in said.err) == (1, True)
    assert site.rows() == landed
    exact(site, landed=9, dead_lettered=3, filtered=1)


def test_rows_that_somebody_removed_do_not_come_back_unless_the_ledger_went_back_too(make: Make) -> None:
    site = make("sqlite")
    done(site, "dead replay", "--with", edited(site, _3=event(3)), "--yes")
    with closing(sqlite3.connect(site.folder / "target.db")) as connection, connection:
        connection.execute("DELETE FROM events WHERE _offset = 3")
    before = site.state().totals
    said = site.landonce("dead replay", "--again", "--yes")
    assert (said.code, "ReplayRefused" in said.err, "only 0" in said.err) == (3, True, True)
    assert (site.rows(), site.letters(), site.state().totals) == (but(3, 5), [5], before)
    assert site.landonce("dead replay", "--again", "--with", edited(site), "--yes").code == 2


# A position that goes back.


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("sqlite", ""),
        ("sqlite", "mark.after"),
        ("sqlite", "remove.after"),
        ("sqlite", "move.before"),
        ("clickhouse", ""),
    ],
)
def test_records_that_are_delivered_again_are_judged_as_what_they_are(make: Make, kind: str, step: str) -> None:
    """One letter was corrected and one dropped; then both records land or not by the present file."""
    site = make(kind)
    path = edited(site, _3=event(3))
    path.write_text(path.read_text().splitlines()[0] + "\n")
    done(site, "dead replay", "--with", path, "--yes")
    done(site, "dead drop", f"{site.topic}:0:5", "--yes")
    exact(site, landed=7, dead_lettered=0, filtered=1)
    lenient(site)
    seek = ("state seek", "--to-offset", f"{site.topic}:0:2", "--remove-rows", "--yes")
    if step:
        with killing(site, step):
            site.landonce(*seek)
        done(site, "state seek", "--resume", "--yes")
    else:
        done(site, *seek)
    site.run()
    assert site.rows() == sorted([*but(3, 5), OWN])
    assert site.letters() == [5], "dropped, delivered again, and still bad"
    exact(site, landed=7, dead_lettered=1, filtered=0)


def test_a_dropped_letter_lands_once_the_file_is_corrected_and_the_position_goes_back(make: Make) -> None:
    site = make("sqlite")
    done(site, "dead drop", f"{site.topic}:0:3", "--yes")
    lenient(site)
    done(site, "state seek", "--to", "earliest", "--remove-rows", "--yes")
    site.run()
    assert site.rows() == sorted([*but(3, 5), OWN])
    exact(site, landed=7, dead_lettered=1, filtered=0)


def test_rows_that_are_kept_keep_the_values_that_people_gave(make: Make) -> None:
    """The row of a replayed letter is recognised; the record of a dropped one is a letter again."""
    site = make("clickhouse")
    path = edited(site, _3=event(3))
    path.write_text(path.read_text().splitlines()[0] + "\n")
    done(site, "dead replay", "--with", path, "--yes")
    done(site, "dead drop", f"{site.topic}:0:5", "--yes")
    done(site, "state seek", "--to", "earliest", "--keep-rows", "--yes")
    site.run()
    assert site.rows() == but(5)
    assert site.letters() == [5]
    exact(site, landed=7, dead_lettered=1, filtered=0)


@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("clickhouse", "iceberg"))]
)
def test_a_lost_ledger_knows_nothing_of_what_was_done(make: Make, kind: str) -> None:
    """With SQLite and Iceberg the target is lost with it."""
    site = make(kind)
    path = edited(site, _5=event(5))
    path.write_text(path.read_text().splitlines()[1] + "\n")
    done(site, "dead replay", "--with", path, "--yes")
    done(site, "dead drop", f"{site.topic}:0:3", "--yes")
    for lost in ("target.db", "pipe.ledger"):
        (site.folder / lost).unlink(missing_ok=True)
    shutil.rmtree(site.folder / "lake", ignore_errors=True)
    if kind != "clickhouse":
        lenient(site)
    site.run()
    if kind == "clickhouse":
        assert (site.rows(), site.letters()) == (but(3), [3])
        exact(site, landed=7, dead_lettered=1)
    else:
        assert (site.rows(), site.letters()) == (sorted([*but(3, 5), OWN]), [5])
        exact(site, landed=7, dead_lettered=1, filtered=0)


# Letters that are dropped.


def test_letters_that_a_run_reads_again_are_not_dropped(make: Make) -> None:
    """Their account was forgotten when the position went back."""
    site = make("clickhouse")
    done(site, "state seek", "--to-offset", f"{site.topic}:0:5", "--keep-rows", "--yes")
    said = done(site, "dead drop", "--yes")
    assert "1 dropped" in said
    assert "1 letters were not dropped: a run reads their records again" in said
    assert site.letters() == [5]
    refused = site.landonce("dead drop", "--yes")
    assert (refused.code, "no letter may be dropped: a run reads" in refused.err) == (1, True)
    site.run()
    assert (site.rows(), site.letters()) == (but(3, 5), [5])
    assert site.state().totals == Totals(landed=6, dead_lettered=1, filtered=1)
    exact(site, landed=6, dead_lettered=1, filtered=1)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("iceberg", marks=pytest.mark.long)])
@pytest.mark.parametrize("following", ["dead list", "run", "dead drop"])
def test_a_drop_is_killed_anywhere_and_the_next_command_finishes_or_discards_it(
    make: Make, kind: str, following: str
) -> None:
    site = make(kind)
    dropped = 0
    for number, step in enumerate(("drop.listed", "drop.recorded", "letters.removed")):
        site.send(BROKEN)
        site.run()
        offset = 8 + number
        if (step, following) == ("drop.recorded", "run"):  # for real
            killed_at(site, step, "dead", "drop", "pipe.yaml", f"{site.topic}:0:{offset}", "--yes")
        else:
            with killing(site, step):
                site.landonce("dead drop", f"{site.topic}:0:{offset}", "--yes")
        assert len(site.left()) == 1
        recorded = step != "drop.listed"
        dropped += recorded
        letters = 2 + number + 1 - dropped
        if following == "dead list":
            assert f"{letters:,} dead letters" in done(site, "dead list")
        elif following == "run":
            site.run()
            assert site.left() == []
        else:
            again = site.landonce("dead drop", f"{site.topic}:0:{offset}", "--yes")
            assert again.code == (1 if recorded else 0), again.err
            letters, dropped = letters - (not recorded), dropped + (not recorded)
            assert site.left() == []
        assert len(site.letters()) == letters, step
        assert site.state().totals == Totals(landed=6, dead_lettered=letters, filtered=dropped), step
        exact(site, landed=6, dead_lettered=letters, filtered=dropped)


# What asks first.


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("state seek --to earliest --remove-rows", "Rows and dead letters at and above the new position are removed"),
        ("state rewind --by 1h --remove-rows", "records are delivered again"),
        ("dead replay --with fixed.jsonl", "1 dead letters land in place"),
        ("dead drop", "2 dead letters are removed from their files"),
    ],
)
def test_a_command_asks_and_does_nothing_if_the_answer_is_no(make: Make, command: str, asked: str) -> None:
    site = make("sqlite")
    path = edited(site, _3=event(3))
    path.write_text(path.read_text().splitlines()[0] + "\n")
    site.monkeypatch.chdir(site.folder)
    words = [*command.split()[:2], "pipe.yaml", *command.split()[2:]]

    def there() -> object:
        files = {each.name: each.read_bytes() for each in site.dead.iterdir()}
        return site.state(), files, site.rows(), (site.folder / "target.db").read_bytes()

    before = there()
    for answer in ("n\n", ""):
        said = CliRunner().invoke(app, words, input=answer)
        assert said.exit_code == 1, said.output
        assert asked in said.output
        assert "Do it? [y/N]" in said.output
        assert there() == before
    said = CliRunner().invoke(app, words, input="y\n")
    assert said.exit_code == 0, said.output
    if command.startswith("state"):
        assert (site.rows(), site.letters()) == ([], [])
        site.run()
        assert (site.rows(), site.letters()) == (but(3, 5), [3, 5])
    else:
        assert site.letters() == ([5] if "replay" in command else [])
    exact(site)


# Going to a time.


def test_the_position_goes_to_a_time_in_every_partition(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition begins at its first record of that time or a later one; one without such a record, after its last one."""
    moment = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=1)
    site = Replayed("sqlite", kafka, None, tmp_path, new_topic(3), "events", capsys, monkeypatch)
    site.write_file()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    minutes = {0: (-2, -1, 0, 1), 1: (-3, 5, 6), 2: (-9, -8)}
    for partition, times in minutes.items():
        for number, minute in enumerate(times):
            at = int((moment + timedelta(minutes=minute)).timestamp() * 1000)
            producer.produce(site.topic, event(number), partition=partition, timestamp=at)
    assert producer.flush(30) == 0
    site.run()
    everything = site.rows()
    assert len(everything) == 9
    said = done(site, "state seek", "--to-timestamp", f"{moment:%Y-%m-%dT%H:%M:%SZ}", "--remove-rows", "--yes")
    for part in ("[0] [2, 4).", "[1] [1, 3)."):
        assert f"Delivered again: {site.topic}{part}" in said
    assert f"{site.topic}[2]" not in said
    assert [(number, offset) for number, offset, _, _ in site.rows()] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert {each.number: at for each, at in site.state().committed().items()} == {0: 2, 1: 1, 2: 2}
    site.run()
    assert site.rows() == everything
    exact(site, landed=9)
    before, later = site.state(), moment + timedelta(minutes=30)
    refused = site.landonce("state seek", "--to-timestamp", f"{later:%Y-%m-%dT%H:%M:%SZ}", "--yes")
    assert (refused.code, "SeekRefused" in refused.err, "--to latest" in refused.err) == (3, True, True)
    assert "no position yet" not in refused.err
    assert site.state() == before
    refused = site.landonce("state seek", "--to-timestamp", f"{moment:%Y-%m-%dT%H:%M:%S}", "--yes")
    assert (refused.code, "has no time zone" in refused.err) == (2, True)
