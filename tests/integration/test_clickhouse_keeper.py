"""Whole runs on a ClickHouse that has a real ZooKeeper: replicated tables as far as they go here, and a ledger in a KeeperMap table.

The engine of `chdb` makes a ReplicatedMergeTree and never starts its replica, so no row can land in one; and it runs no statement ON CLUSTER.
What these tests say of both fails as soon as a newer one can do more: then tests of real replicas are due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from deliveries import Site, expected, in_table, numbered, run, send
from pipelines import Said, landonce
from running import running
from zookeeper_server import LocalZooKeeper

from landonce.local import LocalClickHouse, LocalKafka, LocalStackError
from landonce.local.server import LOOPBACK
from landonce.protocol.ledger import Totals
from landonce.sinks.clickhouse import connection, sink
from landonce.sinks.clickhouse.connection import Access
from landonce.sinks.clickhouse.keeper_map import KeeperMapLedger
from landonce.sinks.clickhouse.replies import Answer
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

NO_SPARK: Any = None
Command = Callable[..., Said]


class InCluster(LocalClickHouse):
    """A server that knows a cluster of itself alone."""

    def _config_xml(self) -> str:
        replica = f"<replica><host>{LOOPBACK}</host><port>{self.tcp_port}</port></replica>"
        cluster = f"<remote_servers><alone><shard>{replica}</shard></alone></remote_servers>"
        return super()._config_xml().replace("</clickhouse>", f"{cluster}</clickhouse>")


@pytest.fixture(scope="module")
def server(zookeeper: LocalZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClickHouse]:
    with running(InCluster(tmp_path_factory.mktemp("clickhouse"), keeper_port=zookeeper.port)) as server:
        yield server


@pytest.fixture
def site(
    kafka: LocalKafka,
    server: LocalClickHouse,
    tmp_path: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> Site:
    return Site(kafka, server, tmp_path, new_table(), [new_topic(partitions=2)])


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return lambda *words: landonce(capsys, monkeypatch, *words)


# ── a ReplicatedMergeTree ────────────────────────────────────────────────────────────────────────────────────────────


def replicated(site: Site, **more: object) -> Path:
    engine = f"ReplicatedMergeTree('/tables/{site.table}', 'here')"
    return site.write_file(clickhouse={"create": True, "engine": engine, **more}, stall="2s")


def test_a_replicated_table_is_made_and_its_rows_wait_for_the_replica(
    site: Site, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(site.kafka, site.topics[0], numbered(20))
    file = replicated(site)
    shown = command("check", file)
    assert shown.code == 0, shown.err
    assert f"ENGINE = ReplicatedMergeTree('/tables/{site.table}', 'here')" in shown.out
    assert "replicated_deduplication_window = 10000" in shown.out

    sent = list[str]()
    real = connection.post

    def post(access: Access, parameters: Mapping[str, str], body: Any, seconds: float) -> Answer:
        sent.append(body.decode() if isinstance(body, bytes) else "")
        return real(access, parameters, body, seconds)

    monkeypatch.setattr(connection, "post", post)
    ended = command("run", file, "--once")
    assert ended.code == 5, ended.err
    assert "readonly mode" in ended.err
    name = f"`default`.`{site.table}`"
    assert f"SYSTEM SYNC REPLICA {name} LIGHTWEIGHT" in sent
    assert not [each for each in sent if each.startswith("SELECT") and f"FROM {name}" in each], "no look before it"
    [made] = site.ask(f"SELECT engine, create_table_query AS made FROM system.tables WHERE name = '{site.table}'")
    assert made["engine"] == "ReplicatedMergeTree"
    assert "replicated_deduplication_window = 10000" in made["made"]
    assert site.position() == {}, "nothing counts as landed"
    assert not in_table(site)

    checked = command("check", file)
    said = " ".join(checked.out.split())
    assert "replicated_deduplication_window = 10000" in said
    assert "the replica here is read-only" in said
    assert "a replicated table without `cluster`" in said
    assert "insert_quorum is 0" in said
    assert "refused" in said.partition("position")[2], "what the table holds cannot be asked yet"
    assert checked.code == 1


@pytest.mark.parametrize("keeper", ["zookeeper", "of the process"])
def test_a_replica_does_not_start_here(
    server: LocalClickHouse, clickhouse: LocalClickHouse, keeper: str, new_table: Callable[[], str]
) -> None:
    """With any Keeper."""
    asked, table = server if keeper == "zookeeper" else clickhouse, new_table()
    asked.ask(f"CREATE TABLE {table} (id Int64) ENGINE = ReplicatedMergeTree('/tables/{table}', 'here') ORDER BY id")
    found = asked.ask(f"SELECT is_readonly, total_replicas FROM system.replicas WHERE table = '{table}'")
    assert found.split() == ["1", "1"], "chdb starts replicas now: test them, and change docs/clickhouse.md"


def test_statements_on_a_cluster_do_not_run_here(site: Site, command: Command) -> None:
    """They are compiled, and compared with the text that they should have. The server refuses to pass them on."""
    send(site.kafka, site.topics[0], numbered(20))
    file = replicated(site, cluster="alone")
    assert f"CREATE TABLE IF NOT EXISTS `default`.`{site.table}` ON CLUSTER `alone`" in command("check", file).out
    with pytest.raises(LocalStackError, match="DDL queries are disabled"):
        site.clickhouse.ask(f"CREATE TABLE {site.table}_other ON CLUSTER alone (id Int64) ENGINE = Memory")
    ended = command("run", file, "--once")
    assert ended.code == 5, ended.err
    assert "DDL queries are disabled" in ended.err


# ── a ledger in a KeeperMap table ────────────────────────────────────────────────────────────────────────────────────


class KeeperSite(Site):
    """The ledger is a table of its own, beside the rows."""

    def document(self, **sections: Any) -> dict[str, Any]:
        document = super().document(**sections)
        document["ledger"] = {"keeper_map": {"path": f"/landonce/{self.table}", "table": self.ledger}}
        return document

    @property
    def ledger(self) -> str:
        return f"ledger_of_{self.table}"


@pytest.fixture
def kept(site: Site) -> KeeperSite:
    return KeeperSite(site.kafka, site.clickhouse, site.folder, site.table, site.topics)


def test_zookeeper_is_away_for_longer_than_stall(
    kept: KeeperSite, zookeeper: LocalZooKeeper, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "KeeperMapLedger", partial(KeeperMapLedger, attempts=2))  # each takes seconds
    kept.make("id Int64, name String")
    sent = send(kept.kafka, kept.topics[0], numbered(20))
    file = kept.write_file(stall="3s")
    assert run(kept.config(), NO_SPARK) == Totals(landed=20)
    before = kept.position()
    sent += send(kept.kafka, kept.topics[0], numbered(20, first=20))
    zookeeper.kill()
    try:
        ended = command("run", file, "--once")
    finally:
        zookeeper.start()
        zookeeper.wait_ready()
    assert ended.code == 5, ended.err
    assert "did not answer" in ended.err
    assert in_table(kept) == expected(sent[:20]), "nothing is written without a plan"
    assert kept.position() == before
    assert run(kept.config(), NO_SPARK).landed == 20, "the same command goes on"
    assert in_table(kept) == expected(sent)


def test_a_ledger_table_at_another_path_is_refused(kept: KeeperSite, command: Command) -> None:
    """Before it is read: its position is not this pipeline's."""
    kept.make("id Int64, name String")
    columns = "name String, entry String"
    kept.clickhouse.ask(f"CREATE TABLE {kept.ledger} ({columns}) ENGINE = KeeperMap('/elsewhere') PRIMARY KEY name")
    file = kept.write_file()
    send(kept.kafka, kept.topics[0], numbered(3))
    for words in (("check", file), ("run", file, "--once"), ("state", "show", file)):
        ended = command(*words)
        said = " ".join((ended.out + ended.err).split())
        assert ended.code in (1, 2), said
        assert "is at the path '/elsewhere' of Keeper" in said
        assert "name the path '/elsewhere', or another `table` under `ledger`" in said
    assert not in_table(kept)


def test_with_shards_the_ledger_is_on_the_first_one(
    kept: KeeperSite, clickhouse: LocalClickHouse, command: Command
) -> None:
    """The second server has another Keeper: a ledger there would be another one."""
    servers = (kept.clickhouse, clickhouse)
    endpoints = {"endpoints": [each.url for each in servers], "shard_by": ["_offset"], "hash": "none", "create": True}
    sent = send(kept.kafka, kept.topics[0], numbered(20))
    document = kept.document(clickhouse=endpoints)
    del document["sink"]["clickhouse"]["url"]
    kept.file.write_text(yaml.safe_dump(document))
    assert run(load(kept.file), NO_SPARK) == Totals(landed=20)
    sent += send(kept.kafka, kept.topics[0], numbered(10, first=20))
    assert run(load(kept.file), NO_SPARK) == Totals(landed=10), "the next driver finds it there"
    there = [each.ask(f"EXISTS TABLE {kept.ledger}").strip() for each in servers]
    assert there == ["1", "0"]
    offsets = [[*map(int, each.ask(f"SELECT _offset FROM {kept.table} ORDER BY 1").split())] for each in servers]
    assert offsets == [[at for at in range(30) if at % 2 == shard] for shard in (0, 1)]
    assert f"the KeeperMap table {kept.ledger}" in " ".join(command("state", "show", kept.file).out.split())
    assert "exactly once" in command("verify", kept.file).out
