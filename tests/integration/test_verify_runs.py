"""The audit of what Iceberg pipelines really wrote: exact after every run, and not where somebody meddled in between."""

from __future__ import annotations

import json

import pytest
from jvms import iceberg_session
from pipelines import landonce
from small_lakes import SmallLake

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def session():
    session = iceberg_session({})
    yield session
    session.stop()


@pytest.fixture
def lake(kafka, new_topic, tmp_path):
    return SmallLake(kafka, tmp_path, new_topic(partitions=2))


@pytest.fixture
def verify(lake, capsys, monkeypatch):
    """The document, if the audit ended with this exit code."""

    def verified(code=0, *options):
        said = landonce(capsys, monkeypatch, "verify", lake.file, "--json", *options)
        assert said.code == code, said.out + said.err
        return said.json

    return verified


def records(first, end, **more):
    return [{"id": at, "kind": f"k{at % 3}", **more} for at in range(first, end)]


def test_one_table_that_is_its_own_ledger(lake, verify):
    lake.write_file({"table": "db.t", "create": True})
    lake.produce([*records(0, 30), b"broken"])
    lake.run()
    lake.produce(records(30, 50), partition=1)
    lake.run()
    totals = verify()["totals"]
    assert totals | {"read": 51, "landed": 50, "dead_lettered": 1, "in_flight": 0} == totals
    lake.rollback("db.t", 1)
    document = verify()
    assert document["totals"]["read"] == 31, "the position went back with the table"
    assert any("rolled back" in note for note in document["notes"])
    document = verify(1, "--to-end")
    assert document["totals"]["missing"] == 20
    lake.run()
    assert verify()["totals"]["landed"] == 50
    lake.table("db.t").delete("_offset == 3 and _kafka_partition == 1")
    document = verify(1)
    (partition,) = (each for each in document["partitions"] if each["ranges"])
    assert (partition["partition"], partition["ranges"][0]["listed"]) == (1, [[3, 4, 1]])


def test_a_fan_out_of_which_one_table_is_rolled_back(lake, verify):
    lake.write_file({"table": "db.x_{kind}", "create": True})
    lake.produce([*records(0, 30), {"id": 1}])
    lake.run()
    lake.produce(records(30, 60))
    lake.run()
    document = verify()
    assert document["totals"] | {"read": 61, "landed": 60, "dead_lettered": 1} == document["totals"]
    lake.rollback("db.x_k1", 1)
    document = verify(1)
    assert {each["table"]: each["totals"]["missing"] for each in document["tables"]} == {
        "db.x_k0": 0,
        "db.x_k1": 10,
        "db.x_k2": 0,
    }
    lake.run()
    assert verify()["exact"]


def test_expressions_and_several_tables(lake, verify):
    lake.write_file(
        {
            "tables": [{"table": "db.a", "equals": ["K0", "K1"]}, {"table": "db.b", "match": "K[12]"}],
            "route_field": "kind",
            "create": True,
        },
        transform={"where": "id % 2 = 0", "select": ["id", "upper(kind) AS kind"]},
    )
    lake.produce([*records(0, 30), {"id": 40, "kind": "other"}, b"broken"])
    lake.run()
    document = verify()
    totals = document["totals"]
    assert totals | {"read": 32, "expected": 20, "landed": 20, "dead_lettered": 2, "filtered": 15} == totals
    lake.table("db.b").delete("_offset == 4")
    (table,) = (each for each in verify(1)["tables"] if not each["exact"])
    assert (table["table"], table["partitions"][0]["ranges"][0]["listed"]) == ("db.b", [[4, 5, 1]])


def test_rows_that_records_change(lake, verify):
    """Updates, deletions, a key that comes back, and a change that cannot be read, over three batches."""
    lake.write_file(
        {"table": "db.t", "create": True, "identity": "id", "changes": {"mode": "operation", "field": "op"}}
    )
    lake.produce([{"id": at, "kind": "new", "op": "c"} for at in range(20)])
    lake.run()
    lake.produce([{"id": at, "kind": "changed", "op": "u"} for at in range(0, 20, 2)])
    lake.produce([{"id": at, "op": "d"} for at in range(0, 20, 5)])
    lake.produce([{"id": 5, "kind": "again", "op": "c"}, {"id": 7, "op": "what?"}])
    lake.run()
    document = verify()
    totals = document["totals"]
    assert totals | {"read": 36, "expected": 17, "landed": 17, "dead_lettered": 1, "stale": 0} == totals
    lake.table("db.t").delete("id == 7")
    (key,) = verify(1)["tables"][0]["keys"]
    assert (key["fault"], key["key"], key["offset"]) == ("missing", {"id": 7}, 7)


def test_a_file_that_is_committed_twice(lake, verify):
    """What a committer does that retries without looking: the same files, in another snapshot."""
    lake.write_file({"table": "db.t", "create": True})
    lake.produce(records(0, 30))
    lake.run()
    table = lake.table("db.t")
    snapshot = table.current_snapshot()
    (manifest,) = snapshot.manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(entry.data_file)
    document = verify(1)
    (twice,) = document["tables"][0]["files_registered_twice"]
    assert {each["snapshot"] for each in twice["snapshots"]} == {
        entry.snapshot_id,
        lake.table("db.t").current_snapshot().snapshot_id,
    }
    assert document["totals"]["duplicated"] == 30
    assert json.dumps(twice).count("landonce-pipe-e1-b1-") == 1, "the name says which batch wrote it"
