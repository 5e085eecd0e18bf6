"""Rows that a database refuses, their letters, documents, and a server that stands still: the parts that need no database."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from landonce.engine.dead_letters import (
    DeadLetter,
    clear_staged,
    committed,
    found,
    publish,
    put_away,
    stage,
    stage_refused,
    stem,
)
from landonce.errors import TargetUnavailable
from landonce.protocol.block_rows import BlockRow, Claim
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import Code, Reason
from landonce.sinks.sql import worker
from landonce.sinks.sql.postgres import Patience, Watch, landing
from landonce.sinks.sql.types import documents_as_text
from landonce.sinks.sql.worker import refused_rows
from landonce.sinks.transactional import Blame, BlockTransaction, Trouble

CLAIM = Claim(1, "me")
PLAN = stem("p", 1, "lineage0")


class Judging(BlockTransaction):
    """A database that refuses some numbers, and knows savepoints."""

    def __init__(self, bad: dict[int, Blame], mine: bool = True) -> None:
        self.bad, self.mine = bad, mine
        self.rows: list[int] = []
        self.saved: list[int] = []
        self.tries = 0

    def flip(self, claim: Claim, receipt: str) -> bool:
        return self.mine

    def read(self) -> BlockRow | None:
        return None

    def write(self, rows: pa.Table) -> None:
        self.tries += 1
        for number in rows.column("n").to_pylist():
            if number in self.bad:
                blame = self.bad[number]
                raise Trouble(f"no {number}", passing=blame is Blame.ELSE, answered=True, blame=blame)
            self.rows.append(number)

    def savepoint(self, statement: str) -> None:
        if statement.startswith("SAVEPOINT"):
            self.saved.append(len(self.rows))
        elif statement.startswith("ROLLBACK"):
            del self.rows[self.saved[-1] :]
        else:
            self.saved.pop()

    def commit(self) -> None:
        raise AssertionError("a search commits nothing")

    def close(self) -> None:
        assert not self.saved


def searched(writer: Judging, count: int = 1000) -> list[tuple[int, str]] | None:
    found = refused_rows(lambda: writer, CLAIM, pa.table({"n": range(count)}), "block")
    return None if found is None else [(at, each.said) for at, each in found]


def test_the_rows_to_blame_are_found_and_all_others_are_taken() -> None:
    writer = Judging(dict.fromkeys((0, 7, 8, 999), Blame.ROW))
    assert searched(writer) == [(0, "no 0"), (7, "no 7"), (8, "no 8"), (999, "no 999")]
    assert sorted(writer.rows) == [n for n in range(1000) if n not in writer.bad]
    assert writer.tries < 100


def test_the_search_ends_with_a_row_that_may_be_welcome_later() -> None:
    assert searched(Judging({3: Blame.ROW, 500: Blame.OTHERS, 600: Blame.ROW})) == [(3, "no 3"), (500, "no 500")]


def test_the_search_ends_where_the_table_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST", 5)
    assert len(searched(Judging(dict.fromkeys(range(1000), Blame.ROW))) or ()) == 6


def test_nothing_is_searched_without_the_claim() -> None:
    assert searched(Judging({}, mine=False)) is None


def test_what_may_pass_is_no_fault_of_a_row() -> None:
    with pytest.raises(TargetUnavailable):
        refused_rows(lambda: _Broken(), CLAIM, pa.table({"n": [1]}), "block")


class _Broken(Judging):
    def __init__(self) -> None:
        super().__init__({1: Blame.ELSE})

    def close(self) -> None:
        """Its savepoint goes with its connection."""


def letter(offset: int) -> DeadLetter:
    return DeadLetter("t", 0, offset, 0, Reason("why", Code.REFUSED_BY_TARGET), None, b"x")


def test_refused_letters_count_only_for_the_attempt_that_landed(tmp_path: Path) -> None:
    """Two attempts at one block saw different things: only what the receipt names is published."""
    plain = stage(tmp_path, PLAN, 3, [letter(1)], [])
    first = stage_refused(tmp_path, PLAN, 3, [letter(5), letter(4)])
    second = stage_refused(tmp_path, PLAN, 3, [letter(4)])
    assert len({plain, first, second}) == 3
    assert stage_refused(tmp_path, PLAN, 3, [letter(4), letter(5)]) == first, "the same records are the same file"
    assert stage_refused(tmp_path, PLAN, 3, []) == ""
    publish(tmp_path, PLAN, [plain, first, ""])
    put_away(tmp_path, PLAN, {plain, first}, [Range(Partition("t", 0), 0, 9)], ())
    assert sorted(each["offset"] for each in committed(tmp_path, "p")) == [1, 4, 5]
    assert not list(tmp_path.glob("*.staged"))
    publish(tmp_path, PLAN, [plain, first])
    assert sorted(each["offset"] for each in committed(tmp_path, "p")) == [1, 4, 5]


def test_refused_letters_that_nobody_takes_up_go(tmp_path: Path) -> None:
    stage_refused(tmp_path, PLAN, 3, [letter(4)])
    clear_staged(tmp_path, found(tmp_path, "p"))
    assert list(tmp_path.iterdir()) == []


def test_nested_values_are_json() -> None:
    inner = pa.struct(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("d", pa.decimal128(9, 2)),
            ("b", pa.binary()),
            ("x", pa.list_(pa.float64())),
        ]
    )
    value = {"t": datetime(2024, 1, 2, tzinfo=timezone.utc), "d": Decimal("1.50"), "b": b"hi", "x": [0.5, float("nan")]}
    rows = pa.table(
        {
            "id": [1, 2],
            "doc": pa.array([value, None], inner),
            "map": pa.array([[("k", 'ü"')], []], pa.map_(pa.string(), pa.string())),
        }
    )
    texts = documents_as_text(rows)
    assert texts.column("id").to_pylist() == [1, 2]
    first, second = texts.column("doc").to_pylist()
    assert json.loads(first) == {"t": "2024-01-02T00:00:00+00:00", "d": "1.50", "b": "aGk=", "x": [0.5, "nan"]}
    assert second is None
    assert texts.column("map").to_pylist() == ['{"k":"ü\\""}', "{}"]
    landed = landing(texts, {"doc": "jsonb", "map": "jsonb"})
    assert landed.column("doc").to_pylist()[1] is None
    assert landed.column("map").to_pylist()[1] == "\x01{}"


def test_a_line_to_a_server_that_answers_nobody_is_cut() -> None:
    """Only lines that were opened since then."""
    old, _kept = socket.socketpair()
    watch = Watch(lambda: False, Patience(every=0.01, unanswered=2))
    mine, theirs = socket.socketpair()
    with old, _kept, mine, theirs:
        mine.settimeout(60)
        assert mine.recv(1) == b"", "a waiting client sees the end"
        old.sendall(b"x")
        assert watch.cut
    watch.end()


def test_a_line_to_a_server_that_answers_is_left_alone() -> None:
    asked = threading.Semaphore(0)

    def alive() -> bool:
        asked.release()
        return True

    watch = Watch(alive, Patience(every=0.01, unanswered=1))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        for _ in range(3):
            assert asked.acquire(timeout=60)
        theirs.sendall(b"x")
        assert mine.recv(1) == b"x"
    watch.end()
    assert not watch.cut


def test_nothing_is_cut_once_it_is_over() -> None:
    going = threading.Event()
    watch = Watch(lambda: not going.wait(60), replace(Patience(), every=0.01, unanswered=1))
    watch.end()
    going.set()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(b"x")
        assert mine.recv(1) == b"x"
    assert not watch.cut
