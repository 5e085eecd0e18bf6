"""What Spark is told to do with staged rows: append them, or merge them by identity.

A batch may change a row many times: the last change counts, in the order of topic, partition and offset. Records of one
key stay in one partition of a topic as long as the producer partitions by key, and there the order is the topic's own.

A change gives the whole row: what it does not hold becomes null. Columns that the pipeline does not know are left as they
are in a row that is there, and are null in a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, IntegerType, LongType, StructType

from landonce.errors import TableReshaped
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.sinks.iceberg.coordinates import COLUMNS
from landonce.sinks.iceberg.jvm import quoted

_RANK = "_landonce_rank"
_ORDERED = (IntegerType, LongType, DateType)
"""Not strings: Spark takes a uuid for one, and Iceberg puts uuids into another order than their text."""


@dataclass(frozen=True)
class Append:
    """Every staged row is a new row. `rows` is how many there are, where that is known: it is then checked."""

    rows: int | None = None

    def prepared(self, staged: DataFrame, table: StructType) -> DataFrame:
        """All columns of the table: Spark inserts by name only where none is missing."""
        return staged.select(*_filled(staged, table, table.names))

    def bounds(self, staged: DataFrame) -> dict[str, Any]:
        """Nothing is looked for."""
        del staged
        return {}

    def statement(self, target: str, view: str, bounds: Mapping[str, Any]) -> str:
        """By name, that of nested fields too."""
        del bounds
        return f"INSERT INTO {target} BY NAME SELECT * FROM {quoted(view)}"  # noqa: S608


@dataclass(frozen=True)
class Merge:
    """A staged row inserts, replaces or deletes the row of the same identity."""

    identity: tuple[str, ...]
    columns: tuple[str, ...]

    def prepared(self, staged: DataFrame, table: StructType) -> DataFrame:
        """The last change of every identity."""
        newest = [staged[quoted(name)].desc() for name in COLUMNS]
        window = Window.partitionBy(*(staged[quoted(name)] for name in self.identity)).orderBy(*newest)
        ranked = staged.withColumn(_RANK, F.row_number().over(window)).where(F.col(_RANK) == 1)
        return ranked.select(*_filled(ranked, table, self.columns), F.col(OPERATION))

    def bounds(self, staged: DataFrame) -> dict[str, Any]:
        """Between which values the identities lie.

        Spark then leaves out files that cannot hold any of them: rows that change are often near each other.
        """
        sought = [
            (f"{side}_{at}", function(staged[quoted(name)]), F.bool_or(staged[quoted(name)].isNull()))
            for at, name in enumerate(self.identity)
            if isinstance(staged.schema[name].dataType, _ORDERED)
            for side, function in (("least", F.min), ("most", F.max))
        ]
        if not sought:
            return {}
        found = staged.agg(*(each for _, *pair in sought for each in pair)).collect()[0]
        values = {name: (found[2 * at], found[2 * at + 1]) for at, (name, _, _) in enumerate(sought)}
        return {name: value for name, (value, null) in values.items() if null is False}

    def statement(self, target: str, view: str, bounds: Mapping[str, Any]) -> str:
        """Nothing is done for the deletion of a row that is not there."""
        terms = [f"t.{quoted(name)} <=> s.{quoted(name)}" for name in self.identity]
        for at, name in enumerate(self.identity):
            if f"least_{at}" in bounds:
                terms.append(f"t.{quoted(name)} BETWEEN :least_{at} AND :most_{at}")
        same = " AND ".join(terms)
        sets = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self.columns)
        names = ", ".join(map(quoted, self.columns))
        values = ", ".join(f"s.{quoted(name)}" for name in self.columns)
        deletes = f"s.{quoted(OPERATION)} = '{DELETE}'"
        return (
            f"MERGE INTO {target} AS t USING {quoted(view)} AS s ON {same} "  # noqa: S608
            f"WHEN MATCHED AND {deletes} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND NOT {deletes} THEN INSERT ({names}) VALUES ({values})"
        )


def _filled(rows: DataFrame, table: StructType, columns: Sequence[str]) -> list[Column]:
    """The columns by name, null where no staged file holds one. What the rows hold is never left out: somebody who renames or
    drops a column meanwhile would make nulls of its values."""
    held = set(rows.columns)
    gone = sorted({*columns, *held.difference(COLUMNS, (OPERATION, _RANK))}.difference(table.names))
    if gone:
        raise TableReshaped(f"rows were written for columns that the table does not have any more: {', '.join(gone)}.")
    return [
        rows[quoted(name)] if name in held else F.lit(None).cast(table[name].dataType).alias(name) for name in columns
    ]
