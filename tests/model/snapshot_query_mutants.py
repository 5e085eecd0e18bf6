"""Bugs that were planted on purpose where a user's own query meets an Iceberg table: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import LOST, TWICE, UNCOVERED, halts, planted
from .snapshot_mutants import OWN, SNAPSHOTS

JUDGING = "landonce.protocol.match_ranges"

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
        "a batch that begins above the position is taken",
        "nothing fails, two queries of one name",
        LOST,
        SNAPSHOTS,
        "        refuse_early(driver.state, driver.incoming, driver.settings.on_rewind)\n",
        "        pass\n",
    ),
    planted(
        "a table that lost its position skips one record",
        "dropped and made again",
        LOST,
        JUDGING,
        "begun.at > begun.first:",
        "begun.at > begun.first + 1:",
    ),
    planted(
        "the position moves before the commit",
        "nothing fails, two queries of one name",
        LOST,
        SNAPSHOTS,
        "return to(driver, Step.COMMIT, CommitTables(driver.pending, receipts, _taking(driver), _recorded(driver)))",
        "return change(driver, Step.RECORD, _recorded(driver))",
    ),
    planted(
        "the first piece of a range is left out",
        "a query dies twice",
        LOST,
        JUDGING,
        "for first in range(each.first, each.end, block_rows)[: pieces_each(ranges)]",
        "for first in range(each.first, each.end, block_rows)[-1:]",
    ),
    planted(
        "a block that was not heard of counts as written",
        "a query dies twice",
        halts("ValueError"),
        SNAPSHOTS,
        "    if driver.unwritten:\n        return _write(driver)\n",
        "",
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
        SNAPSHOTS,
        "    if driver.state.pending is None and binds(driver.state, incoming):\n",
        "    if driver.state.pending is not None:\n",
    ),
)
