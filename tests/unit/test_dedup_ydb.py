"""Every statement that the store runs in SQLite, compiled by YDB's own dialect. With `YDB_ENDPOINT`, `tests/contract` runs them there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ydb_sqlalchemy")

from sqlalchemy import event
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.elements import ClauseElement
from ydb_sqlalchemy.sqlalchemy import YqlDialect

from landonce.dedup.accept import reshard
from landonce.dedup.contents import Chunk
from landonce.dedup.runs import Keys, digest_of, encode, first_seen_of
from landonce.dedup.store import Acceptance, Replacement, Store, StorePlace
from landonce.dedup.tables import NEW, SENT, metadata
from landonce.ledger.ydb import YdbDatabase
from landonce.protocol.dedup import ListedRun
from landonce.protocol.ledger import LedgerState, Note
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import Partition, Range

MARK = Mark(LedgerState("p", lineage="l", epoch=1, owner="o", version=1))


def text(statement: ClauseElement) -> str:
    return " ".join(str(statement.compile(dialect=YqlDialect())).split())


T = Partition("t", 0)


def use(store: Store) -> None:
    """All that pipelines and people do with a store."""

    def versions(shards: int) -> dict[int, int]:
        return {number: shard.version for number, shard in store.shards(range(shards)).items()}

    scope = store.make("rule", "id", 2, 3600)
    assert store.look() == scope
    keys = Keys(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64), first_seen_of(1, np.arange(3), 7))
    listed = ListedRun("", 0, 0, 1, 3, 0, digest_of(keys))
    first, merged, last = (store.put_run(listed, encode(keys)) for _ in range(3))
    chunk, other, unlisted = (
        store.put_chunk(Chunk("", "t", 0, 0, 9, 10, 0, 0, "v", accepted=10), b"records") for _ in range(3)
    )
    added = Acceptance({0: 0, 1: 0}, (first,), chunks=(chunk,), kept_copies=(b"c",), terms=scope.terms)
    assert store.commit("p", 0, MARK, added)
    assert store.commit("p", 1, MARK, Acceptance(versions(2), (merged,), (first,)))
    assert store.runs(scope) == (merged,)
    store.forget_runs([first])
    for ask in (store.mark, store.journal, store.removed):
        ask("p")
    assert store.pipelines() == ("p",)
    store.set_ttl(7200)
    assert store.events_of(store.chunks("p", Range(T, 0, 10))[0]) == store.chunk_content(chunk) == b"records"
    assert len(store.keys_of(merged).hi) == 3
    store.old_chunks("p", 1)
    for batch in (1, 2):
        store.put_block("p", batch, 0, "r", 1, b"rows")
        assert store.block("p", batch, 0, "r") is not None
    store.sent("p", 1, {T: 10})
    assert store.sent_up_to("p") == {T: 10}
    assert [each.status for each in store.blocks("p")] == [SENT, NEW]
    assert all(store.table_bytes().values())
    assert store.forget_sent("p", 2**40) == 1
    store.forget_given_up("p", 1, "o")
    assert store.blocks("p") == []
    store.recent(0)
    reshard(store, 4)
    store.expire(4, {1}, 5000)
    note = Note("now", "rekey", "another key")
    by = Replacement(versions(4), "rule", (last,), {"p": (2, MARK)}, note, ("new", "n"), {"p": (other,)}, {T: 3})
    assert store.replace(by)
    assert store.journal("p") == (note,)
    assert store.removed("p") == {T: 3}
    assert list(store.copies("p")) == [b"c"]
    assert store.forget_copies("p", 2**40) == 1
    store.forget_chunks("p", [other])
    store.forget_unlisted([unlisted])
    store.forget_orphans(2**40)
    store.reclaim()


def test_use_names_all_that_a_store_does() -> None:
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    within = {"put_runs", "put_chunks", "run_segments", "replace_shards"}
    no_statement = {"close", "require_shared", "reclaim_beside"}
    assert methods - set(re.findall(r"store\.(\w+)", inspect.getsource(use))) == within | no_statement


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
