"""A REST catalog loses answers, makes up its own, delivers commits late, and is killed for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import iceberg_oracle
import pytest
from harness import Drivers
from iceberg_proxy import Commit, Fate, Proxy
from iceberg_scene import Lake, lake
from iceberg_servers import LocalRestCatalog
from scene import wait_for

from landonce.local import LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

_SMALL = "interval: 0s, max_rows: 200, block_rows: 200"
_DONE = (Fate.LOSE_ANSWER, Fate.ERROR_AFTER, Fate.GATEWAY_AFTER)
_NOT_DONE = (Fate.UNAVAILABLE, Fate.CONFLICT, Fate.CUT)


class Script:
    """Each trouble in turn happens to the next commit of rows; then nothing does."""

    def __init__(self, *troubles: Fate) -> None:
        self.left = list(troubles)

    def __call__(self, commit: Commit) -> Fate:
        return self.left.pop(0) if self.left else Fate.PASS


def once_each(pipeline: Lake) -> None:
    """Every batch is in every table by at most one commit."""
    pipeline.exact()
    for name in pipeline.tables:
        batches = iceberg_oracle.batches(pipeline.table(name))
        assert len(set(batches)) == len(batches), batches


@pytest.mark.parametrize("fan_out", [False, pytest.param(True, marks=pytest.mark.long)], ids=["own-ledger", "fan-out"])
def test_answers_that_are_lost_or_made_up(
    fan_out: bool,
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    rest_catalog: LocalRestCatalog,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """Whether a commit was made is found out by looking, and by nothing else. A refused one is made again."""
    with (
        Proxy(rest_catalog.uri, Script(*_DONE, *_NOT_DONE)) as proxy,
        lake(
            tmp_path,
            kafka,
            new_topic(partitions=2),
            fan_out=fan_out,
            namespace=new_table(),
            batch=_SMALL,
            catalog=rest_catalog.properties,
            drivers_catalog={"type": "rest", "uri": proxy.uri},
            drivers=drivers,
        ) as pipeline,
    ):
        pipeline.feed.more(1400, bad_every=50)
        run = pipeline.drivers.drain()
        assert [[each.status for each in proxy.of(fate)] for fate in _DONE] == [[200], [200], [200]]
        assert [[each.status for each in proxy.of(fate)] for fate in _NOT_DONE] == [[None], [None], [None]]
        assert any(event["event"] == "trouble" for event in run.events()), "the driver never noticed"
        once_each(pipeline)


def held(pipeline: Lake, proxy: Proxy) -> Commit:
    """A commit that is on its way while its driver is dead."""
    proxy.choose = Script(Fate.HOLD)
    first = pipeline.drivers.start()
    wait_for(lambda: bool(proxy.of(Fate.HOLD)), "a commit is held", first)
    if len(pipeline.tables) > 1:
        wait_for(lambda: sum(bool(rows) for rows in pipeline.landed().values()) == 2, "the others land", first)
    first.kill()
    [commit] = proxy.of(Fate.HOLD)
    return commit


@pytest.mark.parametrize(
    ("fan_out", "answer"),
    [pytest.param(False, 409, id="own-ledger"), pytest.param(True, 200, id="fan-out", marks=pytest.mark.long)],
)
def test_a_commit_that_arrives_when_the_successor_has_looked(
    fan_out: bool,
    answer: int,
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    rest_catalog: LocalRestCatalog,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """It arrives right before the successor's own. Where the successor took the table first, it is refused; in a fan-out it
    lands, and then the successor's is."""
    with (
        Proxy(rest_catalog.uri) as proxy,
        lake(
            tmp_path,
            kafka,
            new_topic(partitions=2),
            fan_out=fan_out,
            namespace=new_table(),
            catalog=rest_catalog.properties,
            drivers_catalog={"type": "rest", "uri": proxy.uri},
            drivers=drivers,
        ) as pipeline,
    ):
        pipeline.feed.more(600, bad_every=50)
        late = held(pipeline, proxy)

        def deliver_first(_: Commit) -> Fate:
            if late.status is None:
                proxy.deliver(late)
            return Fate.PASS

        proxy.choose = deliver_first
        pipeline.feed.more(600, bad_every=50)
        pipeline.drivers.drain()
        assert late.status == answer
        if fan_out:
            assert [each.status for each in proxy.commits if each.path == late.path][1] == 409
        once_each(pipeline)

        # And once more when all is done, for a client that repeats a request without an answer.
        proxy.deliver(late)
        assert late.status == 409
        once_each(pipeline)


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.long)])
def test_killed_for_a_while(
    seconds: int, tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str]
) -> None:
    """With a batch at the door, and with records that come while it is away."""
    go = tmp_path / "go"
    with (
        LocalRestCatalog(tmp_path / "rest") as server,
        lake(tmp_path, kafka, new_topic(partitions=2), catalog=server.properties, drivers=drivers) as pipeline,
    ):
        pipeline.edit("stall: 60s", "stall: 180s")
        pipeline.feed.more(1200, bad_every=50)
        # Taking and binding, one batch, and the second stands at the door.
        run = pipeline.start("attempt.before", skip=3, go=go, once=False)
        run.wait_reached()
        server.kill()
        assert not server.running
        go.touch()
        pipeline.feed.more(600, bad_every=50)
        wait_for(lambda: "did not answer" in run.log.read_text(), "the driver notices", run)
        time.sleep(seconds)
        server.start()
        server.wait_ready()
        wait_for(pipeline.complete, "everything lands", run, every=0.2)
        assert run.terminate() == 0, run.tail()
        once_each(pipeline)
