"""Which queries are taken, and why others are not: looked at in Spark's own plan, before anything is written.

A query may do with a record what it likes, as long as one record makes at most one row, the same row every time, and the
row keeps the record's coordinates. What is not known to be so is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from landonce.engine.transform import moving_in, subquery_in
from landonce.protocol import query_refusals as refusals
from landonce.sinks.contract import COORDINATES

KAFKAS = ("topic", "partition", "offset")
"""The coordinates as Spark's Kafka source calls them."""
_TIMESTAMP = "timestamp"
"""The same of a record's timestamp."""
_ROW_WISE = {
    "Project",
    "Filter",
    "SubqueryAlias",
    "View",
    "Union",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "ResolvedHint",
    "EventTimeWatermark",
    "MapInArrow",
    "MapInPandas",
    "CollectMetrics",
    "MapPartitions",
    "MapElements",
    "TypedFilter",
    "SerializeFromObject",
    "DeserializeToObject",
    "ArrowEvalPython",
    "BatchEvalPython",
    "Sort",
    "WithCTE",
    "CTERelationDef",
}
KAFKA_SCAN = "StreamingDataSourceV2ScanRelation"
_BATCH = "LogicalRDD"
_NAME = "CTERelationRef"
"""Stands for a `WITH`, which is looked at where it is defined."""
_LEAVES = {KAFKA_SCAN, _BATCH, _NAME}
_WHY = {
    "Aggregate": "it aggregates (groupBy, distinct, count, …), so its rows have no coordinates of their own",
    "Distinct": "it aggregates (distinct), so its rows have no coordinates of their own",
    "Deduplicate": "it holds state (dropDuplicates): what is in a batch depends on the batches before it",
    "DeduplicateWithinWatermark": "it holds state (dropDuplicatesWithinWatermark)",
    "FlatMapGroupsWithState": "it holds state (flatMapGroupsWithState)",
    "FlatMapGroupsInPandasWithState": "it holds state (applyInPandasWithState)",
    "TransformWithState": "it holds state (transformWithState)",
    "TransformWithStateInPandas": "it holds state (transformWithStateInPandas)",
    "FlatMapGroupsInPandas": "it groups rows (applyInPandas), and a group depends on where a batch is cut",
    "FlatMapGroupsInArrow": "it groups rows (applyInArrow), and a group depends on where a batch is cut",
    "Generate": "it makes several rows of one record (explode), so a coordinate is in it more than once",
    "Expand": "it makes several rows of one record, so a coordinate is in it more than once",
    "Join": "it joins, and what it finds there may be another thing when a batch is replayed after a crash",
    "Window": "it looks at several rows at once (a window), and where a batch is cut decides which",
    "GlobalLimit": "it holds state (limit): what is in a batch depends on the batches before it",
    "LocalLimit": "it holds state (limit): what is in a batch depends on the batches before it",
    "Sample": "it takes a sample, which may be another one when a batch is replayed",
}


def examine(plan: Any, query: Any = None) -> None:
    """Raises `QueryRefused` for the first thing in a plan that cannot be replayed row by row.

    `query`: where the plan is that of a micro-batch, the query that made the batch.
    """
    nodes = list(_walk(plan))
    batches = _batches(nodes, query) if query is not None else set()
    for node in nodes:
        name = node.nodeName()
        if not node.children().size():
            known = _rows_of(node) in batches if name == _BATCH else name == KAFKA_SCAN and query is None
            if not known and name != _NAME:
                source = str(node.simpleString(5)).splitlines()[0]
                raise refusals.query(
                    f"it reads from {source}, and only Kafka has offsets that can be read again"
                    if node.isStreaming()
                    else f"it reads from {source} beside Kafka, which may hold other rows at a replay"
                )
            continue
        if name not in _ROW_WISE:
            raise refusals.query(_WHY.get(name, f"{name} is not known to make one row of one record"))
        _deterministic(node)


def _batches(nodes: Iterable[Any], query: Any) -> set[int]:
    """The rows that the query made, which have its columns; Spark gives them new ones where they are in a plan twice."""
    columns = _ids(query)
    return {_rows_of(node) for node in nodes if node.nodeName() == _BATCH and _ids(node) == columns}


def _rows_of(leaf: Any) -> int:
    return int(leaf.rdd().id())


def _ids(plan: Any) -> list[int]:
    return [id_of(each) for each in elements(plan.output())]


def _deterministic(node: Any) -> None:
    for expression in elements(node.expressions()):
        if found := subquery_in(expression):
            raise refusals.query(
                f"{found} is a subquery, and may find other rows when a batch is replayed after a crash"
            )
        if found := moving_in(expression):
            raise refusals.query(f"{found} may give another value when a batch is replayed after a crash")


def coordinates_of(columns: Iterable[str]) -> tuple[str, str, str]:
    """The columns that hold the coordinates: `_topic`, `_partition`, `_offset`, or as Kafka's source calls them."""
    there = set(columns)
    for names in (COORDINATES, KAFKAS):
        if there.issuperset(names):
            topic, number, offset = names
            return topic, number, offset
    raise refusals.query(
        f"its rows have no coordinates: they need {', '.join(KAFKAS)} (or {', '.join(COORDINATES)}), and have "
        f"{', '.join(sorted(there)) or 'nothing'}",
        "keep the three columns in every select",
    )


def fingerprint(shapes: list[Any], frame: DataFrame, sink: str) -> str:
    """Changes with whatever the query does with a record, as far as Spark shows it, and with the sink."""
    session = frame.sparkSession
    settings = [session.conf.get(name) for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")]
    decisive = [shapes, frame.schema.json(), session.version, settings, sink]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


def shape_of(plan: Any) -> list[Any]:
    """The tree of a plan without what differs from start to start."""
    name = plan.nodeName()
    if name in _LEAVES:
        return [name]
    said = [expression.sql() for expression in elements(plan.expressions())]
    return [name, said, [shape_of(child) for child in elements(plan.children())]]


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in elements(node.children()):
        yield from _walk(child)


def id_of(attribute: Any) -> int:
    return int(attribute.exprId().id())


def elements(sequence: Any) -> Iterator[Any]:
    """Of a sequence of Scala's."""
    for at in range(sequence.size()):
        yield sequence.apply(at)


# Which columns of Kafka a query's coordinates are made from, as far as Spark's plan shows it. A record may hold a field that is called
# `offset` or `partition`, too: a query that selects it in place of Kafka's own gives rows that look as if they had coordinates. What a
# function in Python makes of a record cannot be followed, and is taken at its word.

_Wanted = Callable[[Any, int], bool]
"""Whether a column of a leaf, by its place, is the one that was looked for."""


def keeps_coordinates(query: Any, batch: Any, columns: Sequence[str]) -> None:
    """Raises `QueryRefused` where a coordinate of a micro-batch's rows is made from anything but Kafka's own."""
    for name, kafkas in zip(coordinates_of(columns), KAFKAS, strict=True):
        if not _made_from(batch, columns.index(name), _of_query(query, kafkas)):
            raise refusals.query(
                f"its column {name!r} is not made from Kafka's {kafkas!r}, so its rows do not say which record they come from",
                "keep Kafka's topic, partition and offset in every select, and give other columns other names",
            )


def _of_query(query: Any, name: str) -> _Wanted:
    """A micro-batch has the columns of its query."""
    return lambda _leaf, at: _made_from(query, at, _of_kafka(name))


def _of_kafka(name: str) -> _Wanted:
    return lambda leaf, at: bool(leaf.nodeName() != KAFKA_SCAN or leaf.output().apply(at).name() == name)


def _made_from(plan: Any, at: int, wanted: _Wanted) -> bool:
    """Whether a column of a plan, by its place, depends on one that is wanted."""
    children = list(elements(plan.children()))
    if not children:
        return wanted(plan, at)
    if plan.nodeName() == "Union":
        return all(_made_from(child, at, wanted) for child in children)
    if len(children) > 1:
        return True
    below = {id_of(each): place for place, each in enumerate(elements(children[0].output()))}
    if plan.nodeName() == "Project":
        needed = [id_of(each) for each in elements(plan.projectList().apply(at).references().toSeq())]
    else:
        needed = [id_of(plan.output().apply(at))]
        if needed[0] not in below:
            return True
    return any(_made_from(children[0], below[each], wanted) for each in needed if each in below)


def kept_timestamp(query: Any, batch: Any, columns: Sequence[str]) -> str:
    """The column of a micro-batch's rows that is Kafka's own timestamp, unchanged; empty where there is none. One that is computed says
    nothing of when a record was produced, and one of a function in Python is not taken at its word."""

    def of_kafka(leaf: Any, at: int) -> bool:
        return bool(leaf.nodeName() == KAFKA_SCAN and leaf.output().apply(at).name() == _TIMESTAMP)

    def of_query(leaf: Any, at: int) -> bool:
        return bool(leaf.nodeName() == _BATCH and _carried(query, at, of_kafka))

    return next((name for at, name in enumerate(columns) if _carried(batch, at, of_query)), "")


def _carried(plan: Any, at: int, wanted: _Wanted) -> bool:
    """Whether a column of a plan, by its place, is one that is wanted, passed on as it is."""
    children = list(elements(plan.children()))
    if not children:
        return wanted(plan, at)
    if plan.nodeName() == "Union":
        return all(_carried(child, at, wanted) for child in children)
    if len(children) > 1:
        return False
    column = plan.projectList().apply(at) if plan.nodeName() == "Project" else plan.output().apply(at)
    if column.nodeName() == "Alias":
        column = column.child()
    if column.nodeName() != "AttributeReference":
        return False
    below = {id_of(each): place for place, each in enumerate(elements(children[0].output()))}
    place = below.get(id_of(column))
    return place is not None and _carried(children[0], place, wanted)
