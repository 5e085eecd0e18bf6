"""Bugs that were planted on purpose where a user's own query meets an Iceberg table: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import (
    BATCH,
    DELIVERED_AGAIN,
    LOST,
    MATCH,
    NOT_REFUSED,
    TWICE,
    UNCOMMITTED,
    UNCOVERED,
    UNHEARD,
    halts,
    planted,
)
from .snapshot_mutants import OWN

MUTANTS = (
    planted(
        "what was delivered comes again",
        "nothing fails, two queries of one name",
        TWICE,
        *DELIVERED_AGAIN,
    ),
    planted(
        "a batch that begins above the position is taken",
        "nothing fails, two queries of one name",
        LOST,
        *NOT_REFUSED,
    ),
    planted(
        "a table that lost its position skips one record",
        "dropped and made again",
        LOST,
        MATCH,
        "begun.at > begun.first:",
        "begun.at > begun.first + 1:",
    ),
    planted(
        "the position moves before the commit",
        "nothing fails, two queries of one name",
        LOST,
        *UNCOMMITTED,
    ),
    planted(
        "the first piece of a range is left out",
        "a query dies twice",
        LOST,
        MATCH,
        "for first in range(each.first, each.end, block_rows)[: pieces_each(ranges)]",
        "for first in range(each.first, each.end, block_rows)[-1:]",
    ),
    planted(
        "a block that was not heard of counts as written",
        "a query dies twice",
        halts("ValueError"),
        *UNHEARD,
    ),
    planted(
        "nobody hears that they were fenced",
        "nothing fails, two queries of one name",
        UNCOVERED,
        OWN,
        "    if verdict is Verdict.FENCED:\n",
        "    if verdict is Verdict.FENCED and seen.last is None:\n",
    ),
    planted(
        "a partition that is new to the table is not bound",
        "nothing fails, two queries of one name",
        halts("KeyError"),
        BATCH,
        "return change(machine, Step.BIND, machine.bound) if _unbound(machine) else go_on(machine)",
        "return go_on(machine)",
    ),
)
