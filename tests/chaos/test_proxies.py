"""What stands between landonce and ClickHouse loses answers, makes up its own, and delivers requests late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import oracle
import pytest
from harness import Drivers
from plain_driver import PlainDrivers
from proxy import Fate, Insert, Proxy
from scene import scene, wait_for

from landonce.local import LocalClickHouse, LocalKafka
from landonce.sinks.clickhouse.replies import LATE

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

_ENOUGH = 1500
"""Milliseconds that an insert needs at least, on a busy machine, to be in time by way of a proxy that dawdles."""


class Script:
    """Each trouble in turn happens to the next insert that is in time; then nothing does."""

    def __init__(self, clickhouse: str, *troubles: Fate) -> None:
        self._clickhouse = clickhouse
        self.left = list(troubles)

    def __call__(self, insert: Insert) -> Fate:
        now = int(oracle.ask(self._clickhouse, "SELECT toUnixTimestamp64Milli(now64(3))"))
        in_time = now + _ENOUGH < insert.deadline
        return self.left.pop(0) if self.left and in_time else Fate.PASS


@pytest.mark.parametrize(
    "trouble",
    [Fate.LOSE_ANSWER, pytest.param(Fate.CUT_THEN_DELIVER, marks=pytest.mark.long)],
    ids=lambda each: each.name,
)
def test_rows_that_landed_without_an_answer_are_recognised(
    trouble: Fate,
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The server did it, at once or a moment later, and the driver hears nothing: it looks, and sends nothing twice."""
    script = Script(clickhouse.url, trouble)
    with (
        Proxy(clickhouse.http_port, script, delay=0.3) as proxy,
        scene(
            tmp_path,
            kafka,
            clickhouse,
            new_topic(partitions=2),
            new_table(),
            url=proxy.url(clickhouse.url),
            drivers=drivers,
        ) as pipeline,
    ):
        pipeline.edit("deadline: 1s", "deadline: 3s")
        pipeline.feed.more(1200, bad_every=50)
        run = pipeline.drivers.drain()
        [lost] = proxy.of(trouble)
        assert lost.status == 200, f"the server did not take it: {lost.answer}"
        assert lost.answered_at * 1000 < lost.deadline + 1000
        assert "is doubtful" in run.log.read_text()
        assert [
            each.status for each in proxy.inserts[proxy.inserts.index(lost) + 1 :] if each.token == lost.token
        ] == []
        pipeline.exact()


def test_a_gateway_that_answers_by_itself_is_not_believed(
    tmp_path: Path,
    kafka: LocalKafka,
    drivers: type[Drivers],
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """502 may mean that the server has the rows, and may mean that it has not. One of each."""
    script = Script(clickhouse.url, Fate.BAD_GATEWAY, Fate.BAD_GATEWAY_AFTER)
    with (
        Proxy(clickhouse.http_port, script) as proxy,
        scene(
            tmp_path,
            kafka,
            clickhouse,
            new_topic(partitions=2),
            new_table(),
            url=proxy.url(clickhouse.url),
            drivers=drivers,
        ) as pipeline,
    ):
        pipeline.edit("deadline: 1s", "deadline: 3s")
        pipeline.feed.more(1200, bad_every=50)
        run = pipeline.drivers.drain()
        assert script.left == []
        [refused], [taken] = proxy.of(Fate.BAD_GATEWAY), proxy.of(Fate.BAD_GATEWAY_AFTER)
        assert refused.status is None
        assert taken.status == 200, taken.answer
        assert "is doubtful" in run.log.read_text()
        pipeline.exact()


def test_a_request_that_arrives_after_the_successor_has_probed(
    tmp_path: Path,
    kafka: LocalKafka,
    clickhouse: LocalClickHouse,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
) -> None:
    """The driver is dead, its insert is still on the way, and arrives when the successor has looked and not yet sent. The successor starts
    long before the deadline of that insert: it has to wait."""
    script = Script(clickhouse.url, Fate.HOLD)
    with (
        Proxy(clickhouse.http_port, script) as proxy,
        scene(
            tmp_path,
            kafka,
            clickhouse,
            new_topic(partitions=2),
            new_table(),
            url=proxy.url(clickhouse.url),
            deadline="8s",
            drivers=PlainDrivers,
        ) as pipeline,
    ):
        pipeline.feed.more(1200, bad_every=50)
        first = pipeline.drivers.start()
        wait_for(lambda: bool(proxy.of(Fate.HOLD)), "an insert is held", first)
        first.kill()
        [held] = proxy.of(Fate.HOLD)
        before = sorted(pipeline.rows(), key=repr)  # earlier blocks, where the hold met a later one
        sent: list[str] = []
        seen: list[bool] = []

        def deliver_first(insert: Insert) -> Fate:
            """The successor probes before it sends, so whatever it sends comes after its probe."""
            sent.append(insert.token)
            if held.status is None:
                proxy.deliver(held)
                seen.append(sorted(pipeline.rows(), key=repr) == before)
            return Fate.PASS

        proxy.choose = deliver_first
        pipeline.drivers.drain().waited_for(held.deadline)
        assert sent[0] == held.token
        assert seen == [True], "a late insert landed"
        assert held.status is not None, "the server never received the late request"
        assert held.status >= 400
        assert LATE in held.answer
        assert held.answered_at * 1000 > held.deadline
        pipeline.exact()

        # And once more when all is done, for a client that repeats a request without an answer.
        proxy.deliver(held)
        assert LATE in held.answer
        pipeline.exact()
