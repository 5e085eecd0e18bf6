"""Replays in pipelines as people have them by then: filtered, routed, evolving, with columns of the record, in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from replayed import Replayed, event, row
from test_replay import exact, fixed
from test_replayed_again import killing

from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BAD, BROKEN = b'{"id": "3", "name": "b3"}', b'{"id": 5, "name": "a5"'
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
) -> Iterator[Make]:
    """`make(kind)`: eight records, of which 3 and 5 cannot land."""
    made: list[Replayed] = []

    def build(kind: str) -> Replayed:
        server: LocalClickHouse | None = None
        if kind in ("clickhouse", "evolving", "routed"):
            server = request.getfixturevalue("clickhouse")
        site = Replayed(kind, kafka, server, tmp_path, new_topic(), new_table(), capsys, monkeypatch)
        if kind == "postgres":
            site.database = request.getfixturevalue("new_database")()
        site.send(*(event(at, "ab"[at % 2]) if at not in (3, 5) else {3: BAD, 5: BROKEN}[at] for at in range(8)))
        made.append(site)
        return site

    yield build
    for site in made:
        if site.clickhouse is not None:
            for name in (site.table, f"{site.table}_a", f"{site.table}_b"):
                site.clickhouse.ask(f"DROP TABLE IF EXISTS {name}")


def landed(*offsets: int) -> list[tuple[int, int, int, str]]:
    return [row(at, "ab"[at % 2]) for at in offsets]


@pytest.mark.parametrize("kind", ["postgres", "routed", "evolving"])
def test_letters_land_in_place_whatever_the_pipeline(make: Make, kind: str) -> None:
    """Killed once in the middle; with the key, the headers and the timestamp of each record; into the table that takes the value."""
    site = make(kind)
    site.source = {"record_columns": ["_key", "_headers", "_timestamp"]}
    if kind == "evolving":
        site.schema = "id BIGINT NOT NULL, name STRING"
    site.write_file()
    assert site.run() == Totals(landed=6, dead_lettered=2)
    assert exact(site)["dead_lettered"] == 2
    new = {"note": "new"} if kind == "evolving" else {}
    path = fixed(site, _3={"id": 3, "name": "b3", **new}, _5={"id": 5, "name": "b5"})
    with killing(
        site, "write.after" if kind != "evolving" else "commit.after"
    ):  # the first write finds that a column is lacking
        site.landonce("dead replay", "--with", path, "--yes")
    assert exact(site)["landed"] == 8, "what is on its way counts where it is"
    for code in (0, 1):
        assert site.landonce("dead replay", "--with", path, "--yes").code == code
        assert site.rows() == landed(*range(8))
        assert (site.letters(), site.left()) == ([], [])
        assert site.state().totals == Totals(landed=8)
    assert exact(site)["landed"] == 8
    if kind == "evolving":
        assert sorted(site.ask("_offset, note")) == [(at, "new" if at == 3 else None) for at in range(8)]
    if kind == "routed":
        split = site.ask("_offset, _key, _headers, toUnixTimestamp64Milli(_timestamp) > 0")
        offsets = [int(each[0]) for each in split]
        assert sorted(offsets[:4]) == [0, 2, 4, 6], "the table of each record's own value"
        for offset, key, headers, moment in split:
            assert (key, moment) == (f"k{offset}", 1)
            assert str(headers).count(str(offset)) >= 1, headers


def test_a_letter_that_the_transform_filters_counts_as_filtered(make: Make) -> None:
    """Read = landed + dead-lettered + filtered, and a second replay has nothing to do: the ledger says that it did not land."""
    site = make("sqlite")
    site.more = {"transform": {"where": "id <> 3 AND id <> 0"}}
    site.write_file()
    assert site.run() == Totals(landed=5, dead_lettered=2, filtered=1)
    assert exact(site) | {"dead_lettered": 2} == exact(site)
    said = site.landonce(
        "dead replay", "--with", fixed(site, _3={"id": 3, "name": "b3"}, _5=event(5).decode()), "--yes"
    )
    assert "1 landed, 1 filtered, 0 stay dead letters" in said.out, said.err
    assert site.rows() == landed(1, 2, 4, 5, 6, 7)
    assert (site.letters(), site.state().totals) == ([], Totals(landed=6, filtered=2))
    audited = exact(site)
    assert {name: audited[name] for name in ("landed", "dead_lettered", "filtered")} == {
        "landed": 6,
        "dead_lettered": 0,
        "filtered": 2,
    }
    again = site.landonce("dead replay", "--again", "--yes")
    assert (again.code, "a replay filtered them" in " ".join(again.err.split())) == (3, True), again.out + again.err
    assert (site.rows(), site.state().totals) == (landed(1, 2, 4, 5, 6, 7), Totals(landed=6, filtered=2))
    assert json.loads(site.landonce("dead list", "--json").out)
