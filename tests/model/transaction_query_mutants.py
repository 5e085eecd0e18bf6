"""Bugs that were planted on purpose where a user's own query meets a database: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import LOST, TWICE, halts, planted
from .query_mutants import JUDGING, PROTOCOL

MUTANTS = (
    planted(
        "what was delivered comes again",
        "nothing fails, two queries of one name",
        TWICE,
        JUDGING,
        "Range(each.partition, max(each.first, committed[each.partition]), each.end)",
        "Range(each.partition, each.first, each.end)",
    ),
    planted(
        "a pending block that does not come again never was",
        "a query dies, an answer is lost",
        halts("PlanPending"),
        PROTOCOL,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed: dict[int, Totals] = {}\n",
    ),
    planted(
        "a pending block that does not come again landed",
        "a query dies, an answer is lost",
        halts("Unbalanced"),
        PROTOCOL,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed = {each.index: each.totals for each in found}\n",
    ),
    planted(
        "the position moves before anything is written",
        "nothing fails, two queries of one name",
        halts("Unbalanced"),
        PROTOCOL,
        "    if step is Step.PREPARE:\n        return send(",
        "    if step is Step.PREPARE:\n        return change(driver, Step.RECORD, states.recorded(driver.state, driver.totals))\n"
        "        return send(",
    ),
    planted(
        "there is no look at the table",
        "the ledger is lost",
        TWICE,
        PROTOCOL,
        "    if target.ends and not driver.settings.deadlines:\n",
        "    if target.ends and driver.settings.deadlines:\n",
    ),
    planted(
        "a batch that begins above the position is taken",
        "nothing fails, two queries of one name",
        LOST,
        PROTOCOL,
        "    refuse_early(driver.state, driver.incoming, driver.settings.on_rewind)\n",
        "",
    ),
    planted(
        "a block without an answer counts as written",
        "the database is restarted",
        halts("ValueError"),
        PROTOCOL,
        "    if not driver.unwritten:\n",
        "    if driver.pending:\n",
    ),
)
