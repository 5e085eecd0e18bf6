"""What other writers left in a table's snapshots and in a checkpoint folder, read from real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from landonce.errors import ImportRefused
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.move_in.adopt import histories, history_of, missing
from landonce.sinks.iceberg.move_in.query import Checkpoint, CheckpointFolder
from landonce.sinks.iceberg.sink import IcebergSink

ROWS = pa.schema([("id", pa.int64())])


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    config = Iceberg.model_validate(
        {"table": "db.t", "catalog": {"uri": f"sqlite:///{tmp_path / 'c.db'}", "warehouse": str(tmp_path)}}
    )
    return IcebergSink.of(config, "p")


@pytest.fixture
def table(sink: IcebergSink) -> Table:
    sink.catalog.create_namespace("db")
    return sink.catalog.create_table("db.t", ROWS)


def append(table: Table, number: int, **said: str) -> int:
    table.append(pa.table({"id": [number]}, schema=ROWS), snapshot_properties=said)
    head = table.current_snapshot()
    assert head is not None
    return head.snapshot_id


def files(table: Table) -> frozenset[str]:
    return frozenset(task.file.file_path for task in table.scan().plan_files())


def test_the_newest_word_of_the_writer_in_the_branch(sink: IcebergSink, table: Table) -> None:
    (none,) = histories(sink, lambda summary: summary.get("writer"))
    assert (none.last, none.whole) == (None, True)
    append(table, 1, writer="first")
    second = append(table, 2, writer="second")
    append(table, 3)
    (found,) = histories(sink, lambda summary: summary.get("writer"))
    assert found.last is not None
    assert (found.table, found.last.snapshot, found.last.text) == ("db.t", second, "second")
    table.manage_snapshots().create_branch(second, "side").commit()
    append(table, 4, writer="fourth")
    on_side = history_of(table, "db.t", "side", lambda summary: summary.get("writer")).last
    assert on_side is not None
    assert on_side.text == "second"


def test_a_history_that_is_cut_off_is_not_whole(table: Table) -> None:
    first = append(table, 1, writer="first")
    append(table, 2)
    table.maintenance.expire_snapshots().by_id(first).commit()
    found = history_of(table, "db.t", "main", lambda summary: summary.get("writer"))
    assert (found.last, found.whole) == (None, False)


def test_a_table_that_only_has_a_fitting_name_is_somebody_elses(sink: IcebergSink, table: Table) -> None:
    first = append(table, 1)
    append(table, 2)
    table.maintenance.expire_snapshots().by_id(first).commit()
    (named,) = histories(sink, lambda _: None)
    assert not named.whole
    template = IcebergSink(sink.spec, sink.config.model_copy(update={"table": "db.{kind}"}), "p")
    (fitting,) = histories(template, lambda _: None)
    assert (fitting.table, fitting.whole) == ("db.t", True)


def test_a_catalog_or_a_table_that_is_not_there_is_not_made(sink: IcebergSink, tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match="no table"):
        histories(sink, lambda _: None)
    assert not (tmp_path / "c.db").exists()
    sink.catalog.create_namespace("db")
    with pytest.raises(ImportRefused, match="no table"):
        histories(sink, lambda _: None)


def test_files_that_never_came(table: Table) -> None:
    append(table, 1)
    append(table, 2)
    assert missing(table, "main", files(table)) == frozenset()
    assert missing(table, "main", files(table) | {"lost"}) == {"lost"}
    assert missing(table, "main", frozenset()) == frozenset()
    before = files(table)
    table.delete(EqualTo("id", 1))
    assert files(table) < before
    assert missing(table, "main", before | {"lost"}) == frozenset()  # removed since, or never there: nobody can tell


def test_a_checkpoint_folder(tmp_path: Path) -> None:
    home = tmp_path / "a folder"
    for name, text in {
        "metadata": json.dumps({"id": "q"}),
        "offsets/9": "v1 nine",
        "offsets/10": "v1 ten",
        "offsets/.10.crc": "x",
        "offsets/.11.8d1f.tmp": "x",
        "commits/9": "v1",
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    for location in (str(home), f"{home}/", f"file://{home}"):
        folder = CheckpointFolder(location, {})
        assert folder.read() == Checkpoint(location, "q", (9, 10), (9,))
        assert folder.entry(10) == "v1 ten"
    (home / "state" / "0").mkdir(parents=True)
    assert CheckpointFolder(str(home), {}).read().stateful


@pytest.mark.parametrize("metadata", [None, "", "{}", "[]", "\xff"])
def test_a_folder_that_is_no_checkpoint(tmp_path: Path, metadata: str | None) -> None:
    if metadata is not None:
        (tmp_path / "metadata").write_bytes(metadata.encode("latin-1"))
    with pytest.raises(ImportRefused, match="not the checkpoint"):
        CheckpointFolder(str(tmp_path), {}).read()
    with pytest.raises(ImportRefused, match="not the checkpoint"):
        CheckpointFolder("nonsense://host/path", {}).read()
