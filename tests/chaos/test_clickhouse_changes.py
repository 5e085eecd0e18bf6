"""Records that change rows in ClickHouse, under kills: FINAL is what a dict is that the changes were replayed in.

Keys are changed again and again, in the same block and in later ones, and rows are deleted and come back. The driver is killed at the places
where something is sent or looked for; between two kills the table is merged, and the server itself is killed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from string import Template

import oracle
import pytest
from chain import Kill
from confluent_kafka import Producer
from harness import Drivers, Home
from plain_driver import PlainDrivers

from landonce.local import LocalClickHouse, LocalKafka

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

_PIPELINE = Template("""\
pipeline: chaos
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "id BIGINT, city STRING, n BIGINT NOT NULL"}
sink:
  clickhouse: {url: "$url", table: people, create: true, deadline: 2s, mode: upsert, key: [id], $changes}
ledger: {sqlite: ledger}
batch: {interval: 0s, max_rows: 1000, block_rows: 12}
dead_letters: {path: dead}
stall: 60s
spark: {master: "local[2]"}
""")
KILLS = [
    Kill("prepare.after"),
    Kill("send.after", replay=True),
    Kill("send.after", skip=2, replay=True),
    Kill("probe.after", skip=1, replay=True),
    Kill("rearm.after", replay=True),
    Kill("record.before", replay=True),
    Kill("send.after", skip=1),
    Kill("commit.after", replay=True),
]
IN_ORDER = [replace(each, replay=None) for each in KILLS]
"""Plans have fewer blocks, one of each partition, so some of these kills come in the next plan."""
EVERYWHERE = [
    *KILLS,
    *(
        Kill(f"{step}.{side}")
        for step in ("await", "kill", "rearm", "write", "probe", "send")
        for side in ("before", "after")
    ),
]


FEW = [
    Kill("send.after", skip=1),
    Kill("send.after", replay=True),
    Kill("probe.after", skip=1, replay=True),
    Kill("record.before", replay=True),
]

REPLACING = "changes: {mode: operation}"
ENGINE = "CollapsingMergeTree(_sign)"
COLLAPSING = f"changes: {{mode: debezium}}, engine: {ENGINE}"
Image = dict[str, object] | None


def plain(key: int, before: Image, after: Image) -> list[object]:
    """The new row, or a tombstone."""
    del key, before
    return [after]


def operation(key: int, before: Image, after: Image) -> list[object]:
    return [{"op": "d", "id": key} if after is None else {"op": "u" if before else "c", **after}]


def debezium(key: int, before: Image, after: Image) -> list[object]:
    """A tombstone follows a deletion, as Debezium sends it; it is filtered."""
    del key
    word = "d" if after is None else "u" if before else "c"
    return [{"op": word, "before": before, "after": after}, *([None] if after is None else [])]


def dms(key: int, before: Image, after: Image) -> list[object]:
    """Control records come in between; they are filtered."""
    word = "delete" if after is None else "update" if before else "insert"
    images = {"data": after or {"id": key, "city": None, "n": 0}, **({"before-image": before} if before else {})}
    data = {**images, "metadata": {"operation": word, "record-type": "data"}}
    control = {"metadata": {"operation": "create-table", "record-type": "control"}}
    return [data, *([control] if after is None else [])]


SHAPES: dict[str, Callable[[int, Image, Image], list[object]]] = {
    "upsert": plain,
    "operation": operation,
    "debezium": debezium,
    "dms": dms,
}


class People:
    """The changes, and the dict that they are replayed in. A key stays in one partition of the topic."""

    def __init__(self, bootstrap_servers: str, topic: str, mode: str) -> None:
        self._shape = SHAPES[mode]
        self.rows: dict[int, tuple[str | None, int]] = {}
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._topic, self._random, self.number = topic, random.Random(5), 0
        self.sent = 0

    def change(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            key = self._random.randrange(12)
            before = self._image(key)
            if before and self._random.random() < 0.3:
                del self.rows[key]
            else:
                self.rows[key] = (self._random.choice(["Rome", "Oslo", None]), self.number)
            for value in self._shape(key, before, self._image(key)):
                body = None if value is None else json.dumps(value)
                self._producer.produce(self._topic, body, key=json.dumps({"id": key}), partition=key % 3)
                self.sent += 1
        assert self._producer.flush(30) == 0

    def _image(self, key: int) -> Image:
        city, n = self.rows.get(key, (None, 0))
        return {"id": key, "city": city, "n": n} if key in self.rows else None


def summed(url: str) -> dict[int, tuple[int, int]]:
    """Of a table that collapses: the sum of the signs, and of `n`, of every key that is there."""
    sql = "SELECT id, sum(_sign) AS s, sum(n * _sign) AS v FROM people GROUP BY id HAVING s <> 0 OR v <> 0"
    rows = [json.loads(line) for line in oracle.ask(url, f"{sql} FORMAT JSONCompactEachRow").splitlines()]
    return {int(key): (int(sign), int(n)) for key, sign, n in rows}


def found(url: str) -> dict[int, tuple[str | None, int]]:
    answer = oracle.ask(url, "SELECT id, city, n FROM people FINAL FORMAT JSONCompactEachRow")
    rows = [json.loads(line) for line in answer.splitlines()]
    assert len({row[0] for row in rows}) == len(rows), "a key is there twice"
    return {int(key): (city, int(n)) for key, city, n in rows}


@pytest.mark.parametrize(
    ("drivers", "kills", "changes"),
    [
        pytest.param(PlainDrivers, KILLS, REPLACING, id="replacing"),
        pytest.param(PlainDrivers, IN_ORDER, COLLAPSING, id="collapsing"),
        pytest.param(PlainDrivers, FEW, "changes: {mode: debezium}", id="debezium"),
        *(
            pytest.param(PlainDrivers, FEW, f"changes: {{mode: {mode}}}", id=mode, marks=pytest.mark.long)
            for mode in ("upsert", "dms")
        ),
        pytest.param(
            PlainDrivers,
            IN_ORDER,
            COLLAPSING.replace("debezium", "dms"),
            id="collapsing-dms",
            marks=pytest.mark.long,
        ),
        pytest.param(PlainDrivers, EVERYWHERE, REPLACING, id="replacing-everywhere", marks=pytest.mark.long),
        pytest.param(
            PlainDrivers,
            [*IN_ORDER, *EVERYWHERE[len(KILLS) :]],
            COLLAPSING,
            id="collapsing-everywhere",
            marks=pytest.mark.long,
        ),
        pytest.param(Drivers, KILLS, REPLACING, id="spark", marks=pytest.mark.long),
    ],
)
def test_final_is_the_dict_after_every_kill(
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
    drivers: type[Drivers],
    kills: list[Kill],
    changes: str,
) -> None:
    topic = new_topic(partitions=3)
    mode = changes.partition("mode: ")[2].partition("}")[0]
    people = People(kafka.bootstrap_servers, topic, mode)
    home = Home(tmp_path)
    with LocalClickHouse(tmp_path / "clickhouse") as server, drivers(home) as started:
        home.save(_PIPELINE.substitute(bootstrap=kafka.bootstrap_servers, topic=topic, url=server.url, changes=changes))
        for number, kill in enumerate(kills):
            people.change(40)
            run = started.kill_at(kill.place, skip=kill.skip)
            if kill.replay is not None:
                assert run.replaying() == kill.replay, f"{kill}: {run.steps()}"
            if number % 2:
                oracle.ask(server.url, "OPTIMIZE TABLE people FINAL")
            if number == 3:
                server.kill()
                server.start()
                server.wait_ready()
        started.drain()
        assert found(server.url) == people.rows
        assert 0 < len(people.rows) < 12, "some of them are deleted"
        oracle.ask(server.url, "OPTIMIZE TABLE people FINAL")
        assert found(server.url) == people.rows
        if ENGINE in changes:
            assert summed(server.url) == {key: (1, n) for key, (_, n) in people.rows.items()}
        state = home.state()
        assert state["pending"] is None
        assert (state["totals"]["read"], state["totals"]["landed"]) == (people.sent, people.number)
        assert (people.sent > people.number) is (mode in ("debezium", "dms")), "some are filtered"
        verified = home.landonce("verify", str(home.file), "--values")
        assert verified.returncode == 0, verified.stdout
        assert not list(tmp_path.glob("dead/*.jsonl"))
