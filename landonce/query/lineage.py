"""Which columns of Kafka a query's coordinates are made from, as far as Spark's plan shows it.

A record may hold a field that is called `offset` or `partition`, too. A query that selects it in place of Kafka's own gives rows that
look as if they had coordinates. What a function in Python makes of a record cannot be followed, and is taken at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from landonce.protocol import query_refusals as refusals
from landonce.query.examine import KAFKA_SCAN, KAFKAS, coordinates_of, elements, id_of

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
