"""Records whose dead letters count are delivered again, by a corrected file: what lands now is no dead letter any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from replayed import Replayed, event, row
from test_replay_kills import killed_at
from test_replayed_again import BAD, BROKEN, OWN, exact, killing, lenient, restore_point

from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

KILLED = {
    "sqlite": ("record.before", "record.after", "letters.removed"),
    "clickhouse": ("commit.after", "letters.removing"),
    "iceberg": ("record.after", "letters.removing"),
}
RECORDED = ("record.after", "letters.removing", "letters.removed")
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
    """`make(kind)`: records 0 and 1 have landed."""

    def made(kind: str) -> Replayed:
        server: LocalClickHouse | None = request.getfixturevalue("clickhouse") if kind == "clickhouse" else None
        site = Replayed(kind, kafka, server, tmp_path, new_topic(), new_table(), capsys, monkeypatch)
        site.write_file()
        site.send(event(0), event(1))
        assert site.run() == Totals(landed=2)
        if server is not None:
            server.ask(f"SYSTEM START MERGES {site.table}")  # a mutation waits for them
        return site

    return made


def two_letters(site: Replayed) -> None:
    """3 and 5 of the records up to 7 are dead letters. 3 lands from now on."""
    site.source = {}
    site.write_file()
    site.send(*(event(at) if at not in (3, 5) else {3: BAD, 5: BROKEN}[at] for at in range(2, 8)))
    assert site.run() == Totals(landed=4, dead_lettered=2)
    assert site.letters() == [3, 5]
    lenient(site)


def three_landed(site: Replayed) -> None:
    assert site.rows() == [row(at) if at != 3 else OWN for at in range(8) if at != 5]
    assert (site.letters(), site.left()) == ([5], [])
    assert site.state().totals == Totals(landed=7, dead_lettered=1)
    exact(site, landed=7, dead_lettered=1)
    said = site.landonce("dead replay", "--yes")
    assert "0 landed, 0 filtered, 1 stay dead letters" in said.out, said.out + said.err


@pytest.mark.parametrize("kind", KILLED)
def test_after_a_rollback_or_a_restore_wherever_the_driver_is_killed(make: Make, kind: str) -> None:
    """An SQL database and a ClickHouse table are restored, together with their ledger; an Iceberg table is rolled back."""
    site = make(kind)
    go_back = restore_point(site)
    two_letters(site)
    kept = {path.name: path.read_bytes() for path in site.dead.iterdir()}
    for place in KILLED[kind]:
        go_back()
        for path in site.dead.iterdir():
            path.unlink()
        for name, content in kept.items():
            (site.dead / name).write_bytes(content)
        with killing(site, place):
            site.run()
        if place in RECORDED:
            said = site.landonce("verify", "--json")
            assert said.code == 0, said.out + said.err
            assert "1 dead letters" in site.landonce("dead list").out, "a command settles it, too"
        site.run()
        three_landed(site)


def test_killed_by_a_signal(make: Make) -> None:
    """Between files, too: the letters of records 3 and 9 are in one each."""
    site = make("sqlite")
    go_back = restore_point(site)
    two_letters(site)
    site.source = {}
    site.write_file()
    site.send(event(8), BAD)
    assert site.run() == Totals(landed=1, dead_lettered=1)
    lenient(site)
    go_back()
    killed_at(site, "letters.removing", "run", "pipe.yaml", "--once")
    assert site.letters() == [3, 5, 9]
    killed_at(site, "letters.file", "run", "pipe.yaml", "--once")
    assert (site.letters(), bool(site.left())) == ([5, 9], True)
    site.run()
    assert (site.letters(), site.left()) == ([5], [])
    assert site.state().totals == Totals(landed=9, dead_lettered=1)
    exact(site, landed=9, dead_lettered=1)


def test_an_operator_goes_back_over_a_block_of_letters_and_keeps_the_rows(make: Make) -> None:
    site = make("clickhouse")
    two_letters(site)
    site.send(BAD)  # the same value, at offset 8
    site.source = {}
    site.write_file()
    assert site.run() == Totals(dead_lettered=1)
    lenient(site)
    said = site.landonce("state seek", "--to-offset", f"{site.topic}:0:8", "--keep-rows", "--yes")
    assert said.code == 0, said.out + said.err
    assert site.run() == Totals(landed=1)
    assert (site.letters(), site.left(), site.offsets()) == ([3, 5], [], [0, 1, 2, 4, 6, 7, 8])
    assert site.state().totals == Totals(landed=7, dead_lettered=2)
    exact(site, landed=7, dead_lettered=2)
