"""A table is told where it stands: an empty snapshot that carries nothing but a mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyiceberg.table import Table

from landonce.errors import Fenced
from landonce.protocol.marks import Mark, TableView, Verdict, verdict
from landonce.sinks.iceberg.commit import Attempt, Place, by_pyiceberg
from landonce.sinks.iceberg.ledger import Build
from landonce.sinks.iceberg.look import look_at
from landonce.sinks.iceberg.marker import summary
from landonce.sinks.iceberg.merge import Append
from landonce.sinks.iceberg.staged import StageOf, stage
from landonce.sinks.snapshot import table_view


def empty(place: Place) -> Build:
    """How an empty snapshot is made: by PyIceberg, or by Spark where the format version is newer than PyIceberg."""

    def build(table: Table, told: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
        if by_pyiceberg(table) or place.session is None:
            return place.appending(table, (), told, properties)
        branch = StageOf(place.pipeline, int(told["landonce.epoch"]), int(told["landonce.batch"])).new_name()
        staged = stage(
            place.session(), place.spec, place.identifier, branch, place.head(table), (), Append(), dict(told)
        )
        return place.publishing(table, staged, branch, told, properties)

    return build


def restate(place: Place, seen: TableView, mark: Mark) -> None:
    """Writes the mark, unless the table is not the way it was `seen`. One that was in doubt is not so any more."""

    def judge(table: Table) -> Verdict:
        now = table_view(place.identifier, look_at(table, place.pipeline, place.branch))
        return verdict(seen, replace(now, uncertain=now.uncertain and not seen.uncertain), mark.state)

    build, told = empty(place), summary(mark)
    place.ensure_branch()
    judged, _, _ = place.commit(judge, lambda table: build(table, told, {}))
    if judged is Verdict.MOVED:
        raise Fenced(
            f"the table {place.identifier} changed while this was decided: a driver runs, or it was rolled back again.",
            safe="The ledger has the decision, and nothing was written to this table.",
            command="stop the driver, and give the same command again",
        )
