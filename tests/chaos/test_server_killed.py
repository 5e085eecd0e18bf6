"""The ClickHouse server is killed with -9 while a driver runs on: in the middle of an insert, and between token and part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
from harness import Drivers
from proxy import Insert, Proxy
from rename_kills import killed_at_rename
from scene import freeze, scene, thaw, wait_for

from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.blocks import token

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


def test_killed_in_the_middle_of_an_insert(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """A column that takes its time makes every insert last most of a second, so that there is a middle to kill."""
    table, go = new_table(), tmp_path / "go"
    with (
        LocalClickHouse(tmp_path / "clickhouse") as server,
        scene(tmp_path, kafka, server, new_topic(partitions=2), table, master="local[2]", drivers=drivers) as pipeline,
    ):
        pipeline.feed.more(1200, bad_every=50)
        run = pipeline.start("prepare.before", go=go)
        run.wait_reached()
        server.ask(f"ALTER TABLE {table} ADD COLUMN slow UInt8 MATERIALIZED sleepEachRow(0.0025)")
        go.touch()
        wait_for(lambda: running(server) > 0.1, "an insert was seen in the middle", run)
        server.kill()
        assert not server.running
        server.start()
        server.wait_ready()
        assert run.finish() == 0, run.tail()
        assert any(event["event"] == "trouble" for event in run.events()), "the driver never noticed"
        pipeline.exact()


def test_killed_between_token_and_part(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The server remembers the token of rows that it lost. Only another generation brings them back."""
    go = tmp_path / "go"
    with (
        LocalClickHouse(tmp_path / "clickhouse") as server,
        Proxy(server.http_port) as proxy,
        scene(
            tmp_path, kafka, server, new_topic(partitions=2), new_table(), url=proxy.url(server.url), drivers=drivers
        ) as pipeline,
    ):
        pipeline.feed.more(1200, bad_every=50)
        run = pipeline.start("prepare.before", go=go)
        run.wait_reached()
        with killed_at_rename(server, tmp_path / "strace.log"):
            go.touch()
            wait_for(lambda: not server.running, "the server was killed at its first rename", run)
        freeze(run)
        lost = proxy.inserts[-1]
        server.kill()
        server.start()
        server.wait_ready()

        # The control: a writer that trusts the token waits for these rows for ever.
        for _ in range(3):
            proxy.deliver(without_deadline(lost))
        assert lost.status == 200, lost.answer
        assert pipeline.rows() == []

        state = pipeline.state()
        assert state is not None
        assert state.pending is not None
        [block] = [each for each in state.pending.blocks if token(state.identity, each) == lost.token]
        assert block.generation == 0
        thaw(run)
        assert run.finish() == 0, run.tail()
        assert "is acknowledged and not there" in run.log.read_text()
        later = [token(state.identity, replace(block, generation=each)) for each in (1, 2, 3)]
        assert [each.token for each in proxy.inserts if each.token in later and each.status == 200] == later[:1]
        pipeline.exact()


def running(server: LocalClickHouse) -> float:
    """For how many seconds the longest insert of landonce has been running."""
    asked = "SELECT max(elapsed) FROM system.processes WHERE startsWith(query_id, 'landonce:')"
    return float(oracle.ask(server.url, asked).strip())


def without_deadline(insert: Insert) -> Insert:
    """The same request, to the byte, but for its deadline."""
    never = b"9" * len(str(insert.deadline))
    insert.request = insert.request.replace(str(insert.deadline).encode(), never)
    return insert
