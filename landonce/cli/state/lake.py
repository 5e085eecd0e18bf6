"""The Iceberg tables of a pipeline, as its operator meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from landonce.engine.assemble_iceberg import lake_session
from landonce.protocol import operate
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Stand, stand
from landonce.sinks.iceberg.commit import Place
from landonce.sinks.iceberg.restate import empty
from landonce.sinks.iceberg.survey import Seen, catalog_made, names_of, survey
from landonce.sinks.parts import Parts


def tables_of(parts: Parts, ledger: LedgerState | None) -> tuple[Seen, ...]:
    """The tables of a fan-out as they are; none where the one table is the ledger."""
    if parts.config.own_ledger or not catalog_made(parts.iceberg):
        return ()
    return survey(parts.iceberg, names_of(parts.iceberg, ledger))


def stands_of(parts: Parts, ledger: LedgerState) -> tuple[LedgerState, tuple[Stand, ...]]:
    """What the ledger says, or its tables do where it is new; and how each table stands against that."""
    views = [each.view for each in tables_of(parts, ledger)]
    found = operate.standing(ledger, views)
    return found, tuple(stand(found, view) for view in views)


def where_kept(parts: Parts) -> dict[str, Any]:
    """The one table that is the ledger."""
    own = survey(parts.iceberg, parts.iceberg.static)[0].own if catalog_made(parts.iceberg) else None
    return {
        "table": parts.iceberg.static[0],
        "branch": parts.iceberg.told.branch,
        "uuid": own.uuid if own else None,
        "snapshot": own.standing.snapshot if own and own.standing else None,
    }


@contextmanager
def committing(parts: Parts) -> Iterator[Callable[[str], Place]]:
    """Tables that can be committed to in every format version. Spark is started only for one that needs it."""
    with lake_session(parts) as session:

        def place(table: str) -> Place:
            return replace(parts.iceberg.place(table), session=session)

        if parts.table_ledger is not None:
            mine = place(parts.iceberg.static[0])
            parts.table_ledger.build_with(empty(mine), mine)
        yield place
