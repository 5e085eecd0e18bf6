"""Shards of ClickHouse: two real servers, and a Distributed table over both that says where each row belongs.

The judge is ClickHouse itself: it spreads the same rows over a second pair of tables by the same sharding key, and its queries skip the
shards that cannot have a row (`optimize_skip_unused_shards`).
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_tables import Proxy
from deliveries import Sent, Site, Watch, letters, numbered, run, running, send, wait_until
from push_site import Site as Pushes
from push_site import comes_back, in_clickhouse, there
from query_site import TABLE
from shard_servers import WEIGHTS, TwoShards, two_shards
from test_clickhouse_contract import Silencer
from test_seek_runs import killed
from typer.testing import CliRunner

import landonce
from landonce.check import check_pipeline
from landonce.cli import app
from landonce.errors import PlanChanged, PlanPending, Stalled, TableUnfit
from landonce.local import LocalKafka, LocalUser
from landonce.protocol.ledger import Totals
from landonce.protocol.settle import Reply
from landonce.protocol.steps import Effect, Step
from landonce.sinks.clickhouse import connection, shards
from landonce.sinks.clickhouse.config import ClickHouse
from landonce.sinks.clickhouse.shards import ShardedWriter, ShardMap
from landonce.sinks.clickhouse.sink import ClickHouseSink
from landonce.sinks.contract import Insert, Level
from landonce.sinks.parts import open_parts
from landonce.testing import SINK_CASES, Row, SinkContract, SinkSite, prove

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
NO_SPARK: Any = None
USERS = [LocalUser("one", "the first word that nobody may read"), LocalUser("two", "the second: %word")]
ROWS = 300


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, servers: None) -> Iterator[TwoShards]:
    with two_shards(tmp_path_factory.mktemp("both"), USERS) as found:
        yield found


class Balancer(Proxy):
    """Passes each request on to the next server."""

    def __init__(self, servers: TwoShards) -> None:
        self._ports = itertools.cycle(urlsplit(each.url).port or 0 for each in servers.servers)
        super().__init__(0, lambda data: data)

    def _serve(self, client: socket.socket) -> None:
        self._upstream = next(self._ports)
        super()._serve(client)


def test_a_url_that_stands_for_several_servers_is_refused(both: TwoShards, new_table: Callable[[], str]) -> None:
    """Rows that land on one would not be found on the other."""
    table, window = new_table(), "SETTINGS non_replicated_deduplication_window = 1000"
    both.on_each(f"CREATE TABLE {table} ({COLUMNS}) ENGINE = MergeTree ORDER BY _offset {window}")
    with closing(Balancer(both)) as balancer:
        sink = landonce.clickhouse(f"http://localhost:{balancer.port}/default", table).to_sink("p")
        found = sink.target().check()
    [refused] = [each.what for each in found if each.level is Level.REFUSED]
    assert refused.startswith("the url stands for several servers")


# ── where rows go ────────────────────────────────────────────────────────────────────────────────────────────────────

COLUMNS = """tiny Int8, small Int32, id Int64, big UInt64, word String, label LowCardinality(String), maybe Nullable(String),
kind Enum8('a' = 1, 'b' = -2), day Date, at DateTime64(3), price Decimal(18, 3), who UUID, tags Array(String),
upper_word String DEFAULT upper(word), short_word String MATERIALIZED substring(word, 1, 2),
_topic LowCardinality(String), _partition Int32, _offset Int64"""


def odd_rows() -> pa.Table:
    numbers = np.arange(ROWS, dtype=np.int64)
    texts = [f"w{each * 7}" for each in range(ROWS)]
    return pa.table(
        {
            "tiny": pa.array(numbers % 256 - 128, pa.int8()),
            "small": pa.array(numbers * 14_000_001 - 2**31, pa.int32()),
            "id": pa.array((numbers - 150) * (2**55 + 12_345), pa.int64()),
            "big": pa.array([(2**64 - 1) // (each + 1) for each in range(ROWS)], pa.uint64()),
            "word": pa.array(texts),
            "label": pa.array([text[-1] for text in texts]),
            "maybe": pa.array([None if each % 3 else text for each, text in enumerate(texts)]),
            "kind": pa.array(["ab"[each % 2] for each in range(ROWS)]),
            "day": pa.array(numbers * 31, pa.int32()).cast(pa.date32()),
            "at": pa.array(numbers * 1_000_003, pa.timestamp("ms", "UTC")),
            "price": pa.array([str(each * 7 - 1000) + ".125" for each in range(ROWS)]).cast(pa.decimal128(18, 3)),
            "who": pa.array([f"00000000-0000-4000-8000-{each * 999:012x}" for each in range(ROWS)]),
            "tags": pa.array([[text, "x"] for text in texts]),
            "_topic": pa.array(["t"] * ROWS),
            "_partition": pa.array([0] * ROWS, pa.int32()),
            "_offset": pa.array(numbers),
        }
    )


def sink_of(both: TwoShards, table: str, **section: Any) -> ClickHouseSink:
    return ClickHouse.model_validate({"endpoints": both.endpoints, "table": table, **section}).to_sink("shards")


def land_odd_rows(both: TwoShards, table: str, **section: Any) -> ClickHouseSink:
    window = "SETTINGS non_replicated_deduplication_window = 1000"
    both.on_each(f"CREATE TABLE {table} ({COLUMNS}) ENGINE = MergeTree ORDER BY _offset {window}")
    sink = sink_of(both, table, weights=list(WEIGHTS), **section)
    with closing(sink.target()) as target:
        assert [each for each in target.check() if each.level is Level.REFUSED] == []
        insert = Insert("token", target.now() + 60_000, "attempt")
    assert sink.writer().send(odd_rows(), insert) is Reply.ACKNOWLEDGED
    return sink


@pytest.mark.parametrize(
    ("shard_by", "hash_", "key", "asked"),
    [
        (["id"], "cityHash64", "cityHash64(id)", "id = {id}"),
        (["word", "kind", "at"], "cityHash64", "cityHash64(word, kind, at)", ""),
        (["label", "tiny"], "xxHash64", "xxHash64(label, tiny)", ""),
        (["price"], "xxHash64", "xxHash64(price)", ""),
        (["who"], "sipHash64", "sipHash64(who)", ""),
        ("ifNull(maybe, ''), tags", "sipHash64", "sipHash64(ifNull(maybe, ''), tags)", ""),
        (["word"], "murmurHash3_64", "murmurHash3_64(word)", "word = '{word}'"),
        (["day", "upper_word", "short_word"], "murmurHash3_64", "murmurHash3_64(day, upper_word, short_word)", ""),
        (["id"], "intHash64", "intHash64(id)", "id = {id}"),
        (["small"], "none", "small", "small = {small}"),
        ("tiny", "none", "tiny", "tiny = {tiny}"),
        (["big"], "none", "big", ""),
        ("toYYYYMM(day) + _partition", "none", "toYYYYMM(day) + _partition", ""),
        (["label"], None, "cityHash64(label)", "label = '{label}'"),
    ],
)
def test_rows_are_where_a_distributed_table_puts_them(
    both: TwoShards, new_table: Callable[[], str], shard_by: Any, hash_: str | None, key: str, asked: str
) -> None:
    table = new_table()
    land_odd_rows(both, table, shard_by=shard_by, **({"hash": hash_} if hash_ else {}))
    everything = both.distributed(table, key)
    mine = both.offsets(table)
    assert sorted(mine[0] + mine[1]) == [*range(ROWS)]
    assert all(mine), "the rows are spread"
    assert mine == both.as_distributed(table, everything, key)
    for row in odd_rows().take([0, 1, 5, 150, 299]).to_pylist() if asked else []:
        wanted = asked.format(**row)
        found = int(both.servers[0].ask(f"SELECT count() FROM {everything} WHERE {wanted}"))
        assert both.skipping(everything, wanted) == found > 0, wanted


def test_the_judge_sees_rows_on_the_wrong_shard(
    both: TwoShards, new_table: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a remainder that keeps its sign, as `%` gives it, is not that of a Distributed table."""
    table = new_table()
    monkeypatch.setattr(ShardMap, "slot", property(lambda self: f"abs({self.expression} % {sum(self.weights)})"))
    sink = land_odd_rows(both, table, shard_by=["small"], hash="none")
    monkeypatch.undo()
    everything = both.distributed(table, "small")
    assert both.offsets(table) != both.as_distributed(table, everything, "small")
    lost = [row for row in odd_rows().to_pylist() if not both.skipping(everything, f"small = {row['small']}")]
    assert lost, "a query that skips shards does not find them"
    with closing(sink.target()) as target:
        warned = [each.what for each in target.check() if "would now go to another shard" in each.what]
    assert sum(int(each.partition("holds ")[2].split()[0]) for each in warned) == len(lost)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"shard_by": ["maybe"]}, "is of type Nullable(UInt64)"),
        ({"shard_by": "word", "hash": "none"}, "is of type String"),
        ({"shard_by": "toInt128(id)", "hash": "none"}, "is of type Int128"),
        ({"shard_by": "rand()", "hash": "none"}, "rand may give another result"),
        ({"shard_by": ["nowhere"]}, "nowhere"),
    ],
)
def test_what_cannot_be_a_sharding_key_is_refused(
    both: TwoShards, new_table: Callable[[], str], section: dict[str, Any], said: str
) -> None:
    table = new_table()
    both.on_each(f"CREATE TABLE {table} ({COLUMNS}) ENGINE = MergeTree ORDER BY _offset "
                 "SETTINGS non_replicated_deduplication_window = 1000")  # fmt: skip
    with closing(sink_of(both, table, **section).target()) as target:
        [refused] = [each for each in target.check() if each.level is Level.REFUSED]
    assert said in refused.what
    assert "shard_by" in refused.what + refused.change


def test_shards_that_are_one_table_or_differ_are_refused(both: TwoShards, new_table: Callable[[], str]) -> None:
    table = new_table()
    window = "ENGINE = MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 1000"
    both.on_each(f"CREATE TABLE {table} ({COLUMNS}) {window}")
    other_name = both.endpoints[0].replace("127.0.0.1", "localhost")
    with closing(sink_of(both, table, endpoints=[both.endpoints[0], other_name], shard_by=["id"]).target()) as target:
        [refused] = [each for each in target.check() if each.level is Level.REFUSED]
    assert "are the same table" in refused.what
    both.servers[1].ask(f"ALTER TABLE {table} MODIFY COLUMN small Int64")
    with closing(sink_of(both, table, shard_by=["id"]).target()) as target:
        [refused] = [each for each in target.check() if each.level is Level.REFUSED]
    assert "the columns small differ" in refused.what


@pytest.mark.parametrize("key", ["derived", "id"])
@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("DEFAULT id + 1", "DEFAULT id + 2", "derived"),
        ("MATERIALIZED id + 1", "MATERIALIZED id + 2", "derived"),
        ("ALIAS id + 1", "ALIAS id + 2", "derived"),
        ("DEFAULT id + 1", "MATERIALIZED id + 1", "derived"),
        ("DEFAULT id + 1 COMMENT 'one'", "DEFAULT id + 1 COMMENT 'two'", ""),
    ],
)
def test_a_column_with_another_default_on_another_shard_is_refused(
    both: TwoShards, new_table: Callable[[], str], first: str, second: str, names: str, key: str
) -> None:
    """Rows would be placed and filled by what the first shard says."""
    table = new_table()
    window = "ENGINE = MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 1000"
    for server, derived in zip(both.servers, (first, second), strict=True):
        server.ask(f"CREATE TABLE {table} ({COLUMNS}, derived Int64 {derived}) {window}")
    with closing(sink_of(both, table, shard_by=[key]).target()) as target:
        refused = [each for each in target.check() if each.level is Level.REFUSED]
    assert [f"the columns {names} differ" in each.what for each in refused] == [True] * bool(names)


def test_each_endpoint_may_have_a_database_of_its_own(both: TwoShards, new_table: Callable[[], str]) -> None:
    """Two databases of one server, too: a shard is an endpoint with its database."""
    table, server = new_table(), both.servers[0]
    names = [f"{table}_north", f"{table}_south"]
    window = "ENGINE = MergeTree ORDER BY _offset SETTINGS non_replicated_deduplication_window = 1000"
    for name in names:
        server.ask(f"CREATE DATABASE {name}")
        server.ask(f"CREATE TABLE {name}.{table} ({COLUMNS}) {window}")
    base = both.endpoints[0].rpartition("/")[0]
    sink = sink_of(both, table, endpoints=[f"{base}/{name}" for name in names], shard_by=["id"])
    with closing(sink.target()) as target:
        assert [each for each in target.check() if each.level is Level.REFUSED] == []
        insert = Insert("token", target.now() + 60_000, "attempt")
    assert sink.writer().send(odd_rows(), insert) is Reply.ACKNOWLEDGED
    held = [server.ask(f"SELECT _offset FROM {name}.{table}").split() for name in names]
    assert all(held)
    assert sorted(int(each) for each in held[0] + held[1]) == list(range(ROWS))
    for name in names:
        server.ask(f"DROP DATABASE {name}")


# ── the public contract ──────────────────────────────────────────────────────────────────────────────────────────────


class Sharded(SinkSite):
    """One table on two servers, which take the offsets in turn. The sink reaches them through proxies, the judge does not."""

    moments = 4

    def __init__(self, both: TwoShards, table: str, user: LocalUser | None = None) -> None:
        self.both, self.table, self.user = both, table, user
        self.proxies = [Silencer(each.http_port, lambda answer: answer) for each in both.servers]

    def sink(self) -> ClickHouseSink:
        urls = [
            (server.url_for(self.user) if self.user else server.url).replace(f":{server.http_port}/", f":{proxy.port}/")
            for server, proxy in zip(self.both.servers, self.proxies, strict=True)
        ]
        section = {"endpoints": urls, "table": self.table, "shard_by": ["_offset"], "hash": "none"}
        return ClickHouse.model_validate(section).to_sink("contract")

    def held(self) -> list[Row]:
        asked = f"SELECT _topic, _partition, _offset, id, word FROM {self.table} FORMAT JSONCompactEachRow"
        found = self.both.on_each(f"{asked} SETTINGS output_format_json_quote_64bit_integers = 0")
        return [Row(*json.loads(line)) for each in found for line in each.splitlines()]

    def remove(self, rows: Iterable[Row]) -> None:
        offsets = ", ".join(str(row.offset) for row in rows)
        self.both.on_each(f"ALTER TABLE {self.table} DELETE WHERE _offset IN ({offsets}) SETTINGS mutations_sync = 2")

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        for each in self.proxies:
            each.silent = True
        yield
        for each in self.proxies:
            each.silent = False

    def close(self) -> None:
        for each in self.proxies:
            each.close()


@pytest.mark.parametrize(
    "name",
    [
        "a_probe_names_exactly_the_missing_rows",
        "nothing_lands_after_deadline_and_kill",
        "after_a_crash_at_any_line_a_block_lands_once",
    ],
)
def test_shards_keep_the_contract(both: TwoShards, new_table: Callable[[], str], name: str) -> None:
    site = Sharded(both, new_table())
    assert not SINK_CASES[name].excused(site)
    prove(SINK_CASES[name], site)
    site.close()


@pytest.mark.long
class TestSharded(SinkContract):
    @pytest.fixture
    def site(self, both: TwoShards, new_table: Callable[[], str]) -> Iterator[SinkSite]:
        site = Sharded(both, new_table())
        yield site
        site.close()


def test_a_sink_that_trusts_its_first_shard_does_not_pass(
    both: TwoShards, new_table: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: an insert that only one of two shards has acknowledged."""

    def hasty(self: ShardedWriter, rows: pa.Table, insert: Insert) -> Reply:
        return self._writers[0].send(rows.filter(pa.array(self._owners(rows) == 0)), insert)

    monkeypatch.setattr(ShardedWriter, "send", hasty)
    site = Sharded(both, new_table())
    with pytest.raises(AssertionError):
        prove(SINK_CASES["what_is_acknowledged_is_there"], site)
    site.close()


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.name)
def test_no_password_is_shown(both: TwoShards, new_table: Callable[[], str], user: LocalUser) -> None:
    for secret in (user.password, quote(user.password, safe="")):
        site = Sharded(both, new_table(), user)
        site.secret = secret
        prove(SINK_CASES["what_is_acknowledged_is_there"], site)
        prove(SINK_CASES["no_secret_is_shown"], site)
        site.close()


# ── whole pipelines ──────────────────────────────────────────────────────────────────────────────────────────────────


class Pipe(Site):
    """A pipeline of one topic into one table on two servers."""

    both: TwoShards

    def document(self, **sections: Any) -> dict[str, Any]:
        base = {"create": True, "weights": list(WEIGHTS), "shard_by": ["id"], "deadline": "2s"}
        sections["clickhouse"] = {**base, "endpoints": self.both.endpoints, **sections.get("clickhouse", {})}
        sections["kafka"] = {"schema": "id BIGINT NOT NULL, name STRING", **sections.get("kafka", {})}
        document = super().document(**sections)
        del document["sink"]["clickhouse"]["url"]
        return document

    def held(self, table: str = "") -> Counter[tuple[str, int]]:
        """Topic and offset of every row on every shard."""
        found = self.both.on_each(f"SELECT _topic, _offset FROM {table or self.table}")
        return Counter((topic, int(at)) for each in found for topic, at in map(str.split, each.splitlines()))

    def command(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output if not code else f"{done.output}{done.exception}"


class Holding(Proxy):
    """Passes everything on, but inserts only while they may go."""

    def __init__(self, port: int) -> None:
        self.go = threading.Event()
        self.go.set()
        super().__init__(port, lambda answer: answer)

    def _serve(self, client: socket.socket) -> None:
        if b"insert_deduplication_token" in client.recv(65536, socket.MSG_PEEK).partition(b"\r\n")[0]:
            self.go.wait(100)
        super()._serve(client)


def places(sent: Iterable[Sent]) -> Counter[tuple[str, int]]:
    return Counter((each.topic, each.offset) for each in sent)


@pytest.fixture
def pipe(
    kafka: LocalKafka,
    both: TwoShards,
    tmp_path: Path,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> Pipe:
    found = Pipe(kafka, both.servers[0], tmp_path, new_table(), [new_topic(partitions=1)])
    found.both = both
    return found


def test_a_pipeline_makes_its_table_on_each_shard_and_fills_them(pipe: Pipe) -> None:
    file = pipe.write_file()
    before = pipe.command("check", str(file))
    assert before.count("CREATE TABLE") == 1
    sent = send(pipe.kafka, pipe.topics[0], [*numbered(200), b"no json"])
    assert run(pipe.config(), NO_SPARK) == Totals(landed=200, dead_lettered=1)
    assert pipe.held() == places(sent[:200])
    everything = pipe.both.distributed(pipe.table, "cityHash64(id)")
    assert pipe.both.offsets(pipe.table) == pipe.both.as_distributed(pipe.table, everything, "cityHash64(id)")
    assert [pipe.both.skipping(everything, f"id = {each}") for each in range(20)] == [1] * 20
    checked = pipe.command("check", str(file))
    for url in pipe.both.endpoints:
        assert f"shard http://127.0.0.1:{url.rpartition(':')[2].partition('/')[0]}/default.{pipe.table}: " in checked
    assert "holds for new rows only: rows that are there stay where they are" in " ".join(checked.split())
    assert "exactly once" in pipe.command("verify", str(file), "--values")
    pipe.both.servers[1].ask(f"ALTER TABLE {pipe.table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    pipe.command("verify", str(file), code=1)


def test_a_start_that_is_refused_drops_no_table_that_was_there(pipe: Pipe) -> None:
    """It is empty, and on one shard only. The one that landonce made beside it goes again."""
    first, second = pipe.both.servers
    second.ask(f"CREATE TABLE {pipe.table} (id Int64, name String) ENGINE = MergeTree ORDER BY id")
    send(pipe.kafka, pipe.topics[0], numbered(1))
    with pytest.raises(TableUnfit):
        run(pipe.config(), NO_SPARK)
    assert [each.ask(f"EXISTS TABLE {pipe.table}").strip() for each in (first, second)] == ["0", "1"]


def test_moving_in_asks_every_shard(pipe: Pipe) -> None:
    """The last batch of ClickHouse's connector is spread over both; its state is on the first."""
    sent = send(pipe.kafka, pipe.topics[0], numbered(20))
    run(pipe.config(), NO_SPARK)
    server = pipe.both.servers[0]
    server.ask(
        "CREATE TABLE IF NOT EXISTS `connect_state` (`key` String, minOffset BIGINT, maxOffset BIGINT, state String) "
        f"ENGINE=KeeperMap('/{pipe.table}') PRIMARY KEY `key`"
    )
    server.ask(f"INSERT INTO connect_state VALUES ('{pipe.topics[0]}-0', 10, 19, 'BEFORE_PROCESSING')")
    file = pipe.write_file(ledger={"sqlite": "other.ledger"})
    said = pipe.command("state", "import", str(file), "--from-clickhouse-connect", "--yes")
    assert "and the table holds all 10 records of it" in " ".join(said.split())
    sent += send(pipe.kafka, pipe.topics[0], numbered(20, first=20))
    run(pipe.config(ledger={"sqlite": "other.ledger"}), NO_SPARK)
    assert pipe.held() == places(sent)
    server.ask("DROP TABLE connect_state SYNC")


def test_verify_sees_a_row_that_stands_on_two_shards(pipe: Pipe) -> None:
    send(pipe.kafka, pipe.topics[0], numbered(20))
    run(pipe.config(), NO_SPARK)
    one, two = pipe.both.servers
    copied = one.ask(f"SELECT * FROM {pipe.table} LIMIT 1 FORMAT Values")
    two.ask(f"INSERT INTO {pipe.table} VALUES {copied}")
    said = pipe.command("verify", str(pipe.write_file()), code=1)
    assert "twice" in said or "more than once" in said or "duplicate" in said
    assert "holds 1 rows that would now go to another shard" in " ".join(said.split())


def test_several_tables_on_each_shard(pipe: Pipe) -> None:
    t = pipe.table
    tables = [{"table": f"{t}_a", "equals": "a"}, {"table": f"{t}_all"}]
    section = {"table": None, "tables": tables, "route_field": "name"}
    sent = send(pipe.kafka, pipe.topics[0], [{"id": at, "name": "ab"[at % 2]} for at in range(60)])
    config = pipe.config(clickhouse=section)
    assert run(config, NO_SPARK) == Totals(landed=60)
    assert pipe.held(f"{t}_all") == places(sent)
    assert pipe.held(f"{t}_a") == places(sent[::2])
    assert all(pipe.both.offsets(f"{t}_a")), "on both shards"
    file = pipe.write_file(clickhouse=section)
    assert "exactly once" in pipe.command("verify", str(file), "--values")
    by_name = {"table": f"{t}_of_{{name}}"}
    (pipe.folder / "p.ledger").unlink()
    assert run(pipe.config(clickhouse=by_name), NO_SPARK) == Totals(landed=60)
    assert pipe.held(f"{t}_of_b") == places(sent[1::2])


def test_rows_are_removed_from_each_shard_and_land_again(pipe: Pipe) -> None:
    sent = send(pipe.kafka, pipe.topics[0], numbered(50))
    run(pipe.config(), NO_SPARK)
    file = pipe.write_file()
    pipe.command("state", "seek", str(file), "--to-offset", f"{pipe.topics[0]}:0:10", "--remove-rows", "--yes")
    assert pipe.held() == places(sent[:10])
    assert run(pipe.config(), NO_SPARK).landed == 40
    assert pipe.held() == places(sent)


def test_a_seek_that_is_killed_between_two_shards_is_resumed(pipe: Pipe) -> None:
    sent = send(pipe.kafka, pipe.topics[0], numbered(50))
    run(pipe.config(), NO_SPARK)
    file = pipe.write_file()
    killed(pipe.folder, file, "remove.shard", "seek", "--to-offset", f"{pipe.topics[0]}:0:10", "--remove-rows")
    one, two = pipe.both.on_each(f"SELECT max(_offset) FROM {pipe.table}")
    assert (int(one) < 10, int(two) < 10) == (True, False), "it was killed after the first shard"
    with pytest.raises(PlanPending, match="was interrupted while it removed rows"):
        run(pipe.config(), NO_SPARK)
    pipe.command("state", "seek", str(file), "--resume", "--yes")
    assert pipe.held() == places(sent[:10])
    assert run(pipe.config(), NO_SPARK).landed == 40
    assert pipe.held() == places(sent)


def test_a_dead_letter_lands_on_its_shard(pipe: Pipe) -> None:
    sent = send(pipe.kafka, pipe.topics[0], [*numbered(10), b'{"id": "10"}', *numbered(10, first=11)])
    assert run(pipe.config(), NO_SPARK) == Totals(landed=20, dead_lettered=1)
    fixed, file = pipe.folder / "fixed.jsonl", pipe.write_file()
    letter = {"topic": pipe.topics[0], "partition": 0, "offset": 10, "value": {"id": 10, "name": "n10"}}
    fixed.write_text(json.dumps(letter) + "\n")
    assert "1 landed" in pipe.command("dead", "replay", str(file), "--with", str(fixed), "--yes")
    assert pipe.held() == places(sent)
    everything = pipe.both.distributed(pipe.table, "cityHash64(id)")
    assert pipe.both.skipping(everything, "id = 10") == 1


# ── pushes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ShardPushes(Pushes):
    """Into one table on two servers. The second one is reached through `second`."""

    both: TwoShards
    second: Silencer


@pytest.fixture
def pushes(both: TwoShards, new_table: Callable[[], str], tmp_path: Path) -> Iterator[ShardPushes]:
    table, server = new_table(), both.servers[1]
    both.on_each(TABLE.format(table, ""))
    proxy = Silencer(server.http_port, lambda answer: answer)
    urls = [both.endpoints[0], server.url.replace(f":{server.http_port}/", f":{proxy.port}/")]
    sink = landonce.clickhouse(endpoints=urls, table=table, weights=WEIGHTS, shard_by=["id"], deadline=1)

    def held() -> list[Any]:
        return [row for each in both.servers for row in in_clickhouse(each, table)]

    site = ShardPushes(tmp_path, sink, held, f"sqlite:///{tmp_path / 'ledger'}")
    site.both, site.second = both, proxy
    yield site
    for each in (*site.sinks, proxy):
        each.close()


@pytest.mark.long
def test_pushes_land_wherever_one_ends(pushes: ShardPushes) -> None:
    comes_back(pushes)
    in_their_places(pushes)


def in_their_places(pushes: ShardPushes) -> None:
    table, key = str(pushes.sink.table), "cityHash64(id)"
    everything, mine = pushes.both.distributed(table, key), pushes.both.offsets(table)
    assert all(mine), "the rows are spread"
    assert mine == pushes.both.as_distributed(table, everything, key)


def test_a_push_that_ended_between_two_shards_sends_the_rest(
    pushes: ShardPushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends once the first shard has its rows. The next one looks for them on each shard."""
    pushes.push(pushes.once(), 0, 10)
    monkeypatch.setattr(shards, "reach", sys.exit)
    with pytest.raises(SystemExit, match=r"shard\.after"):
        pushes.push(pushes.once(), 10, 60)
    monkeypatch.undo()
    first, second = map(max, pushes.both.offsets(str(pushes.sink.table)))
    assert (first >= 10, second < 10) == (True, True)
    again = pushes.once()
    assert again.position(0) == 10
    assert pushes.push(again, 5, 60).landed == len(there(10, 60))
    pushes.holds(60)
    in_their_places(pushes)


def test_a_push_waits_for_a_shard_that_is_down(pushes: ShardPushes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until `stall`. The same push again lands once, on both."""
    monkeypatch.setattr(connection, "_PAUSES", (0.1,))  # between questions
    once = pushes.once(stall=1)
    pushes.push(once, 0, 10)
    pushes.second.silent = True
    with pytest.raises(Stalled):
        pushes.push(once, 10, 60)
    assert once.position(0) == 10
    pushes.second.silent = False
    assert pushes.push(once, 10, 60).landed == len(there(10, 60))
    pushes.holds(60)


@pytest.mark.long
def test_a_push_by_another_map_is_refused_while_one_is_pending(pushes: ShardPushes) -> None:
    pushes.push(pushes.once(), 0, 10)
    pushes.dies("commit", 10, 60)
    before = pushes.sink
    pushes.sink = before.model_copy(update={"shard_by": ("word",)})
    with pytest.raises(PlanChanged, match=r"now writes to .* by cityHash64\(`word`\)"):
        pushes.push(pushes.once(), 10, 60)
    pushes.sink = before
    pushes.push(pushes.once(), 10, 60)
    pushes.sink = before.model_copy(update={"shard_by": ("word",)})
    pushes.push(pushes.once(), 60, 90)
    pushes.holds(90)


# ── doubt, and another map ───────────────────────────────────────────────────────────────────────────────────────────


class Dies(Exception):
    """The driver ends here."""


def dies_at(step: Step) -> Watch:
    def act(effect: Effect) -> None:
        if effect.step is step:
            raise Dies

    return Watch(at=act)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"weights": [4, 3]}, id="weights"),
        pytest.param({"shard_by": ["name"]}, id="shard_by"),
        pytest.param({"shard_by": "id", "hash": "xxHash64"}, id="hash", marks=pytest.mark.long),
        pytest.param({"endpoints": "turned"}, id="order", marks=pytest.mark.long),
        pytest.param({"endpoints": "one", "weights": [1]}, id="fewer"),
    ],
)
def test_another_map_is_refused_while_a_plan_is_pending(pipe: Pipe, other: dict[str, Any]) -> None:
    if "endpoints" in other:
        urls = pipe.both.endpoints
        other = {**other, "endpoints": urls[::-1] if other["endpoints"] == "turned" else urls[:1]}
    sent = send(pipe.kafka, pipe.topics[0], numbered(40))
    schema = {"schema": "id BIGINT NOT NULL, name STRING NOT NULL"}
    with pytest.raises(Dies):
        run(pipe.config(kafka=schema), NO_SPARK, dies_at(Step.COMMIT))
    with pytest.raises(PlanChanged, match="another shard map"):
        run(pipe.config(kafka=schema, clickhouse=other), NO_SPARK)
    checked = check_pipeline(open_parts(pipe.config(kafka=schema, clickhouse=other)))
    assert any("pending plan was made" in each.what for some in checked.sections for each in some.findings)
    assert run(pipe.config(kafka=schema), NO_SPARK).landed == 40
    assert pipe.held() == places(sent)
    sent += send(pipe.kafka, pipe.topics[0], numbered(40, first=40))
    assert run(pipe.config(kafka=schema, clickhouse=other), NO_SPARK).landed == 40, (
        "without a pending plan it may change"
    )
    assert pipe.held() == places(sent)


@pytest.mark.parametrize("looks_everywhere", [True, False], ids=["sound", "control"])
def test_rows_of_another_map_are_recognised_where_they_are(
    pipe: Pipe, looks_everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was lost after the map changed: what landed before is on other shards than it would be now. The control looks for each row
    on its own shard alone, and lands it twice."""
    sent = send(pipe.kafka, pipe.topics[0], numbered(60))
    run(pipe.config(), NO_SPARK)
    (pipe.folder / "p.ledger").unlink()
    changed = {"hash": "xxHash64"}
    checked = check_pipeline(open_parts(pipe.config(clickhouse=changed)))
    said = [each.what for some in checked.sections for each in some.findings]
    assert any("would now go to another shard" in each for each in said)
    if not looks_everywhere:
        probe = ShardedWriter.probe

        def of_owners(self: ShardedWriter, rows: pa.Table, ranges: Any) -> Any:
            owner, asked = self._owners(rows), tuple(ranges)
            alone = [ShardedWriter(self._map, [each]) for each in self._writers]
            monkeypatch.setattr(shards, "torn", lambda *_: False)
            parts = [probe(each, rows, asked) for each in alone]
            missing = np.choose(owner, [np.asarray(each.missing) for each in parts])
            presence = parts[0].presence.__class__(rows.num_rows, int(missing.sum()))
            return parts[0].__class__(presence, pa.array(missing))

        monkeypatch.setattr(ShardedWriter, "probe", of_owners)
    run(pipe.config(clickhouse=changed), NO_SPARK)
    assert (pipe.held() == places(sent)) is looks_everywhere


def test_a_shard_that_lost_its_rows_gets_them_again_and_the_other_nothing_twice(pipe: Pipe) -> None:
    sent = send(pipe.kafka, pipe.topics[0], numbered(60))
    with pytest.raises(Dies):
        run(pipe.config(), NO_SPARK, dies_at(Step.COMMIT))
    pipe.both.servers[1].ask(f"TRUNCATE TABLE {pipe.table}")
    assert run(pipe.config(), NO_SPARK).landed == 60
    assert pipe.held() == places(sent)


def test_a_part_of_what_one_shard_should_hold_is_not_filled_up_unasked(pipe: Pipe) -> None:
    send(pipe.kafka, pipe.topics[0], numbered(60))
    with pytest.raises(Dies):
        run(pipe.config(), NO_SPARK, dies_at(Step.COMMIT))
    pipe.both.servers[1].ask(f"ALTER TABLE {pipe.table} DELETE WHERE id % 2 SETTINGS mutations_sync = 2")
    with pytest.raises(Exception, match="holds some of its rows and lacks others"):
        run(pipe.config(), NO_SPARK)
    pipe.command("state", "fill", str(pipe.write_file()), "--yes")
    run(pipe.config(), NO_SPARK)
    assert "exactly once" in pipe.command("verify", str(pipe.write_file()))


def test_a_slow_shard_keeps_the_position_and_gets_nothing_twice(pipe: Pipe) -> None:
    """The other one has its rows meanwhile. The insert of the second shard waits on its way."""
    (first, second), watch = pipe.both.servers, Watch()
    with closing(Holding(second.http_port)) as proxy:
        slow = second.url.replace(f":{second.http_port}/", f":{proxy.port}/")
        config = pipe.config(clickhouse={"endpoints": [first.url, slow], "deadline": "100s"})
        sent = send(pipe.kafka, pipe.topics[0], numbered(30))
        run(config, NO_SPARK)
        at = pipe.position()
        proxy.go.clear()
        sent += send(pipe.kafka, pipe.topics[0], numbered(30, first=30))
        with running(config, NO_SPARK, watch):
            wait_until(lambda: int(first.ask(f"SELECT max(_offset) FROM {pipe.table}")) >= 30, 60)
            assert int(second.ask(f"SELECT max(_offset) FROM {pipe.table}")) < 30, "the second shard has its rows"
            assert pipe.position() == at
            proxy.go.set()
            wait_until(lambda: sum(each.totals.landed for each in watch.batches) == 30, 60)
    assert pipe.held() == places(sent)
    assert letters(pipe.dead) == []


def test_no_password_of_any_endpoint_is_on_any_surface(pipe: Pipe) -> None:
    urls = [server.url_for(user) for server, user in zip(pipe.both.servers, USERS, strict=True)]
    section = {"endpoints": urls, "shard_by": "maybe", "hash": "none"}
    send(pipe.kafka, pipe.topics[0], numbered(10))
    file = pipe.write_file(clickhouse={"endpoints": urls})
    said = [pipe.command("check", str(file)), pipe.command("run", str(file), "--once")]
    said += [pipe.command("verify", str(file)), pipe.command("state", "show", str(file), "--json")]
    said.append((pipe.folder / "p.ledger").read_bytes().decode("latin-1"))
    with pytest.raises(TableUnfit) as refused:
        run(pipe.config(clickhouse={**section, "create": False}), NO_SPARK)
    said.append(str(refused.value))
    parts = open_parts(pipe.config(clickhouse={"endpoints": urls}))
    said += [repr(parts.sink), str(parts.sink), repr(parts.config), parts.sink.identity]
    for user in USERS:
        for secret in (user.password, quote(user.password, safe="")):
            assert not [each for each in said if secret in each]
