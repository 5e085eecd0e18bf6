"""The window of deduplication beside a running pipeline: keys expire, payloads and sent blocks are removed, topics are read again."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from deliveries import letters, send

from landonce.dedup import accept, comparing, contents, run, store
from landonce.dedup.pipelines import accepting_ledger
from landonce.dedup.run import DedupTotals, run_pipeline
from landonce.engine.driver import Driver
from landonce.errors import Fenced, TargetUnavailable
from landonce.local import LocalKafka
from landonce.protocol.ledger import taken
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import Pipeline, parse

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
TTL = 80
"""Seconds. Keys are remembered for up to 90."""


@dataclass
class Window:
    """A topic, a store, and a clock that the store and everybody who accepts goes by."""

    kafka: LocalKafka
    folder: Path
    topic: str
    ahead: float = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def send(self, numbers: Iterable[int | None], partition: int = 0, *, ago: float = 0.0) -> None:
        moment = int((self.now() - ago) * 1000)
        send(self.kafka, self.topic, [{"id": each} for each in numbers], partition, timestamp=moment)

    def run(self, pipeline: str = "p", *, batch: int = 1000, **dedup: Any) -> DedupTotals:
        totals = run_pipeline(self.file(pipeline, batch=batch, **dedup), once=True)
        assert isinstance(totals, DedupTotals)
        return totals

    def file(self, pipeline: str = "p", *, batch: int = 1000, **dedup: Any) -> Pipeline:
        """Each pipeline has a table of its own; they share a scope."""
        kafka = {"bootstrap_servers": self.kafka.bootstrap_servers, "topics": [self.topic], "schema": "id BIGINT"}
        document = {
            "pipeline": pipeline,
            "source": {"kafka": kafka},
            "sink": {"sql": {"url": "sqlite:///target.db", "table": pipeline, "create": True}},
            "dedup": {"key": ["id"], "scope": "s", "ttl": TTL, "store": {"sqlite": "store"}, **dedup},
            "batch": {"interval": "0s", "max_rows": batch},
            "dead_letters": {"path": f"dead-{pipeline}", "limit": "100%"},
            "spark": {"master": "local[2]"},
        }
        return parse(yaml.safe_dump(document), self.folder / "p.yaml")

    @contextmanager
    def running(self, **dedup: Any) -> Iterator[list[BaseException]]:
        """A run that goes on. Gives what it fails with."""
        failed: list[BaseException] = []
        drivers: list[Driver] = []

        def run() -> None:
            try:
                run_pipeline(self.file(**dedup), ready=drivers.append)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            self.until(lambda: bool(drivers or failed))
            yield failed
        finally:
            for each in drivers:
                each.stopping.set()
            thread.join(90)
        assert not thread.is_alive()

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 90
        while not done():
            assert time.monotonic() < end
            time.sleep(0.05)

    def rows(self, pipeline: str = "p") -> Counter[int | None]:
        return Counter(each[0] for each in self._ask("target.db", f"SELECT id FROM {pipeline}"))

    def count(self, table: str, what: str = "count(*)") -> int:
        return int(self._ask("store", f"SELECT {what} FROM landonce_{table}")[0][0] or 0)

    def _ask(self, file: str, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / file, timeout=60)) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def window(kafka: LocalKafka, tmp_path: Path, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Window:
    made = Window(kafka, tmp_path, new_topic(2))
    clock = SimpleNamespace(**{**vars(time), "time": made.now})
    for module in (accept, comparing, run, store):
        monkeypatch.setattr(module, "time", clock)
    return made


def test_a_topic_that_is_read_again_lands_nothing(window: Window) -> None:
    """Within the window: each record is known by its own coordinates."""
    window.send(range(100))
    window.send(range(50, 100), partition=1)
    assert window.run().landed == 100
    again = window.run("q")
    assert (again.landed, again.seen_again, again.copies) == (0, 100, 50)
    assert window.rows("q") == Counter()


def test_expired_keys_on_a_topic_that_is_read_again(window: Window) -> None:
    """All of its records are late, and none lands. The control accepts them, and lands all of them again."""
    window.send(range(100))
    assert window.run().landed == 100
    window.ahead = TTL + 30
    window.send([1000])
    assert window.run().landed == 1
    again = window.run("q")
    assert (again.landed, again.dead_lettered, again.seen_again) == (0, 100, 1)
    assert window.rows("q") == Counter()
    assert {each["offset"] for each in letters(window.folder / "dead-q")} == set(range(100))
    dropped = window.run("r", late="drop")
    assert (dropped.landed, dropped.dead_lettered, dropped.filtered) == (0, 0, 101)
    assert window.run("control", late="accept").landed == 100


def test_keys_and_payloads_are_removed_when_their_time_is_over(window: Window) -> None:
    window.send(range(100))
    window.run()
    window.ahead = TTL - 10
    window.send([*range(100), 1000])
    assert window.run().landed == 1, "nothing has expired"
    assert window.count("dedup_run", "sum(key_count)") == 101
    assert window.count("dedup_scope", "horizon") == 0
    window.ahead = TTL + 30
    window.send([1001])
    assert window.run().landed == 1
    assert window.count("dedup_run", "sum(key_count)") == 2
    assert window.count("deduplication", "sum(length(ids) + length(first_seen))") == 2 * 36
    assert window.count("dedup_chunk", "sum(accepted)") == 2, "payloads live as long as their keys"
    assert window.count("new_events") == window.count("dedup_chunk")
    assert 0 < window.count("dedup_scope", "horizon") <= (window.now() - TTL) * 1000
    window.send(range(50))
    assert window.run().landed == 50, "the window is over"
    assert window.rows() == Counter([*range(100), *range(50), 1000, 1001])


def test_files_of_keys_go_with_the_keys(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the machine of the driver: of runs that were merged, and of those that have expired."""
    monkeypatch.setattr(comparing, "scratch_folder", lambda _: window.folder / "files" / "lineage")
    comparing.scratch_of.cache_clear()

    def files() -> set[str]:
        return {each.stem for each in (window.folder / "files" / "lineage").iterdir()}

    def listed() -> set[str]:
        return {each[0] for each in window._ask("store", "SELECT run FROM landonce_dedup_run")}

    window.send(range(400))
    assert window.run(batch=20, shards=1).landed == 400
    assert window.count("dedup_run", "max(level)") > 0, "runs were merged"
    assert files() <= listed()
    assert files()
    window.ahead = TTL + 30
    before = files()
    window.send([1000])
    window.run(shards=1)
    window.send([1001])
    window.run(shards=1)
    assert not before & files()
    comparing.scratch_of.cache_clear()


def _expiring(window: Window, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All keys have expired, each batch has time to remove one run, and 20 batches come. Gives what is there after each of them."""
    window.send(range(100))
    window.run()
    window.ahead = TTL + 30
    window.send([number for number in range(1000, 1100) for _ in range(2)])
    for name in ("_CLEAN_FOR", "_CLEAN_EVERY"):
        monkeypatch.setattr(accept, name, 0.0)
    monkeypatch.setattr(accept, "TOGETHER", 1)
    there: list[int] = []
    clean = accept.OpenAccept.clean

    def counted(opened: accept.OpenAccept, now: int) -> None:
        clean(opened, now)
        there.append(window.count("deduplication") - window.count("dedup_run"))

    monkeypatch.setattr(accept.OpenAccept, "clean", counted)
    return there


def test_no_batch_waits_until_all_that_expired_is_removed(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _expiring(window, monkeypatch)
    assert window.run(batch=10).landed == 100
    assert left[0] > 10, "the first batch waits for one run only"
    assert all(before - after in (0, 1) for before, after in pairwise(left))
    assert left[-1] == 0
    assert window.count("dedup_run", "sum(key_count)") == 100


def test_what_expired_is_removed_after_the_store_was_away(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    _expiring(window, monkeypatch)
    forget, calls = contents.Contents.forget_runs, iter(range(1000))

    def away(opened: contents.Contents, runs: Iterable[Any]) -> None:
        listed = list(runs)
        if listed and next(calls) < 2:
            raise TargetUnavailable("the store is away.")
        forget(opened, listed)

    monkeypatch.setattr(contents.Contents, "forget_runs", away)
    totals = window.run(batch=10)
    assert (totals.landed, totals.copies) == (100, 100)
    assert window.count("deduplication") == window.count("dedup_run")


KEPT = ("dedup_run", "deduplication", "dedup_chunk", "new_events", "dedup_copies", "batches", "batch_pieces")


def _quiet(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (accept, run):
        monkeypatch.setattr(module, "_CLEAN_EVERY", 0.1)
    window.send([*range(100), *range(10)])
    window.run(copies="keep")
    assert all(window.count(each) for each in KEPT)


def test_what_is_over_is_removed_although_no_record_comes(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    _quiet(window, monkeypatch)
    with window.running(copies="keep", keep_sent="30s") as failed:
        window.until(lambda: window.count("batches") > 0 and window.count("dedup_scope", "horizon") == 0)
        window.ahead = TTL + 30
        window.until(lambda: not any(map(window.count, KEPT)))
        window.send(range(50))
        window.until(lambda: sum(window.rows().values()) == 150)
    assert failed == []
    assert window.run().sentence().startswith("0 read")


def test_a_driver_that_lost_the_store_removes_nothing(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was paused, and the owner may have another window by now."""
    _quiet(window, monkeypatch)
    before = [window.count(each) for each in KEPT[:5]]
    idle, waits, goes = accept.OpenAccept.clean_while_idle, threading.Event(), threading.Event()

    def paused(opened: accept.OpenAccept, held: Any) -> None:
        waits.set()
        assert goes.wait(60)
        idle(opened, held)

    monkeypatch.setattr(accept.OpenAccept, "clean_while_idle", paused)
    with window.running(copies="keep") as failed:
        window.until(lambda: waits.is_set() or bool(failed))
        ledger = accepting_ledger(open_parts(window.file()))
        state = ledger.load()
        assert state is not None
        ledger.change(state, taken(state, "another"))
        window.ahead = TTL + 30
        goes.set()
        window.until(lambda: bool(failed))
    assert [type(each) for each in failed] == [Fenced]
    assert [window.count(each) for each in KEPT[:5]] == before


def test_old_topics_can_be_read_by_a_new_scope(window: Window) -> None:
    """Their records are older than the window, and nothing is forgotten yet."""
    window.send(range(100), ago=10 * TTL)
    window.send(range(50), ago=5 * TTL)
    assert window.run().landed == 100
    assert window.rows() == Counter(range(100))


def test_whatever_there_is_to_remove_is_removed(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step removes few rows, and a round takes as many steps as it needs."""
    for module in (contents, store):
        monkeypatch.setattr(module, "AT_ONCE", 3)
    window.send(range(200))
    window.send(range(100, 300), partition=1)
    window.run(batch=20, payloads="sent", keep_sent="1d")
    assert window.count("batches") >= 20
    assert window.count("batch_pieces") >= 20
    window.ahead = 5
    window.send([1000])
    window.run(payloads="sent", keep_sent="1s")
    window.ahead = 10
    window.send([1001])
    window.run(payloads="sent", keep_sent="1s")
    assert window.count("dedup_chunk") <= 1, "the newest may be sent after the round"
    assert window.count("new_events") == window.count("dedup_chunk")
    assert window.count("batches") <= 2
    assert window.count("batch_pieces") == window.count("batches")
    assert window.count("dedup_run", "sum(key_count)") == 302
    window.send(range(300))
    assert window.run(payloads="sent", keep_sent="1s").landed == 0


def test_batches_of_nothing_but_copies_leave_nothing_in_the_store(window: Window) -> None:
    window.send(range(100))
    window.run()
    before = [window.count(table) for table in ("new_events", "deduplication", "dedup_chunk")]
    for _ in range(3):
        window.send(range(100), partition=1)
        assert window.run(batch=20).copies == 100
    assert [window.count(table) for table in ("new_events", "deduplication", "dedup_chunk")] == before


def test_copies_are_kept_as_long_as_keys(window: Window) -> None:
    window.send([*range(10), *range(10)])
    assert window.run(copies="keep").copies == 10
    window.ahead = TTL - 10
    window.send([*range(5), 1000])
    assert window.run(copies="keep").copies == 5
    assert window.count("dedup_copies") == 2, "both batches found some"
    window.ahead = TTL + 30
    window.send([1001])
    window.run()
    assert window.count("dedup_copies") == 1
    window.ahead = 2 * TTL + 40
    window.send([1002])
    window.run()
    assert window.count("dedup_copies") == 0


def test_records_without_a_key_may_be_events_of_their_own(window: Window) -> None:
    """Each is known by its coordinates, so that it is seen again when the topic is."""
    window.send([None, 1, None, 1])
    window.send([None], partition=1)
    assert window.run(on_null="unique").landed == 4
    assert window.rows() == Counter({None: 3, 1: 1})
    again = window.run("q", on_null="unique")
    assert (again.landed, again.seen_again, again.copies) == (0, 4, 1)


def test_null_may_be_a_value(window: Window) -> None:
    window.send([None, 1, None, 1])
    window.send([None], partition=1)
    assert window.run(on_null="value").landed == 2
    assert window.rows() == Counter({None: 1, 1: 1})
