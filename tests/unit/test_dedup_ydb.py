"""Every statement that the store runs in SQLite, compiled by YDB's own dialect. With `YDB_ENDPOINT`, `tests/contract` runs them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ydb_sqlalchemy")

from sqlalchemy import event
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.elements import ClauseElement
from ydb_sqlalchemy.sqlalchemy import YqlDialect

from landonce.dedup.contents import Chunk
from landonce.dedup.reshard import reshard
from landonce.dedup.runs import Keys, digest_of, encode, first_seen_of
from landonce.dedup.store import Acceptance, Store, StorePlace
from landonce.dedup.tables import metadata
from landonce.ledger.ydb import YdbDatabase
from landonce.protocol.dedup import Run
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import Partition, Range

MARK = Mark(LedgerState("p", lineage="l", epoch=1, owner="o", version=1))


def text(statement: ClauseElement) -> str:
    return " ".join(str(statement.compile(dialect=YqlDialect())).split())


def use(store: Store) -> None:
    """All that a pipeline does with its store."""
    scope = store.make("rule", "id", 2, 3600)
    keys = Keys(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64), first_seen_of(1, np.arange(3), 7))
    run = store.put_run(Run("", 0, 0, 1, 3, 0, digest_of(keys)), encode(keys))
    chunk = store.put_chunk(Chunk("", "t", 0, 0, 9, 10, 0, 0, "v", accepted=10), b"records")
    assert store.commit(
        "p", 0, MARK, Acceptance({0: 0, 1: 0}, (run,), chunks=(chunk,), kept_copies=(b"c",), terms=scope.terms)
    )
    for ask in (store.mark, store.journal, store.removed):
        ask("p")
    store.pipelines()
    store.set_ttl(7200)
    store.chunk_content(store.chunks("p", Range(Partition("t", 0), 0, 10))[0])
    store.run_segments(run)
    store.old_chunks("p", 1)
    store.put_block("p", 1, 0, "r", 1, b"rows")
    assert store.block("p", 1, 0, "r") is not None
    store.recent(0)
    store.sent("p", 1)
    store.forget_sent("p", 2**40)
    reshard(store, 4)
    store.expire(4, {1}, 5000)
    assert list(store.copies("p")) == [b"c"]
    assert store.forget_copies("p", 2**40) == 1
    store.forget_chunks("p", [chunk])
    store.forget_orphans(2**40)


def test_the_statements_of_the_store_are_statements_of_ydb(tmp_path: Path) -> None:
    store = StorePlace(tmp_path / "store", "clicks").open()
    seen: dict[str, None] = {}

    def keep(_connection: Any, statement: ClauseElement, *_: Any) -> None:
        if getattr(statement, "is_dml", False) or getattr(statement, "is_select", False):
            seen[text(statement)] = None

    event.listen(store.database.engine, "before_execute", keep)
    use(store)
    assert {each.split()[0] for each in seen} == {"SELECT", "INSERT", "UPDATE", "DELETE"}
    assert len(seen) > 30
    assert not [each for each in seen if "EXISTS" in each], (
        "YDB has no subqueries that name a column of the query around them"
    )
    assert not [each for each in seen if each.startswith("DELETE") and "LIMIT" in each]


def test_the_tables_of_the_store_have_keys_of_text() -> None:
    for table in metadata.tables.values():
        made = text(CreateTable(table))
        assert "PRIMARY KEY (" in made
        assert "VARCHAR" not in made


def test_a_store_in_ydb_is_opened_by_its_url() -> None:
    store = StorePlace("ydb://h:2136/local", "clicks").open()
    assert isinstance(store.database, YdbDatabase)
