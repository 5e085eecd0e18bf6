"""What a program pushes: rows with offsets, under the names that landonce uses, and the range that they stand for.

a pyarrow Table or RecordBatch, or a list of dicts ─► offsets taken from a column, or counted from `first` ─► Given
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.engine.task import write_rows
from landonce.protocol import query_refusals as refusals
from landonce.protocol.match_ranges import Incoming
from landonce.protocol.ranges import Partition, Range, label_of
from landonce.protocol.receipt import BlockResult
from landonce.read.rows import CHANGE
from landonce.sinks.contract import COORDINATES
from landonce.sinks.worker import Recipe, T, failed

Rows: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]
PartitionId: TypeAlias = int | str | tuple[str, int]
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_CHANGES = f"every row says in {CHANGE!r} what it does to a row of the target: I (insert), U (update) or D (delete)"
_MOST = 2**31
_MOST_OFFSET = 2**63 - 1
SOURCE = "push"
"""What a ledger knows as the cluster: a query or a pipeline of the same name is another one."""


def partition_of(name: str, given: PartitionId) -> Partition:
    """A number is a partition of the stream that has the sink's name; a text is a stream of one partition."""
    if isinstance(given, tuple) and len(given) != 2:
        raise refusals.push(f"{given!r} names no partition", "a pair is a text and a number")
    topic, number = given if isinstance(given, tuple) else (given, 0) if isinstance(given, str) else (name, given)
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise refusals.push(
            f"{given!r} names no partition",
            "a number; or a text of up to 80 letters, digits, '_', '.' or '-' that begins with a letter or digit; or both",
        )
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _MOST:
        raise refusals.push(f"{given!r} names no partition", "a partition's number is zero or more, and below 2^31")
    return Partition(topic, number)


@dataclass(frozen=True)
class Given:
    """One push of one partition: its rows, the coordinates first, in the order of offsets."""

    rows: pa.Table
    range: Range | None
    """None: it stands for no offset."""

    @property
    def offsets(self) -> Any:
        return self.rows.column("_offset").to_numpy()

    @property
    def columns(self) -> str:
        """The names and types of the rows: where they change, all is examined again."""
        return json.dumps([[each.name, str(each.type)] for each in self.rows.schema])

    def fingerprint(self, sink: str) -> str:
        """Rows of the same offsets are the same rows if their columns are, and go to the same place."""
        return hashlib.sha256(json.dumps([sink, self.columns]).encode()).hexdigest()


def given(
    partition: Partition,
    rows: object,
    schema: pa.Schema | None,
    *,
    offset: str,
    first: int | None,
    end: int | None,
) -> Given:
    """Checks all that can be said of the rows alone. `PushRefused` names the first mistake."""
    table = _table(rows, schema, offset)
    twice = sorted({each for each in table.column_names if table.column_names.count(each) > 1})
    taken = sorted({each for each in table.column_names if each in COORDINATES and each != offset})
    if twice or taken:
        raise refusals.push(
            f"column {', '.join(twice or taken)} is in it twice"
            if twice
            else f"it has a column {', '.join(taken)}, and landonce adds the coordinates itself"
        )
    for what, bound in (("first", first), ("end", end)):
        if bound is not None and (
            not isinstance(bound, int) or isinstance(bound, bool) or not 0 <= bound < _MOST_OFFSET
        ):
            raise refusals.push(f"`{what}` is {bound!r}, which is no offset")
    offsets = _offsets(table, offset, first)
    begins = first if first is not None else int(offsets[0]) if len(offsets) else None
    ends = end if end is not None else int(offsets[-1]) + 1 if len(offsets) else begins
    if begins is None or ends is None:
        raise refusals.push("it has no rows, and does not say which offsets have none", "push(…, first=…, end=…)")
    _inside(offsets, begins, ends, partition)
    count = table.num_rows
    kept = [each for each in table.column_names if each != offset]
    coordinates = (
        pa.array([partition.topic] * count, pa.string()),
        pa.array(np.full(count, partition.number, np.int32)),
        pa.array(offsets, pa.int64()),
    )
    fields = [
        *(pa.field(name, each.type, nullable=False) for name, each in zip(COORDINATES, coordinates, strict=True)),
        *(table.schema.field(each) for each in kept),
    ]
    made = pa.Table.from_arrays([*coordinates, *(table.column(each) for each in kept)], schema=pa.schema(fields))
    return Given(made, Range(partition, begins, ends) if begins < ends else None)


def _table(rows: object, schema: pa.Schema | None, offset: str) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows if schema is None else _cast(rows, schema, offset)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
        raise refusals.push(f"{type(rows).__name__} is neither a pyarrow Table or RecordBatch nor a list of dicts")
    if not all(isinstance(each, Mapping) for each in rows):
        raise refusals.push("not all of its rows are dicts")
    names = dict.fromkeys(name for row in rows for name in row)
    if schema is None and not names:
        raise refusals.push(
            "it has no rows that could say which columns there are",
            "ExactlyOnceSink(…, schema=…), or push an empty pyarrow Table",
        )
    if schema is not None:
        _known(names, schema, offset)
        names = dict.fromkeys([*schema.names, *([offset] if offset in names else [])])
    types = {each.name: each.type for each in schema or ()}
    arrays = {name: _array(name, [row.get(name) for row in rows], types.get(name)) for name in names}
    return pa.table(arrays)


def _array(name: str, values: list[Any], type_: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise refusals.push(f"column {name!r} cannot be made of its values: {error}") from None


def _known(names: Mapping[str, object], schema: pa.Schema, offset: str) -> None:
    if unknown := [name for name in names if name not in schema.names and name != offset]:
        raise refusals.push(f"`schema` has no column {', '.join(map(repr, unknown))}; it has {', '.join(schema.names)}")


def _cast(table: pa.Table, schema: pa.Schema, offset: str) -> pa.Table:
    _known(dict.fromkeys(table.column_names), schema, offset)
    if missing := [name for name in schema.names if name not in table.column_names]:
        raise refusals.push(f"its rows lack {', '.join(missing)}, which `schema` has")
    wanted = [
        *schema,
        *([table.schema.field(offset)] if offset in table.column_names and offset not in schema.names else []),
    ]
    try:
        return table.select([each.name for each in wanted]).cast(pa.schema(wanted))
    except pa.ArrowException as error:
        raise refusals.push(f"its rows are not of `schema`: {error}") from None


def require_changes(brought: Given) -> None:
    """For a sink that applies changes: where rows say what they do to a row of the target, each of them does."""
    if CHANGE not in brought.rows.column_names:
        return
    column = brought.rows.column(CHANGE)
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise refusals.push(f"column {CHANGE!r} holds {column.type}, and not text", _CHANGES)
    known = pc.is_in(column, value_set=pa.array(["I", "U", "D"], column.type)).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~known)
    if len(wrong):
        at = int(wrong[0])
        raise refusals.push(
            f"the row of offset {brought.offsets[at]} has {column[at].as_py()!r} in {CHANGE!r}", _CHANGES
        )


def _offsets(table: pa.Table, offset: str, first: int | None) -> Any:
    """Of each row. Counted from `first` where no column holds them."""
    if offset not in table.column_names:
        if first is None:
            raise refusals.push(
                f"nothing says which offsets its rows have: there is no column {offset!r}",
                "push(…, first=…) counts from there; push(…, offset=…) names the column",
            )
        return np.arange(first, first + table.num_rows, dtype=np.int64)
    column = table.column(offset)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise refusals.push(f"column {offset!r} holds {'nulls' if column.null_count else column.type}, and not offsets")
    try:
        offsets = column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise refusals.push(f"column {offset!r}: {error}") from None
    if len(offsets) and (offsets[0] < 0 or offsets[-1] == _MOST_OFFSET):
        raise refusals.push(
            f"column {offset!r} holds {offsets[0] if offsets[0] < 0 else offsets[-1]}, which is no offset"
        )
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if len(falls):
        at = int(falls[0])
        raise refusals.push(
            f"its offsets do not grow: {offsets[at + 1]} comes after {offsets[at]}",
            "every row of a partition has an offset of its own, and rows come in the order of offsets",
        )
    return offsets


def _inside(offsets: Any, first: int, end: int, partition: Partition) -> None:
    if end < first:
        raise refusals.push(f"{partition}: it ends at offset {end}, before it begins, at {first}")
    if len(offsets) and (offsets[0] < first or offsets[-1] >= end):
        stray = int(offsets[0] if offsets[0] < first else offsets[-1])
        raise refusals.push(f"{partition}: the row of offset {stray} lies outside of [{first}, {end})")


@dataclass
class PushWorkers:
    """Has blocks written in this process, by the thread that pushes."""

    rows: pa.Table | None = None
    """Of the push in hand."""
    range: Range | None = None
    """The part of it that is delivered now."""

    @property
    def incoming(self) -> Incoming | None:
        """Where a partition is new, it begins with this push."""
        if self.range is None:
            raise ValueError("there is no push in hand")
        topic = self.range.partition.topic
        return Incoming((self.range,), SOURCE, ((topic, topic),))

    def write(self, recipe: Recipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
        """One result per task, whatever happens."""
        if self.rows is None:
            raise ValueError("there is no push in hand")
        return tuple(_landed(recipe, task, self.rows) for task in tasks)


def _landed(recipe: Recipe[T], task: T, rows: pa.Table) -> BlockResult:
    """Whatever happens becomes a fate: the batch machine decides what follows from it."""
    try:
        return write_rows(recipe.worker(task), task, block_rows(rows, task.block.ranges[0], dict(task.labels)))
    except Exception as error:
        return failed(task, error)


def block_rows(rows: pa.Table, block: Range, labels: dict[str, str]) -> pa.Table:
    """The rows of one block, under the label of their topic."""
    begin, end = np.searchsorted(rows.column("_offset").to_numpy(), [block.first, block.end])
    found = rows.slice(int(begin), int(end - begin)).combine_chunks()
    label = label_of(labels, block.partition)
    return found.set_column(0, found.schema.field("_topic"), pa.array([label] * found.num_rows, pa.string()))
