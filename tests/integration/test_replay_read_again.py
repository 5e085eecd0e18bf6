"""Records whose dead letters were replayed, and that are read from Kafka once more: their rows are there, so they are no dead letters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from replayed import Replayed, event, row

from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.ledger import Totals

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BAD = b'{"id": "3", "name": "b3"}'


@pytest.fixture
def site(
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Replayed:
    """Records 0 and 1 landed before the backup of the ledger, 2 and 4 after it. 3 and 5 were dead letters: 3 landed by a replay."""
    site = Replayed("clickhouse", kafka, clickhouse, tmp_path, new_topic(), new_table(), capsys, monkeypatch)
    site.write_file()
    site.send(event(0), event(1))
    assert site.run() == Totals(landed=2)
    shutil.copy(tmp_path / "pipe.ledger", tmp_path / "backup")
    site.send(event(2), BAD, event(4), b"no json")
    assert site.run() == Totals(landed=2, dead_lettered=2)
    fixed = tmp_path / "fixed.jsonl"
    fixed.write_text(json.dumps({"topic": site.topic, "partition": 0, "offset": 3, "value": {"id": 3, "name": "b3"}}))
    assert site.landonce("dead replay", "--with", fixed, "--yes").code == 0
    return site


def exact(site: Replayed) -> None:
    assert site.rows() == [row(at) for at in range(5)]
    assert site.letters() == [5]
    said = site.landonce("verify", "--json")
    assert said.code == 0, said.out + said.err
    assert (said.json["totals"]["landed"], said.json["totals"]["dead_lettered"]) == (5, 1)


def test_a_ledger_is_restored_that_knows_nothing_of_the_replay(site: Replayed) -> None:
    exact(site)
    shutil.copy(site.folder / "backup", site.folder / "pipe.ledger")
    assert site.run() == Totals(landed=3, dead_lettered=1)
    exact(site)


def test_an_operator_goes_back_and_keeps_the_rows(site: Replayed) -> None:
    said = site.landonce("state seek", "--to-offset", f"{site.topic}:0:2", "--keep-rows", "--yes")
    assert said.code == 0, said.out + said.err
    assert site.run() == Totals(landed=3, dead_lettered=1)
    exact(site)
