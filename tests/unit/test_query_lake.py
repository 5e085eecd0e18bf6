"""The performer of a query into Apache Iceberg, with a real catalog in a file and without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import LongType

import landonce
from landonce import errors
from landonce.engine.committing import CommitPerformer
from landonce.engine.publish import NoLetters
from landonce.engine.task import write_rows
from landonce.protocol import ledger as states
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import Receipt
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.steps import CommitTables, Committed, LookAtTables, Looked, Moved
from landonce.query.rows import QueryWorkers
from landonce.read.decoding import Decoding
from landonce.read.kafka.records import NoRecords
from landonce.read.route import Routing, Rule
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.iceberg.commit import check_visible
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.table import Creation, TableShape, create_table
from landonce.sinks.iceberg.types import schema_for
from landonce.sinks.iceberg.worker import FileRecipe, TableRecipe
from landonce.sinks.run import Run
from landonce.sinks.snapshot import StageTask, TableLedger, origin_of
from landonce.sinks.worker import Basics

P = Partition("t", 0)
YIELDS = pa.schema([("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()), ("id", pa.int64())])


@pytest.fixture
def sink(tmp_path: Path) -> Iceberg:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    made = landonce.iceberg("db.t", properties)
    declared = Schema((Field("id", pa.int64()),))
    create_table(load_catalog("landonce", **properties), "db.t", declared, Creation())
    return made


def opened(sink: Iceberg) -> Table:
    return sink.to_sink("q").place("db.t").load()


def written(sink: Iceberg, *offsets: int) -> Receipt:
    """A block of the rows with these offsets, as a worker writes it."""
    table = opened(sink)
    taken = TableRecipe("db.t", schema_for(table, coordinates=True), TableShape.of(table), scratch=None)
    recipe = FileRecipe(pipeline="q", routing=Routing(None, (Rule("db.t"),)), tables=(taken,), shuffled=True)
    block = Block((Range(P, 0, 100),), "db.t", number=2)
    task = StageTask(index=0, batch=7, epoch=3, plan="", block=block, kind=Kind.DELIVER, floors=())
    count = len(offsets)
    columns = [["t"] * count, [0] * count, list(offsets), [10 * at for at in offsets]]
    receipt = write_rows(recipe.worker(task), task, pa.table(columns, schema=YIELDS)).receipt
    assert receipt is not None
    return receipt


def performer_of(sink: Iceberg, ledger: TableLedger) -> CommitPerformer:
    basics = Basics(
        pipeline="q",
        records=NoRecords(),
        dead_letters=Path(),
        decoding=Decoding(max_record_bytes=1000),
        block_bytes=0,
        select=(),
        where=None,
        shuffled=True,
    )
    tables = sink.to_sink("q").open(Run("q", ledger, basics, query=YIELDS))
    tables.start()
    tables.make_ready(None)
    came = Incoming((Range(P, 0, 2),), "cluster", (("t", "id"),))
    policy = Snapshot("db.t", "f", once=True, own_ledger=True, block_rows=10)
    return CommitPerformer(policy, tables, QueryWorkers(came), NoLetters(), ledger)


def test_a_table_that_is_not_there_yet_has_no_position(sink: Iceberg, tmp_path: Path) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    for name in ("db.other", "none.t"):
        assert landonce.iceberg(name, properties).to_sink("q").own_ledger().load() is None


def test_a_worker_s_files_say_where_they_come_from_and_its_receipt_what_they_hold(sink: Iceberg) -> None:
    receipt = written(sink, 3, 5, 8)
    ((table, files),) = receipt.files
    assert (table, receipt.read, receipt.landed, receipt.tops) == ("db.t", 3, 3, (("db.t", ((P, 8),)),))
    (file,) = files
    origin = origin_of(file.file_path)
    assert (origin.pipeline, origin.epoch, origin.batch, origin.block) == ("q", 3, 7, 2)
    assert opened(sink).scan().count() == 0


def test_a_block_without_rows_makes_no_file(sink: Iceberg) -> None:
    receipt = written(sink)
    assert (receipt.landed, receipt.files, receipt.tops) == (0, (), ())


def test_files_that_the_driver_cannot_see_are_not_committed(sink: Iceberg) -> None:
    """Workers on other machines wrote to disks of their own."""
    ((_, files),) = written(sink, 3).files
    elsewhere = DataFile.from_args(file_path="s3://elsewhere/unasked")
    check_visible("db.t", opened(sink).io, [*files, elsewhere])
    Path(files[0].file_path.removeprefix("file://")).unlink()
    with pytest.raises(errors.TableUnfit, match="on the driver's machine there is no such file"):
        check_visible("db.t", opened(sink).io, files)


def test_files_for_a_column_that_was_dropped_are_not_committed(sink: Iceberg) -> None:
    """Somebody creates the column again while the batch is written: in the new one, its rows would hold null."""
    ledger = sink.to_sink("q").own_ledger()
    ledger.load()
    begun = LedgerState("q", "lineage")
    taken = ledger.change(begun, states.taken(begun, "query"))
    bound = ledger.change(taken, states.bound(taken, "cluster", {"t": "id"}, {P: 0}))
    plan = Plan(1, (Block((Range(P, 0, 2),), "db.t"),), "f", deadline=0)
    prepared = states.prepared(bound, plan)
    performer = performer_of(sink, ledger)
    receipt = written(sink, 0, 1)
    after = states.recorded(prepared, receipt.totals)
    with opened(sink).update_schema() as change:
        change.delete_column("id").add_column("id", LongType())
    assert isinstance(performer.perform(CommitTables(plan, (receipt,), (), after), prepared), Moved)
    assert opened(sink).scan().count() == 0
    assert isinstance(performer.perform(LookAtTables(), prepared), Looked)
    assert isinstance(performer.perform(CommitTables(plan, (written(sink, 0, 1),), (), after), prepared), Committed)
    assert sorted(row["id"] for row in opened(sink).scan().to_arrow().to_pylist()) == [0, 10]


def test_dead_letters_that_a_pipeline_of_this_name_left_stay_noted(sink: Iceberg) -> None:
    """A pipeline that was killed after its commit has not published them yet; its next run does."""
    ledger = sink.to_sink("q").own_ledger()
    assert ledger.load() is None
    begun = LedgerState("q", "lineage")
    first = states.taken(begun, "pipeline")
    ledger.commit(begun, first, letters=("left.jsonl",))
    taken = states.taken(first, "query")
    assert ledger.change(first, taken) == taken
    bound = states.bound(taken, "cluster", {"t": "id"}, {P: 0})
    ledger.change(taken, bound)
    receipt = written(sink, 0, 1)
    plan = Plan(1, (Block((Range(P, 0, 2),), "db.t"),), "f", deadline=0)
    prepared = states.prepared(bound, plan)
    performer = performer_of(sink, ledger)
    after = states.recorded(prepared, receipt.totals)
    performer.perform(CommitTables(plan, (receipt,), (), after), prepared)
    table = opened(sink)
    summary = table.current_snapshot().summary
    assert json.loads(summary["landonce.letters"]) == ["left.jsonl"]
    assert json.loads(summary["landonce.position"]) == {"t": {"0": [0, 2]}}
    assert sorted(row["id"] for row in table.scan().to_arrow().to_pylist()) == [0, 10]
    assert ledger.change(prepared, after) == after
    assert len(table.snapshots()) == 4
