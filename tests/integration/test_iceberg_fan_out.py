"""One read of Kafka, many tables: each holds exactly what is meant for it, whatever becomes of the others or of the ledger."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession
from small_lakes import SmallLake, once

from landonce.config.model import Spark
from landonce.engine import committing
from landonce.engine.spark.session import open_session
from landonce.errors import PlanChanged, TableReplaced, TargetAhead, TargetUnavailable
from landonce.local import LocalKafka
from landonce.sinks.iceberg.driver import OpenIceberg
from landonce.sinks.snapshot import OpenSnapshot

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[SparkSession]:
    session = open_session("test", Spark(master="local[2]"))
    yield session
    session.stop()


@pytest.fixture
def lake(kafka: LocalKafka, new_topic: Callable[..., str], tmp_path: Path) -> SmallLake:
    return SmallLake(kafka, tmp_path, new_topic())


def kinds(lake: SmallLake, names: str, first: int = 0) -> None:
    lake.produce([{"id": first + at, "kind": name} for at, name in enumerate(names)])


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def snapshots(lake: SmallLake, table: str) -> int:
    return len(lake.table(table).snapshots())


def test_static_routes_by_value_by_expression_and_for_everything(lake: SmallLake) -> None:
    tables = [
        {"table": "db.a", "equals": "a"},
        {"table": "db.bc", "match": "b|c+"},
        {"table": "db.also_a", "equals": ["a", "x"]},
    ]
    lake.write_file({"tables": tables, "route_field": "kind", "create": True})
    lake.produce(
        [
            {"id": 0, "kind": "a"},
            {"id": 1, "kind": "cc"},
            {"id": 2, "kind": "?"},
            {"id": 3},
            b"broken",
            {"id": 5, "kind": "b"},
        ]
    )
    totals = lake.run()
    assert (totals.landed, totals.dead_lettered) == (3, 3)
    assert lake.offsets("db.a") == lake.offsets("db.also_a") == Counter([(0, 0)])
    assert lake.offsets("db.bc") == Counter([(0, 1), (0, 5)])
    assert [letter["offset"] for letter in lake.letters()] == [2, 3, 4]


def test_without_a_route_every_table_gets_every_record_or_none_does(lake: SmallLake) -> None:
    lake.write_file({"tables": [{"table": "db.x"}, {"table": "db.y"}], "create": True})
    kinds(lake, "abc")
    lake.run()
    table = lake.table("db.y")
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.make_column_optional("id")
        update.delete_column("kind")
        update.add_column("kind", LongType())
    lake.produce([{"id": 3, "kind": "d"}])
    totals = lake.run()
    assert totals.dead_lettered == 1, "what does not fit one of its tables lands in none"
    assert lake.offsets("db.x") == lake.offsets("db.y") == once(3)


def test_two_hundred_tables_from_one_topic(lake: SmallLake) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True}, batch={"interval": "0s", "max_rows": 3000})
    names = [f"{number:03d}" for number in range(200)]
    lake.produce([{"id": at, "kind": names[at % 200]} for at in range(4000)])
    assert lake.run().landed == 4000
    lake.produce([{"id": 4000, "kind": "007"}])
    assert lake.run().landed == 1
    for number, name in enumerate(names):
        more = [4000] if name == "007" else []
        assert lake.offsets(f"db.k_{name}") == Counter((0, at) for at in [*range(number, 4000, 200), *more])
    assert snapshots(lake, "db.k_007") == snapshots(lake, "db.k_008") + 1, "a table without rows is not committed to"


def test_a_value_that_is_no_name_and_a_table_that_is_not_there_are_dead_letters(lake: SmallLake) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True})
    lake.produce([{"id": 0, "kind": "ok"}, {"id": 1, "kind": "../etc"}, {"id": 2, "kind": ""}])
    assert lake.run().dead_lettered == 2
    lake.write_file({"table": "db.k_{kind}"})
    lake.produce([{"id": 3, "kind": "new"}, {"id": 4, "kind": "ok"}])
    assert (lake.run().landed, len(lake.letters())) == (1, 3)
    assert "no table db.k_new" in lake.letters()[-1]["reason"]


def test_tables_of_a_template_that_are_there_are_taken_though_none_is_made(lake: SmallLake) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True})
    kinds(lake, "a")
    lake.run()
    lake.catalog.create_table("db.k_b", lake.table("db.k_a").schema())
    lake.write_file({"table": "db.k_{kind}"})
    kinds(lake, "bc", first=1)
    assert lake.run().landed == 1
    assert lake.offsets("db.k_b") == Counter([(0, 1)])
    lake.name = "other"
    lake.write_file({"table": "db.k_{kind}"})
    with pytest.raises(TargetAhead, match=r"db\.k_a"):
        lake.run()


def test_expressions_come_before_the_routing(lake: SmallLake) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True}, transform={"where": "id > 0"})
    kinds(lake, "aab")
    totals = lake.run()
    assert (totals.landed, totals.filtered) == (2, 1)
    assert (lake.offsets("db.k_a"), lake.offsets("db.k_b")) == (Counter([(0, 1)]), Counter([(0, 2)]))
    lake.rollback("db.k_b", 1)
    kinds(lake, "ab", first=3)
    lake.run()
    assert (lake.offsets("db.k_a"), lake.offsets("db.k_b")) == (Counter([(0, 1), (0, 3)]), Counter([(0, 2), (0, 4)]))


def test_no_record_halts_the_others_whatever_table_it_names(lake: SmallLake) -> None:
    unfit = Schema(NestedField(1, "x", LongType(), required=False), NestedField(2, "X", LongType(), required=False))
    lake.catalog.create_namespace("db")
    lake.catalog.create_table("db.k_theirs", unfit)
    lake.schema = None
    lake.write_file({"table": "db.k_{kind}", "create": True, "evolve": True, "case_insensitive": True})
    odd = {"kind": "odd", "a.b": 1, "a": {"b": 1}, "c": 1}
    for landed in (2, 4):
        lake.produce([{"kind": "a", "id": 1}, {"kind": "theirs", "x": 1}, odd])
        lake.run()
        assert sum(map(len, (lake.rows("db.k_a"), lake.rows("db.k_odd")))) == landed
    assert [letter["offset"] for letter in lake.letters()] == [1, 4]
    assert all("db.k_theirs cannot take it" in letter["reason"] for letter in lake.letters())


@pytest.mark.parametrize("trouble", [False, True])
def test_a_table_that_is_made_evolves_with_the_rest_of_its_first_batch(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, trouble: bool
) -> None:
    if trouble:
        answers = iter([None, TargetUnavailable("the catalog went away.")])
        monkeypatch.setattr(OpenIceberg, "_upgrade", lambda _: _raise(next(answers, None)))
    lake.schema = None
    lake.write_file({"table": "db.k_{kind}", "create": True, "evolve": True})
    lake.produce([*({"id": at, "kind": "a"} for at in range(1200)), {"id": 1200, "kind": "a", "late": "x"}])
    assert lake.run().landed == 1201
    assert [row["late"] for row in lake.rows("db.k_a")][-2:] == [None, "x"]


def test_one_table_is_rolled_back_and_replayed_alone(lake: SmallLake) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True}, batch={"interval": "0s", "max_rows": 4, "block_rows": 2})
    for round_ in range(4):
        kinds(lake, "aabb", first=4 * round_)
        lake.run()
    before = snapshots(lake, "db.k_b")
    lake.rollback("db.k_a", 1)
    assert lake.offsets("db.k_a") == Counter([(0, 0), (0, 1)])
    kinds(lake, "ab", first=16)
    lake.run()
    assert lake.offsets("db.k_a") == Counter((0, at) for at in [*range(0, 16, 4), *range(1, 16, 4), 16])
    assert lake.offsets("db.k_b") == Counter((0, at) for at in [*range(2, 16, 4), *range(3, 16, 4), 17])
    assert snapshots(lake, "db.k_b") == before + 1
    assert [trouble for trouble in lake.heard.troubles if "rolled back" in trouble] == [
        "the table db.k_a was rolled back to batch 1; the removed ranges are delivered again, to this table alone."
    ]
    assert lake.letters() == []


def test_a_lost_and_a_restored_ledger_repeat_nothing(lake: SmallLake) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True}, batch={"interval": "0s", "max_rows": 3})
    ledger = lake.folder / "landonce.ledger"
    kinds(lake, "aba")
    lake.run()
    shutil.copy(ledger, lake.folder / "kept")
    kinds(lake, "bbacab", first=3)
    lake.run()
    expected = {name: lake.offsets(f"db.k_{name}") for name in "abc"}
    for disaster in (ledger.unlink, lambda: shutil.copy(lake.folder / "kept", ledger)):
        disaster()
        lake.write_file({"table": "db.k_{kind}", "create": True}, batch={"interval": "0s", "max_rows": 2})
        lake.run()
        assert {name: lake.offsets(f"db.k_{name}") for name in "abc"} == expected
    kinds(lake, "ac", first=9)
    lake.run()
    assert lake.offsets("db.k_a") == expected["a"] + Counter([(0, 9)])
    assert lake.offsets("db.k_c") == expected["c"] + Counter([(0, 10)])


def test_a_crash_between_two_tables_leaves_only_the_missing_one_to_do(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True})
    kinds(lake, "ab")
    lake.run()
    kinds(lake, "abab", first=2)
    real = OpenSnapshot.commit

    def dying(self, expected, *rest):  # type: ignore[no-untyped-def]
        if expected.table == "db.k_b":
            raise KeyboardInterrupt
        return real(self, expected, *rest)

    monkeypatch.setattr(committing, "_AT_ONCE", 1)
    monkeypatch.setattr(OpenSnapshot, "commit", dying)
    with pytest.raises(KeyboardInterrupt):
        lake.run()
    monkeypatch.setattr(OpenSnapshot, "commit", real)
    done = snapshots(lake, "db.k_a")
    assert lake.offsets("db.k_b") == Counter([(0, 1)])
    lake.write_file({"table": "db.k_{kind}", "create": True}, transform={"where": "id > 0"})
    with pytest.raises(PlanChanged):
        lake.run()
    lake.write_file({"table": "db.k_{kind}", "create": True})
    lake.run()
    assert snapshots(lake, "db.k_a") == done
    assert lake.offsets("db.k_a") == Counter([(0, 0), (0, 2), (0, 4)])
    assert lake.offsets("db.k_b") == Counter([(0, 1), (0, 3), (0, 5)])


def test_a_table_that_was_dropped_and_made_again_is_not_filled_by_itself(lake: SmallLake) -> None:
    lake.write_file({"table": "db.k_{kind}", "create": True})
    kinds(lake, "ab")
    lake.run()
    table = lake.table("db.k_a")
    schema = table.schema()
    lake.catalog.drop_table("db.k_a")
    lake.catalog.create_table("db.k_a", schema)
    kinds(lake, "ab", first=2)
    with pytest.raises(TableReplaced, match="forget-table"):
        lake.run()
    assert lake.offsets("db.k_a") == Counter()
