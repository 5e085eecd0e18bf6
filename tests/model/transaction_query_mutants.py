"""Bugs that were planted on purpose where a user's own query meets a database: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import (
    BATCH,
    DELIVERED_AGAIN,
    LOST,
    NOT_FOLLOWED,
    NOT_REFUSED,
    OTHER_ROWS,
    RECORDED_FIRST,
    REWRITTEN,
    TWICE,
    UNHEARD,
    halts,
    planted,
)
from .transaction_mutants import TRANSACTIONAL

MUTANTS = (
    planted(
        "what was delivered comes again",
        "nothing fails, two queries of one name",
        TWICE,
        *DELIVERED_AGAIN,
    ),
    planted(
        "a pending block that does not come again never was",
        "a query dies, an answer is lost",
        halts("PlanPending"),
        BATCH,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed: dict[int, Totals] = {}\n",
    ),
    planted(
        "a pending block that does not come again landed",
        "a query dies, an answer is lost",
        halts("Unbalanced"),
        BATCH,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed = {each.index: each.totals for each in found}\n",
    ),
    planted("what is behind an absent block is taken", "a query dies, an answer is lost", LOST, *NOT_FOLLOWED),
    planted("a plan of another query is written", "the query is another one", OTHER_ROWS, *REWRITTEN),
    planted(
        "the position moves before anything is written",
        "nothing fails, two queries of one name",
        halts("Unbalanced"),
        *RECORDED_FIRST,
    ),
    planted(
        "there is no look at the table",
        "the ledger is lost",
        TWICE,
        TRANSACTIONAL,
        "for partition, end in reply.ends:",
        "for partition, end in ():",
    ),
    planted(
        "a batch that begins above the position is taken",
        "nothing fails, two queries of one name",
        LOST,
        *NOT_REFUSED,
    ),
    planted(
        "a block without an answer counts as written",
        "the database is restarted",
        halts("ValueError"),
        *UNHEARD,
    ),
)
