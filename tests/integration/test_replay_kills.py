"""A replay or a drop of dead letters is killed with SIGKILL wherever something has just changed: each letter lands or goes once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from plain_process import UNDISTURBED, PlainProcess
from replayed import Replayed, event, row

from landonce.engine.dead_letters import committed
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
        site.write_file()
        site.send(*[b"broken"] * letters, *(event(at) for at in range(letters, 2 * letters)))
        assert site.run() == Totals(landed=letters, dead_lettered=letters)
        return site

    return made


class Site(Protocol):
    @property
    def folder(self) -> Path: ...


def fixed(site: Replayed, offset: int) -> Path:
    path = site.folder / f"fixed-{offset}.jsonl"
    line = {"topic": site.topic, "partition": 0, "offset": offset, "value": event(offset).decode()}
    path.write_text(json.dumps(line) + "\n")
    return path


def start(site: Site, *words: str, place: str = "", go: Path | None = None) -> tuple[PlainProcess, Path]:
    """`go`: it goes on from the place once this file exists."""
    reached, log = site.folder / f"reached-{place}", site.folder / "printed"
    stopped = {"LANDONCE_FAILPOINT": place, "LANDONCE_FAILPOINT_FILE": str(reached)} if place else {}
    stopped |= {"LANDONCE_FAILPOINT_WAIT_FOR": str(go)} if go is not None else {}
    environment = {**os.environ, **UNDISTURBED, **stopped}
    return PlainProcess(words, environment, log, folder=site.folder), reached


def stopped_at(site: Site, place: str, *words: str, go: Path | None = None) -> PlainProcess:
    process, reached = start(site, *words, place=place, go=go)
    until = time.monotonic() + WITHIN
    while not reached.exists():
        assert process.poll() is None, (site.folder / "printed").read_text()[-3000:]
        assert time.monotonic() < until, f"{place} was not reached"
        time.sleep(0.02)
    return process


def killed_at(site: Site, place: str, *words: str) -> None:
    process = stopped_at(site, place, *words)
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
