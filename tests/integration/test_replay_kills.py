"""A replay or a drop of dead letters is killed with SIGKILL wherever something has just changed: each letter lands or goes once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from plain_process import UNDISTURBED, PlainProcess
from replayed import Replayed, event, row

from landonce.engine.dead_letters import committed, files, letters_in
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PLACES = {
    "sqlite": (
        "prepare.before", "prepare.after", "read.after", "flip.after", "rows.after", "landed.after", "commit.after", "record.before",
        "record.after", "letters.removing", "letters.removed",
    ),
    "clickhouse": (
        "prepare.before", "prepare.after", "probe.after", "send.before", "send.after", "commit.after", "record.before", "record.after",
        "letters.removing", "letters.removed",
    ),
    "iceberg": ("prepare.after", "files.after", "attempt.before", "attempt.after", "record.after", "letters.removing"),
    "fan-out": ("prepare.after", "attempt.after", "record.before", "record.after"),
    "postgres": ("prepare.after", "rows.after", "landed.after", "record.after", "letters.removing"),
}  # fmt: skip
WITHIN = 120.0


@pytest.fixture
def make(
    kafka: LocalKafka,
    request: pytest.FixtureRequest,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str, int], Replayed]:
    """A pipeline with so many dead letters, from offset 0 on, and as many good records after them."""

    def made(kind: str, letters: int) -> Replayed:
        server: LocalClickHouse | None = request.getfixturevalue("clickhouse") if kind == "clickhouse" else None
        site = Replayed(kind, kafka, server, tmp_path, new_topic(), new_table(), capsys, monkeypatch)
        site.database = request.getfixturevalue("new_database")() if kind == "postgres" else ""
        site.write_file()
        site.send(*[b"broken"] * letters, *(event(at) for at in range(letters, 2 * letters)))
        assert site.run() == Totals(landed=letters, dead_lettered=letters)
        return site

    return made


class Site(Protocol):
    @property
    def folder(self) -> Path: ...


def fixed(site: Replayed, *offsets: int) -> Path:
    path = site.folder / f"fixed-{offsets[0]}.jsonl"
    lines = ({"topic": site.topic, "partition": 0, "offset": each, "value": event(each).decode()} for each in offsets)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def start(
    site: Site, *words: str, place: str = "", skip: int = 0, go: Path | None = None, script: str = ""
) -> tuple[PlainProcess, Path]:
    """`skip`: how often it passes the place first. `go`: it goes on from there once this file exists. `script`: instead of `landonce`."""
    reached, log = site.folder / f"reached-{place}", site.folder / "printed"
    reached.unlink(missing_ok=True)
    stopped = {"LANDONCE_FAILPOINT": place, "LANDONCE_FAILPOINT_FILE": str(reached)} if place else {}
    stopped |= {"LANDONCE_FAILPOINT_SKIP": str(skip)} if skip else {}
    stopped |= {"LANDONCE_FAILPOINT_WAIT_FOR": str(go)} if go is not None else {}
    environment = {**os.environ, **UNDISTURBED, **stopped}
    return PlainProcess(words, environment, log, folder=site.folder, script=script), reached


def stopped_at(site: Site, place: str, *words: str, **more: Any) -> PlainProcess:
    process, reached = start(site, *words, place=place, **more)
    until = time.monotonic() + WITHIN
    while not reached.exists():
        assert process.poll() is None, (site.folder / "printed").read_text()[-3000:]
        assert time.monotonic() < until, f"{place} was not reached"
        time.sleep(0.02)
    return process


def killed_at(site: Site, place: str, *words: str, **more: Any) -> None:
    process = stopped_at(site, place, *words, **more)
    assert process.pid is not None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.mark.parametrize("kind", PLACES)
def test_killed_wherever_something_changes_every_letter_lands_once(
    make: Callable[[str, int], Replayed], kind: str
) -> None:
    places = PLACES[kind]
    site = make(kind, len(places))
    for offset, place in enumerate(places):
        path = fixed(site, offset)
        words = ("dead", "replay", "pipe.yaml", "--with", path.name, "--yes")
        killed_at(site, place, *words)
        known = site.state().pending is not None or offset in site.offsets()
        if offset % 2 and known:
            path.unlink()
            words = ("run", "pipe.yaml", "--once")
        process, _ = start(site, *words)
        assert process.wait(WITHIN) in (0, 1), (site.folder / "printed").read_text()[-3000:]
        done = [row(at) for at in range(2 * len(places)) if at <= offset or at >= len(places)]
        assert site.rows() == done, place
        assert site.letters() == list(range(offset + 1, len(places))), place
        assert site.state().totals == Totals(landed=len(done), dead_lettered=len(site.letters())), place
        assert site.state().positions[0][1].committed == 2 * len(places)
    said = site.landonce("verify", "--values")
    assert said.code == 0, said.out
    assert site.left() == []


IN_TWO_PLANS = """
from landonce.cli import main
from landonce.engine import replay

replay._LETTERS = 4
main()
"""


def test_killed_between_two_plans_and_between_the_files_of_one(make: Callable[[str, int], Replayed]) -> None:
    """Letters in four files land in two plans; one stays. Then letters in three files are dropped."""
    site = make("sqlite", 2)
    for _ in range(3):
        site.send(b"broken", b"broken")
        assert site.run() == Totals(dead_lettered=2)
    assert [len(list(letters_in(path))) for path in files(site.dead, "pipe")] == [2] * 4
    script = site.folder / "in_two_plans.py"
    script.write_text(IN_TWO_PLANS)
    path = fixed(site, 0, 1, 4, 5, 6, 7, 8)
    with path.open("a") as file:
        file.write(json.dumps({"topic": site.topic, "partition": 0, "offset": 9, "value": "broken again"}) + "\n")
    words = ("dead", "replay", "pipe.yaml", "--with", path.name, "--yes")

    killed_at(site, "prepare.before", *words, script=str(script), skip=1)
    assert (site.letters(), len(files(site.dead, "pipe"))) == ([6, 7, 8, 9], 2), "the first plan is done"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[4:]))
    killed_at(site, "letters.file", *words, script=str(script))
    assert site.state().totals == Totals(landed=9, dead_lettered=1)
    assert (site.letters(), len(files(site.dead, "pipe"))) == ([8, 9], 1), "one of two files is gone"
    killed_at(site, "letters.file", "run", "pipe.yaml", "--once")
    assert (site.letters(), bool(site.left())) == ([9], True)
    site.run()
    assert (site.rows(), site.letters(), site.left()) == ([row(at) for at in range(9)], [9], [])
    assert site.landonce("verify", "--values").code == 0

    for _ in range(2):
        site.send(b"broken", b"broken")
        assert site.run() == Totals(dead_lettered=2)
    killed_at(site, "letters.file", "dead", "drop", "pipe.yaml", "--yes", skip=1)
    assert site.letters() == [12, 13], "two of three files are gone"
    site.run()
    assert (site.letters(), site.left()) == ([], [])
    assert site.state().totals == Totals(landed=9, filtered=5)
    assert site.landonce("verify", "--values").code == 0


def test_a_driver_that_wakes_up_late_erases_nothing_that_people_did(make: Callable[[str, int], Replayed]) -> None:
    """It has written the files of a batch, and sleeps. Another one commits the batch, and a person replays its letter."""
    site = make("iceberg", 1)
    site.send(b"broken", event(3))
    go = site.folder / "go"
    zombie = stopped_at(site, "files.after", "run", "pipe.yaml", "--once", go=go)
    assert site.run() == Totals(landed=1, dead_lettered=1)
    assert site.landonce("dead replay", "--with", fixed(site, 2), "--yes").code == 0
    go.touch()
    assert zombie.wait(WITHIN) == 4, (site.folder / "printed").read_text()[-3000:]
    assert (site.rows(), site.letters()) == ([row(1), row(2), row(3)], [0])
    said = site.landonce("verify", "--values")
    assert said.code == 0, said.out


def test_a_drop_that_is_killed_is_done_or_not(make: Callable[[str, int], Replayed]) -> None:
    """The command is run again, and every letter is dropped and counted once."""
    places = ("drop.listed", "drop.recorded", "letters.removed")
    site = make("sqlite", len(places) + 1)
    for offset, place in enumerate(places):
        words = ("dead", "drop", "pipe.yaml", f"{site.topic}:0:{offset}", "--yes")
        killed_at(site, place, *words)
        process, _ = start(site, *words)
        assert process.wait(WITHIN) == (0 if place == "drop.listed" else 1), "there is none any more"
        assert site.letters() == list(range(offset + 1, 4)), place
        assert site.state().totals == Totals(landed=4, dead_lettered=3 - offset, filtered=offset + 1), place
        assert site.left() == []
    said = site.landonce("verify", "--json")
    assert (said.code, said.json["totals"]["filtered"]) == (0, 3)


def test_control_a_script_that_is_killed_lands_a_letter_twice(make: Callable[[str, int], Replayed]) -> None:
    """What people did before: insert the value, then delete the letter. The same judge sees the copy."""
    site = make("clickhouse", 1)
    assert site.clickhouse is not None

    def script(server: LocalClickHouse, *, killed: bool) -> None:
        for each in list(committed(site.dead, "pipe")):
            values = f"(0, 'b0', '{each['topic']}', {each['partition']}, {each['offset']})"
            into = f"{site.table} (id, name, _topic, _partition, _offset)"
            token = f"insert_deduplication_token = '{killed}'"
            server.ask(f"INSERT INTO {into} SETTINGS {token} VALUES {values}")
            if killed:
                return
            for path in site.dead.glob("*.jsonl"):
                path.unlink()

    script(site.clickhouse, killed=True)
    script(site.clickhouse, killed=False)
    assert site.rows() == [row(0), row(0), row(1)]
    assert site.landonce("verify").code == 1
