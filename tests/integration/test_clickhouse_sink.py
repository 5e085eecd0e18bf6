"""The ClickHouse sink against a real server: one insert is one part, and every answer means what it is said to mean."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_tables import (
    COORDINATES,
    WINDOW,
    Proxy,
    block,
    covering,
    insert,
    make,
    parts,
    sink_for,
    stall,
    wait_until,
)

import landonce
from landonce.errors import TargetRefused, TargetUnavailable
from landonce.local import LocalClickHouse, LocalUser
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Presence, Reply
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.clickhouse import connection as requests
from landonce.sinks.clickhouse import keyed
from landonce.sinks.clickhouse.address import TableName
from landonce.sinks.clickhouse.connection import connect
from landonce.sinks.clickhouse.replies import judge
from landonce.sinks.clickhouse.table import describe

pytestmark = pytest.mark.integration

NewTable = Callable[[], str]


def numbers(count: int, first: int = 0) -> pa.Table:
    return block({"id": pa.array(np.arange(first, first + count), pa.int64())}, first=first)


def test_a_block_is_one_part_and_a_resend_changes_nothing(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = pickle.loads(pickle.dumps(sink_for(clickhouse, table)))
    target, writer = sink.target(), sink.writer()
    rows = numbers(1000)
    assert [writer.send(rows, insert(target, "a")) for _ in range(2)] == [Reply.ACKNOWLEDGED] * 2
    assert parts(clickhouse, table) == [1000]
    assert writer.probe(rows, covering(rows)).presence.complete
    assert writer.count(covering(rows)) == 1000


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(1_500_000, 8), (900_000, 500)], ids=["many rows", "many bytes"])
def test_a_large_block_stays_one_part(clickhouse: LocalClickHouse, new_table: NewTable, count: int, size: int) -> None:
    table = new_table()
    make(clickhouse, table, "s String")
    sink = sink_for(clickhouse, table)
    target, writer = sink.target(), sink.writer()
    rows = block({"s": pa.array(["x" * size] * count, pa.string())})
    in_chunks = pa.concat_tables([rows.slice(start, 70_000) for start in range(0, count, 70_000)])
    for each in (rows, in_chunks):
        assert writer.send(each, insert(target, "large")) is Reply.ACKNOWLEDGED
        assert parts(clickhouse, table) == [count]
    clickhouse.ask(f"DROP TABLE {table}")


def test_a_table_whose_columns_are_no_match_for_a_url_gets_its_rows_as_one_part(
    clickhouse: LocalClickHouse, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the statement nor the names and types of the columns fit into a URL, or into one field of a form, which is refused for good."""
    table = new_table()
    wide = Schema(tuple(Field(f"{'long_' * 40}{at}", pa.int64()) for at in range(700)))
    sink = sink_for(clickhouse, table)
    target = sink.target()
    target.create(wide, partition_by="_offset % 2")
    assert not [each for each in target.check() if each.level == "refused"]
    rows = block({each.name: pa.array([at, None], pa.int64()) for at, each in enumerate(wide.fields)})
    writer = sink.writer()
    for _ in range(2):
        assert writer.send(rows, insert(target, "wide")) is Reply.ACKNOWLEDGED, writer.said
        assert parts(clickhouse, table) == [1, 1]
    first, last = wide.fields[0].name, wide.fields[-1].name
    assert clickhouse.ask(f"SELECT {first}, {last} FROM {table} ORDER BY _offset").split() == ["0", "699", "\\N", "\\N"]
    clickhouse.ask(f"ALTER TABLE {table} DELETE WHERE _offset = 1 SETTINGS mutations_sync = 1", timeout=60)
    assert writer.probe(rows, covering(rows)).presence == Presence(2, 1, torn=False)
    monkeypatch.setattr(requests, "MOST_BYTES_OF_A_FIELD", 10**7)
    with pytest.raises(TargetRefused, match="request too large"):
        writer.send(rows, insert(target, "in one field"))
    clickhouse.ask(f"DROP TABLE {table}")


@pytest.mark.parametrize("setting", ["max_ast_elements", "max_columns_to_read"])
def test_a_request_that_will_never_be_taken_is_not_tried_again(tmp_path: Path, setting: str) -> None:
    odd = LocalUser("odd")
    server = WithProfile(tmp_path / "ch", extra_users=(odd,))
    server.profile = f"<{setting}>20</{setting}><constraints><{setting}><const/></{setting}></constraints>"
    with server:
        make(server, "t", ", ".join(f"c{at} Nullable(Int64)" for at in range(30)))
        sink = landonce.clickhouse(server.url_for(odd), "t").to_sink("orders")
        rows = block({f"c{at}": [1] for at in range(30)})
        with pytest.raises(TargetRefused, match=r"too (large|many)"):
            sink.writer().send(rows, insert(sink_for(server, "t").target(), "a"))


HOSTILE = {
    "async_insert": 1, "wait_for_async_insert": 0, "insert_deduplicate": 0, "deduplicate_insert": "disable",
    "deduplicate_insert_select": "disable", "max_insert_block_size": 100, "min_insert_block_size_rows": 100,
    "min_insert_block_size_bytes": 100, "max_insert_threads": 4, "use_strict_insert_block_limits": 1, "max_block_size": 100,
    "max_partitions_per_insert_block": 1, "final": 1, "session_timezone": "Asia/Tokyo", "insert_null_as_default": 0,
    "output_format_arrow_string_as_string": 0, "date_time_overflow_behavior": "saturate",
}  # fmt: skip
CACHING = {"use_query_cache": 1, "query_cache_min_query_runs": 0}
CUTTING = {
    "max_rows_to_read": 2000,
    "max_result_rows": 5,
    "read_overflow_mode": "break",
    "result_overflow_mode": "break",
}
EMPTY = {"empty_result_for_aggregation_by_empty_set": 1}


class WithProfile(LocalClickHouse):
    """A server whose user `odd` has a profile of its own."""

    profile = ""

    def _config_xml(self) -> str:
        config = super()._config_xml().replace("</profiles>", f"<odd>{self.profile}</odd></profiles>")
        before, _, after = config.partition("<odd><password>")
        return before + "<odd><password>" + after.replace("<profile>default</profile>", "<profile>odd</profile>", 1)


@pytest.mark.parametrize("more", [CACHING, CUTTING, EMPTY], ids=["caching", "cutting", "empty"])
def test_no_profile_can_take_the_guarantee_away(tmp_path: Path, more: dict[str, object]) -> None:
    odd = LocalUser("odd")
    server = WithProfile(tmp_path / "ch", extra_users=(odd,))
    server.profile = "".join(f"<{name}>{value}</{name}>" for name, value in {**HOSTILE, **more}.items())
    with server:
        make(server, "t", "id Int64", rest="PARTITION BY id % 3 ORDER BY _offset")
        sink = landonce.clickhouse(server.url_for(odd), "t").to_sink("orders")
        target, writer = sink.target(), sink.writer()
        rows = numbers(3000)
        for _ in range(2):
            assert writer.send(rows, insert(target, "a")) is Reply.ACKNOWLEDGED
            assert parts(server, "t") == [1000, 1000, 1000]
            assert writer.probe(rows, covering(rows)).presence.complete
        next_rows = numbers(10, first=3000)
        assert writer.count(covering(next_rows)) == 0
        assert writer.probe(next_rows, covering(next_rows)).presence.missing == 10
        writer.send(next_rows, insert(target, "b"))
        assert writer.probe(next_rows, covering(next_rows)).presence.missing == 0


def test_a_table_with_more_lists_than_queries_may_be_deep(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, ", ".join(f"c{at} Array(Int64) DEFAULT [{at}]" for at in range(130)))
    sink = sink_for(clickhouse, table)
    rows = block({f"c{at}": pa.array([[1], None], pa.list_(pa.int64())) for at in range(130)})
    assert sink.writer().send(rows, insert(sink.target(), "a")) is Reply.ACKNOWLEDGED
    assert clickhouse.ask(f"SELECT c0, c129 FROM {table} ORDER BY _offset").split() == ["[1]", "[1]", "[0]", "[129]"]


def test_no_profile_cuts_a_set_of_keys_short(tmp_path: Path) -> None:
    """The block would count as landed, though the rows that it takes away are still there."""
    odd = LocalUser("odd")
    server = WithProfile(tmp_path / "ch", extra_users=(odd,))
    server.profile = "<max_rows_in_set>10</max_rows_in_set><set_overflow_mode>break</set_overflow_mode>"
    with server:
        columns = "id Int64, sign Int8, _topic String, _partition Int32, _offset Int64"
        server.ask(f"CREATE TABLE t ({columns}) ENGINE = CollapsingMergeTree(sign) ORDER BY id SETTINGS {WINDOW}")
        server.ask("INSERT INTO t SELECT number, 1, 't', 0, number FROM numbers(199990, 10)")
        connection = connect(landonce.clickhouse(server.url_for(odd), "t").to_sink("orders").access)
        taken = block({"id": np.arange(200_000), "sign": np.full(200_000, -1, np.int8)})
        assert keyed.still_there(connection, describe(connection, TableName("default", "t"), ("id",)), taken)


def test_the_answer_to_a_long_question_is_read_whatever_the_profile_adds_to_it(tmp_path: Path) -> None:
    odd = LocalUser("odd")
    server = WithProfile(tmp_path / "ch", extra_users=(odd,))
    server.profile = (
        "<send_progress_in_http_headers>1</send_progress_in_http_headers>"
        "<http_headers_progress_interval_ms>10</http_headers_progress_interval_ms>"
    )
    with server:
        connection = connect(landonce.clickhouse(server.url_for(odd), "t").to_sink("orders").access)
        assert connection.one("SELECT count(sleepEachRow(0.02)) FROM numbers(140) SETTINGS max_block_size = 1") == 140


def test_a_profile_that_fixes_a_setting_is_refused_by_name(tmp_path: Path) -> None:
    odd = LocalUser("odd")
    server = WithProfile(tmp_path / "ch", extra_users=(odd,))
    server.profile = (
        "<insert_deduplicate>0</insert_deduplicate>"
        "<constraints><insert_deduplicate><const/></insert_deduplicate></constraints>"
    )
    with server:
        make(server, "t", "id Int64")
        sink = landonce.clickhouse(server.url_for(odd), "t").to_sink("orders")
        with pytest.raises(TargetRefused, match="fixes insert_deduplicate to '0'"):
            sink.writer().send(numbers(1), insert(sink.target(), "a"))


def test_a_late_insert_writes_nothing(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    target, writer = sink.target(), sink.writer()
    assert writer.send(numbers(10), insert(target, "a", seconds=-0.1)) is Reply.LATE
    assert parts(clickhouse, table) == []
    assert writer.send(numbers(10), insert(target, "a")) is Reply.ACKNOWLEDGED


def test_an_upload_that_stalls_is_no_insert_and_is_late_in_the_end(
    clickhouse: LocalClickHouse, new_table: NewTable
) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    target, writer = sink.target(), sink.writer()
    stalled = stall(sink, numbers(200_000), target.now() + 1000)
    time.sleep(1.5)
    assert target._running() == ()
    target.kill()
    answer = stalled.finish()
    assert judge(answer, "", table) is Reply.LATE
    assert parts(clickhouse, table) == []
    assert writer.send(numbers(10), insert(target, "a")) is Reply.ACKNOWLEDGED


def test_a_running_insert_is_killed(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64, slow UInt8 MATERIALIZED sleepEachRow(0.01)")
    sink = sink_for(clickhouse, table)
    target, writer = sink.target(), sink.writer()
    going = insert(target, "a")
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(writer.send(numbers(290), going)))
    thread.start()
    wait_until(lambda: bool(target._running()))
    landonce.clickhouse(clickhouse.url, table).to_sink("other").target().kill()
    assert target._running()  # another pipeline's inserts are left alone
    target.kill()
    assert target._running() == ()
    thread.join(20)
    assert replies == [Reply.REFUSED]
    assert parts(clickhouse, table) == []


def _swallow(_: bytes) -> None:
    return None


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (_swallow, Reply.LOST),
        (lambda _: b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", Reply.LOST),
        (lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Reply.LOST),
        (lambda data: data[:20], Reply.LOST),
        (lambda data: data, Reply.ACKNOWLEDGED),
    ],
    ids=["no answer", "proxy's own 502", "proxy's own 200", "short answer", "whole answer"],
)
def test_only_clickhouse_itself_acknowledges(
    clickhouse: LocalClickHouse, new_table: NewTable, answer: Callable[[bytes], bytes | None], reply: Reply
) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    proxy = Proxy(clickhouse.http_port, answer)
    url = re.sub(r":\d+/", f":{proxy.port}/", clickhouse.url)
    sink = replace(landonce.clickhouse(url, table).to_sink("orders"), timeout=2)
    rows = numbers(10)
    assert sink.writer().send(rows, insert(sink.target(), "a")) is reply
    assert proxy.inserts == 1  # nobody resent by himself
    writer = sink_for(clickhouse, table).writer()
    wait_until(lambda: writer.probe(rows, covering(rows)).presence.complete)
    assert parts(clickhouse, table) == [10]
    proxy.close()


def test_without_a_connection_nothing_was_sent(tmp_path: Path) -> None:
    with LocalClickHouse(tmp_path / "ch") as server:
        make(server, "t", "id Int64")
        sink = sink_for(server, "t")
        target, writer = sink.target(), sink.writer()
        going = insert(target, "a")
        server.kill()
        assert writer.send(numbers(10), going) is Reply.REFUSED
        with pytest.raises(TargetUnavailable):
            writer.probe(numbers(10), covering(numbers(10)))


def test_errors_are_told_apart(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64, CONSTRAINT small CHECK id < 5")
    sink = sink_for(clickhouse, table)
    target, writer = sink.target(), sink.writer()
    with pytest.raises(TargetRefused, match="violated constraint"):
        writer.send(numbers(10), insert(target, "a"))
    with pytest.raises(TargetRefused, match="has no column other"):
        writer.send(block({"id": [1], "other": [2]}), insert(target, "a"))
    with pytest.raises(TargetRefused, match="needs column id"):
        writer.send(numbers(1).drop_columns("id"), insert(target, "a"))
    clickhouse.ask(f"DROP TABLE {table} SYNC")
    with pytest.raises(TargetRefused, match="unknown table"):
        writer.send(numbers(4), insert(target, "a"))


def test_a_wrong_password_is_named_and_no_password_is_shown(tmp_path: Path) -> None:
    with LocalClickHouse(tmp_path / "ch", user="lander", password="right") as server:
        server.ask(f"CREATE TABLE t (id Int64, {COORDINATES}) ENGINE = MergeTree ORDER BY id")
        sink = landonce.clickhouse(server.url.replace("right", "sesame"), "t").to_sink("orders")
        with pytest.raises(TargetRefused, match=r"\b516\b") as refused:
            sink.target().now()
        writer = landonce.clickhouse(server.url, "t").to_sink("orders").writer()
        writer._access = sink.access
        with pytest.raises(TargetRefused, match=r"\b516\b") as refused_insert:
            writer.send(numbers(500_000), insert(landonce.clickhouse(server.url, "t").to_sink("orders").target(), "a"))
        shown = "".join(map(str, [refused.value, refused_insert.value, sink, repr(sink), repr(sink.access)]))
        assert "sesame" not in shown
        assert "right" not in shown


def test_a_user_without_grants_is_reported_which(tmp_path: Path) -> None:
    reader = LocalUser("reader", grants=("GRANT SELECT ON default.t",))
    lander = LocalUser("lander", grants=("GRANT SELECT, INSERT ON default.t", "GRANT SELECT ON system.processes"))
    with LocalClickHouse(tmp_path / "ch", extra_users=(reader, lander)) as server:
        make(server, "t", "id Int64")
        refused = landonce.clickhouse(server.url_for(reader), "t").to_sink("orders")
        with pytest.raises(TargetRefused, match="access denied"):
            refused.writer().send(numbers(1), insert(refused.target(), "a"))
        assert "lacks INSERT" in " ".join(each.what for each in refused.target().check())
        enough = landonce.clickhouse(server.url_for(lander), "t").to_sink("orders")
        assert enough.writer().send(numbers(1), insert(enough.target(), "a")) is Reply.ACKNOWLEDGED
        assert enough.writer().probe(numbers(1), covering(numbers(1))).presence.complete
        assert not [each for each in enough.target().check() if each.level == "refused"]
        enough.target().kill()


def test_a_user_may_kill_his_own_insert_but_not_anothers(tmp_path: Path) -> None:
    lander = LocalUser("lander", grants=("GRANT SELECT, INSERT ON default.t", "GRANT SELECT ON system.processes"))
    with LocalClickHouse(tmp_path / "ch", extra_users=(lander,)) as server:
        make(server, "t", "id Int64, slow UInt8 MATERIALIZED sleepEachRow(0.01)")
        mine, theirs = landonce.clickhouse(server.url_for(lander), "t").to_sink("orders"), sink_for(server, "t")
        target = mine.target()
        for sink, ends in ((mine, True), (theirs, False)):
            writer, going = sink.writer(), insert(target, "a")
            thread = threading.Thread(target=writer.send, args=(numbers(290), going))
            thread.start()
            wait_until(lambda: bool(target._running()))
            if ends:
                target.kill()
            else:
                with pytest.raises(TargetRefused, match="GRANT KILL QUERY"):
                    target.kill()
            thread.join(20)


def test_a_token_that_outlived_its_part_is_used_up_and_the_next_one_lands(tmp_path: Path) -> None:
    """The server records a token before it renames the part into place: killed in between, the token is a lie."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    with LocalClickHouse(tmp_path / "ch") as server:
        make(server, "t", "id Int64")
        sink = sink_for(server, "t", timeout=5)
        rows = numbers(10)
        writer, going = sink.writer(), insert(sink.target(), "used up")
        rename = "rename,renameat,renameat2"
        command = [
            strace,
            "-f",
            "-p",
            str(server.pid),
            "-e",
            f"trace={rename}",
            "-e",
            f"inject={rename}:signal=SIGKILL:when=1",
        ]
        log = tmp_path / "strace"
        with log.open("w") as file:
            tracer = subprocess.Popen(command, stderr=file)
        wait_until(lambda: "attached" in log.read_text())
        time.sleep(0.5)
        assert writer.send(rows, going) is Reply.LOST
        tracer.kill()  # or it may hold the dead server's last thread for ever
        tracer.wait(10)
        server.stop()
        server.start()
        target, writer = sink.target(), sink.writer()
        assert writer.probe(rows, covering(rows)).presence.missing == 10
        assert writer.send(rows, insert(target, "used up")) is Reply.ACKNOWLEDGED
        assert writer.probe(rows, covering(rows)).presence.missing == 10  # acknowledged, and not there
        assert writer.send(rows, insert(target, "next generation")) is Reply.ACKNOWLEDGED
        assert writer.probe(rows, covering(rows)).presence.complete


def test_a_removal_that_takes_long_is_one_mutation(
    clickhouse: LocalClickHouse, new_table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    target = sink.target()
    sink.writer().send(numbers(10), insert(target, "a"))
    monkeypatch.setattr(requests, "_QUERY_SECONDS", 0.5)
    clickhouse.ask(f"SYSTEM STOP MERGES {table}")
    going_on = threading.Timer(2, clickhouse.ask, [f"SYSTEM START MERGES {table}"])
    going_on.start()
    target.remove([Range(Partition("t", 0), 0, 8)])
    going_on.join()
    assert clickhouse.ask(f"SELECT count() FROM {table}").strip() == "2"
    assert clickhouse.ask(f"SELECT count() FROM system.mutations WHERE table = '{table}'").strip() == "1"


def test_looking_tells_the_ends_at_or_above_the_floors(clickhouse: LocalClickHouse, new_table: NewTable) -> None:
    table = new_table()
    make(clickhouse, table, "id Int64")
    sink = sink_for(clickhouse, table)
    target, writer = sink.target(), sink.writer()
    writer.send(numbers(10), insert(target, "a"))
    assert target.look([(Partition("t", 0), 9), (Partition("t", 1), 0), (Partition("u", 0), 0)]).ends == (
        (Partition("t", 0), 10),
    )
    assert target.look([(Partition("t", 0), 10)]).ends == ()
    assert target.look([]).ends == ()
    assert writer.count([Range(Partition("t", 0), 5, 100)]) == 5
    assert target.count([Range(Partition("t", 0), 5, 100), Range(Partition("t", 1), 0, 100)]) == 5
