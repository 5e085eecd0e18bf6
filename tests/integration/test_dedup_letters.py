"""Dead letters of events that were accepted and could not be sent: their keys are taken, so the letter is what lands."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from replayed import Replayed
from test_replay_kills import killed_at

from landonce.dedup import replay as replaying
from landonce.dedup.run import run_pipeline
from landonce.engine import driver, task
from landonce.engine import replay as letters
from landonce.errors import Fenced
from landonce.local import LocalKafka
from landonce.protocol.ledger import Totals
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WIDE = 2**40
"""The table refuses it, which is found out when the event is sent."""
TABLE = (
    "CREATE TABLE events (id BIGINT NOT NULL, name TEXT, n BIGINT, _topic TEXT NOT NULL, _partition INTEGER NOT NULL, "
    f"_offset BIGINT NOT NULL, UNIQUE (_topic, _partition, _offset), CHECK (n < {WIDE}))"
)


def order(number: int, n: int = 1, name: str = "") -> bytes:
    return json.dumps({"id": number, "name": name or f"b{number}", "n": n}).encode()


def row(number: int, name: str = "") -> tuple[int, int, int, str]:
    return 0, number, number, name or f"b{number}"


@pytest.fixture
def site(
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Replayed:
    """Events 0 to 7 are accepted, and 3 and 5 cannot be sent. 8 is no event: it was never accepted."""
    schema = "id BIGINT NOT NULL, name STRING, n BIGINT"
    made = Replayed("dedup", kafka, None, tmp_path, new_topic(), "", capsys, monkeypatch, schema)
    made.more = {"dedup": {"key": ["id"], "store": {"sqlite": "keys.db"}}}
    made.write_file()
    with closing(sqlite3.connect(tmp_path / "target.db")) as connection, connection:
        connection.execute(TABLE)
    made.send(*(order(at, WIDE if at in (3, 5) else 1) for at in range(8)), b"{")
    assert made.run() == Totals(landed=6, dead_lettered=3)
    assert made.letters() == [3, 5, 8]
    return made


def fixed(site: Replayed, **values: bytes) -> Path:
    path = site.folder / "fixed.jsonl"
    lines = [
        {"topic": site.topic, "partition": 0, "offset": int(name[1:]), "value": value.decode()}
        for name, value in values.items()
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def exact(site: Replayed) -> dict[str, Any]:
    said = site.landonce("verify", "--values", "--json")
    assert said.code == 0, said.out + said.err
    return said.json  # type: ignore[no-any-return]


def test_a_corrected_event_lands_by_its_letter_and_not_by_another_record(site: Replayed) -> None:
    """The producer's corrected record is a copy: the key is taken. The letter lands in place, once, and copies stay copies."""
    site.send(order(3, 2, "corrected"))
    assert site.run() == Totals(filtered=1)
    assert exact(site)["events"]["dead_lettered"] == 2
    said = site.landonce("dead replay", "--with", fixed(site, _3=order(3, 2, "corrected")), "--yes")
    assert said.code == 0, said.err
    assert "1 landed, 0 filtered, 0 stay dead letters" in said.out
    rows = sorted([*(row(at) for at in range(8) if at not in (3, 5)), row(3, "corrected")])
    assert (site.rows(), site.letters()) == (rows, [5, 8])
    assert exact(site)["events"] | {"landed": 7, "dead_lettered": 1, "copies": 1, "twice": 0} == exact(site)["events"]
    twice = site.landonce("dead replay", "--with", fixed(site, _3=order(3, 2, "corrected")), "--yes")
    assert (twice.code, "NothingToDo" in twice.err) == (1, True)
    site.send(order(3, 4), order(8))
    assert site.run() == Totals(landed=1, filtered=1)
    assert exact(site)["totals"]["copies"] == 2
    assert site.left() == ["pushed"]


def test_events_land_once_the_table_takes_them(site: Replayed) -> None:
    with closing(sqlite3.connect(site.folder / "target.db")) as connection, connection:
        connection.execute("ALTER TABLE events RENAME TO before")
        connection.execute(TABLE.replace("CHECK (n <", "CHECK (n <="))
        connection.execute("INSERT INTO events SELECT * FROM before")
    said = site.landonce("dead replay", "--yes")
    assert "2 landed, 0 filtered, 0 stay dead letters" in said.out, said.out + said.err
    assert (site.rows(), site.letters()) == ([row(at) for at in range(8)], [8])
    assert exact(site)["totals"]["landed"] == 8


def test_letters_of_records_that_were_never_accepted_are_produced_again(site: Replayed) -> None:
    for words in ((f"{site.topic}:0:8",), ("--with", fixed(site, _8=order(9)))):
        said = site.landonce("dead replay", *words, "--yes")
        assert (said.code, "ReplayRefused" in said.err) == (3, True), said.err
        assert "then produce the values to the topic again" in " ".join(said.err.split())
    site.send(order(9))
    assert site.run() == Totals(landed=1), "its key was not taken"


def test_a_value_with_another_key_is_another_event(site: Replayed) -> None:
    """Event 4 is in the target: the letter of 3 must not become a second row of it."""
    before = site.rows()
    said = site.landonce("dead replay", "--with", fixed(site, _3=order(4)), "--yes")
    assert (said.code, "ReplayRefused" in said.err, "has another key" in said.err) == (3, True, True), said.err
    assert (site.rows(), site.letters()) == (before, [3, 5, 8])
    site.send(order(10))
    assert site.run() == Totals(landed=1)
    exact(site)


@pytest.mark.parametrize("looks", [True, pytest.param(False, marks=pytest.mark.long)], ids=["", "control"])
def test_a_letter_whose_key_the_store_has_forgotten_does_not_land(
    site: Replayed, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuilt store knows keys of the target only. The producer's corrected record lands; the letter would be the same event again."""
    (site.folder / "keys.db").unlink()
    assert site.landonce("dedup rebuild", "--yes").code == 0
    site.send(order(3, 2, "corrected"))
    assert site.run() == Totals(landed=1)
    if not looks:
        monkeypatch.setattr(
            replaying.AcceptedEvents,
            "accepted",
            lambda _, letters: {replaying.dead_letters.place_of(each) for each in letters},
        )
    said = site.landonce("dead replay", "--with", fixed(site, _3=order(3), _5=order(5)), "--yes")
    landed = [number for _, _, number, _ in site.rows()]
    if looks:
        assert "0 landed" in said.out, said.err
        assert "2 letters were not tried: the store no longer has their keys" in " ".join(said.out.split())
        site.send(order(5))
        assert site.run() == Totals(landed=1), "what the command advises"
        assert "2 letters were not tried" in site.landonce("dead replay", "--yes").out
    assert (sorted(number for _, _, number, _ in site.rows()) == [0, 1, 2, 3, 4, 5, 6, 7]) == looks
    assert (landed.count(3) == 1) == looks


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


PLACES = (
    "prepare.before",
    "prepare.after",
    "freeze.after",
    "write.after",
    "record.before",
    "record.after",
    "letters.removing",
)


def test_killed_anywhere_a_letter_of_an_event_lands_once_as_it_was_stored(site: Replayed) -> None:
    """In turn the next command is a run, or the same replay. By then the file would reject the value, which counts until it is stored. Copies
    come all the time."""
    for at, place in enumerate(PLACES):
        number, offset, rows = 20 + at, 9 + 2 * at, site.rows()
        _convert(site, "fit")
        site.send(order(number, WIDE), order(number, 3, "copy"))
        assert site.run() == Totals(dead_lettered=1, filtered=1)
        values = fixed(site, **{f"_{offset}": order(number).replace(b": 1}", b': "1"}')})
        if place == "record.before":  # for real
            killed_at(site, place, "dead", "replay", "pipe.yaml", "--with", str(values), "--yes")
        else:
            with site.monkeypatch.context() as patched:
                for module in (driver, letters, task):
                    patched.setattr(module, "reach", _killing(place))
                with pytest.raises(Killed):
                    site.landonce("dead replay", "--with", values, "--yes")
        exact(site)
        _convert(site, "strict")
        if at % 2:
            site.run()
        else:
            assert site.landonce("dead replay", "--with", values, "--yes").code in (0, 1)
        assert site.landonce("dead list").code == 0, "what was killed after RECORD is settled"
        stored = at >= PLACES.index("freeze.after")
        assert site.rows() == [*rows, (0, offset, number, f"b{number}")][: len(rows) + stored], place
        assert (offset in site.letters()) != stored
        _convert(site, "fit")
        said = site.landonce("dead replay", "--with", values, "--yes")
        assert (said.code, "1 landed" in said.out) == ((1, False) if stored else (0, True)), place
        assert site.rows() == [*rows, (0, offset, number, f"b{number}")], place
    exact(site)
    site.send(*(order(20 + at, 4) for at in range(len(PLACES))))
    assert site.run() == Totals(filtered=len(PLACES))
    assert site.landonce("verify").code == 0
    assert site.left() == ["pushed"]


def _convert(site: Replayed, mode: str) -> None:
    """The rule of the key does not depend on it."""
    site.source = {"convert": mode}
    site.write_file()


def _killing(place: str) -> Callable[[str], None]:
    def reach(reached: str) -> None:
        if reached == place:
            raise Killed(place)

    return reach


def test_a_running_driver_ends(site: Replayed) -> None:
    """Both halves of it: otherwise the half that accepts would take the target back in the middle of the replay."""
    failed: list[BaseException] = []
    ready = threading.Event()
    stopping: list[Any] = []

    def started(driver: Any) -> None:
        stopping.append(driver.stopping)
        ready.set()

    def run() -> None:
        try:
            run_pipeline(load(site.file), ready=started)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    _until(lambda: _epochs(site) >= (2, 2))
    said = site.landonce("dead replay", "--with", fixed(site, _3=order(3)), "--yes")
    thread.join(90)
    stopping[0].set()
    assert "1 landed" in said.out, said.err
    assert [type(each) for each in failed] == [Fenced]
    assert site.run() == Totals()
    assert [number for _, _, number, _ in site.rows()] == [0, 1, 2, 3, 4, 6, 7]


def test_rows_of_letters_that_went_with_the_target_land_again(site: Replayed) -> None:
    """The target is restored with its ledger, to before the replay. The store is not: the key is known from the letter's record still."""
    shutil.copy(site.folder / "target.db", site.folder / "backup.db")
    assert "1 landed" in site.landonce("dead replay", "--with", fixed(site, _3=order(3)), "--yes").out
    rows = site.rows()
    shutil.copy(site.folder / "backup.db", site.folder / "target.db")
    for side in ("-wal", "-shm"):
        (site.folder / f"target.db{side}").unlink(missing_ok=True)
    said = site.landonce("dead replay", "--again", "--yes")
    assert "1 landed" in said.out, said.out + said.err
    assert site.rows() == rows
    assert "0 landed" in site.landonce("dead replay", "--again", "--yes").out
    site.send(order(3, 7))
    assert site.run() == Totals(filtered=1)
    exact(site)


def test_a_wrapped_sink_says_what_to_do_with_values_whose_key_is_taken(site: Replayed) -> None:
    site.kind, site.table = "wrapped", "w"
    site.write_file()
    said = site.landonce("dead replay", "--yes")
    words = " ".join(said.err.split())
    assert (said.code, "ReplayRefused" in words, "write such values to the target yourself" in words) == (3, True, True)


def _epochs(site: Replayed) -> tuple[int, int]:
    """Of the half that accepts, and of the half that sends."""
    accepting = replaying.accepting_ledger(open_parts(load(site.file))).load()
    assert accepting is not None
    return accepting.epoch, site.state().epoch


def _until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)
