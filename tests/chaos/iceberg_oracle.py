"""Who judges Iceberg tables: their rows and snapshots, as PyIceberg's scan reads them.

It uses none of landonce's code. But landonce commits with PyIceberg too, so what PyIceberg itself gets wrong, in writing and in reading
alike, stays hidden here: tests in `tests/integration` read tables with Iceberg's Java library, through Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from oracle import Row
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

ELSEWHERE = "elsewhere"
"""What `_topic` holds in rows that other writers bring."""
_COLUMNS = ("_topic", "_kafka_partition", "_offset", "id", "word", "amount")


_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "word", StringType(), required=True),
    NestedField(3, "amount", DoubleType()),
    NestedField(4, "_topic", StringType(), required=True),
    NestedField(5, "_kafka_partition", IntegerType(), required=True),
    NestedField(6, "_offset", LongType(), required=True),
)


def make(catalog: Catalog, name: str) -> Table:
    """A table that somebody made by hand."""
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    return catalog.create_table(name, _SCHEMA)


def embedded(folder: Path) -> Catalog:
    """The catalog that a pipeline file in this folder means which names none."""
    lake = folder / "lake"
    lake.mkdir(exist_ok=True)
    return load_catalog("landonce", type="sql", uri=f"sqlite:///{lake / 'catalog.db'}", warehouse=f"file://{lake}")


def rows(table: Table) -> list[Row]:
    """Every row that a topic brought."""
    return [each for each in _all(table) if each[0] != ELSEWHERE]


def foreign(table: Table) -> list[Row]:
    """Every row that somebody else brought."""
    return [each for each in _all(table) if each[0] == ELSEWHERE]


def _all(table: Table) -> list[Row]:
    found = table.scan(selected_fields=_COLUMNS).to_arrow()
    return list(zip(*(found.column(name).to_pylist() for name in _COLUMNS), strict=True))


def referenced_twice(table: Table) -> list[str]:
    """Data files that the table names more than once."""
    counts = Counter(task.file.file_path for task in table.scan().plan_files())
    return sorted(path for path, count in counts.items() if count > 1)


def history(table: Table) -> Iterator[Snapshot]:
    """The snapshots of the main branch, newest first, as far as they are kept."""
    at = table.current_snapshot()
    while at is not None:
        yield at
        at = table.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None


def summary(snapshot: Snapshot) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot.summary is not None else {}


def landings(table: Table) -> list[Snapshot]:
    """The snapshots by which landonce added rows, oldest first."""
    mine = (
        each for each in history(table) if "landonce.batch" in summary(each) and summary(each).get("added-data-files")
    )
    return sorted(mine, key=lambda each: each.sequence_number or 0)


def batches(table: Table) -> list[int]:
    """The batches that landonce added rows by, oldest first, as often as it did."""
    return [int(summary(each)["landonce.batch"]) for each in landings(table)]


def strangers(table: Table, first: int, count: int) -> pa.Table:
    """Rows that another writer brings, numbered from `first`, as the table takes them."""
    numbers = range(first, first + count)
    values = {
        "_topic": [ELSEWHERE] * count,
        "_kafka_partition": [0] * count,
        "_offset": list(numbers),
        "id": list(numbers),
        "word": [f"stranger {each}" for each in numbers],
        "amount": [each / 4 for each in numbers],
    }
    schema = table.schema().as_arrow()
    return pa.table([pa.array(values[name], schema.field(name).type) for name in schema.names], schema=schema)


def stranger(number: int) -> Row:
    """The same as the oracle reads it."""
    return (ELSEWHERE, 0, number, number, f"stranger {number}", number / 4)
