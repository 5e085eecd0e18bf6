"""What a database keeps in which one transaction changes a block's rows and its row in the ledger.

The port is `landonce.sinks.transactional.BlockTransaction`, for another database or another way to write to one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa

from landonce.errors import PlanPending, Unbalanced
from landonce.ledger.block_ledgers import TargetLedger
from landonce.ledger.plain_sql import PlainSqlLedger
from landonce.protocol.block_rows import BlockState, Claim
from landonce.protocol.ledger import LedgerState, Totals, recorded, taken
from landonce.protocol.receipt import Fate
from landonce.protocol.transact import Transacting
from landonce.sinks.transactional import BlockTransaction, TransactionalTable, settle_block
from landonce.testing.case import Suite, overrides, refused
from landonce.testing.crashing import SOME_MOMENTS, crashed, in_threads, lines_of, moments, require_kills
from landonce.testing.sink_sites import PIPELINE as PIPELINE
from landonce.testing.sink_sites import REMOVED, Row, as_rows, held, left, neighbours, pending, rows

BATCH = 1
RECEIPT = '{"read":4,"landed":4}'


class TransactionSite(ABC):
    """One database for one case: an empty table with the columns of `sink_sites.SCHEMA` and coordinates."""

    moments = SOME_MOMENTS
    """At how many lines, at most, a crash is tried."""

    @abstractmethod
    def ledger(self) -> TargetLedger | PlainSqlLedger:
        """The ledger of the pipeline `contract`, which is in the database too."""

    @abstractmethod
    def writer(self, number: int) -> BlockTransaction:
        """For the block of this number, of batch 1 of the pipeline `contract`."""

    @abstractmethod
    def held(self) -> list[Row]:
        """All that the table holds, in any order, over a connection of its own."""

    def table(self) -> TransactionalTable:
        """The table as the driver opens it. Without it, its cases are excused."""
        raise NotImplementedError


HAS_TABLE = overrides(TransactionSite, "table", "the site does not open the table as the driver does")
TRANSACTION_CASES: Suite[TransactionSite] = Suite("transaction")
case = TRANSACTION_CASES.case


@case()
def a_block_lands_with_its_row(site: TransactionSite) -> None:
    """Records would be lost: a block whose row says AFTER is never checked again."""
    state = _prepared(site, 2)
    assert _settled(site, state, 0).fate is Fate.LANDED
    assert held(site) == as_rows(four(0)), "the block is not there as it was written"
    assert _marks(site) == [BlockState.AFTER, BlockState.BEFORE], "the wrong row was flipped, or none"


@case()
def a_block_that_is_there_is_not_written_again(site: TransactionSite) -> None:
    """A task that Spark runs again would deliver twice."""
    state = _prepared(site, 1)
    for _ in range(2):
        assert _settled(site, state, 0).fate is Fate.LANDED
    assert held(site) == as_rows(four(0)), "a block that was there was written again"


@case()
def the_receipt_of_the_first_attempt_counts(site: TransactionSite) -> None:
    """The totals of a batch would count attempts that wrote nothing."""
    state = _prepared(site, 1)
    _settled(site, state, 0)
    assert _settled(site, state, 0, "{}").settled == RECEIPT, "the receipt of the attempt that landed is not there"


@case()
def a_block_without_rows_is_done_too(site: TransactionSite) -> None:
    """A batch of filtered records would never be recorded."""
    state = _prepared(site, 1)
    assert _settled(site, state, 0, table=four(0).slice(0, 0)).fate is Fate.LANDED
    assert _marks(site) == [BlockState.AFTER], "a block without rows stays pending"


@case()
def a_zombie_writes_nothing(site: TransactionSite) -> None:
    """A driver that was replaced continues to write."""
    old = _prepared(site, 1)
    new = _taken_over(site, old)
    assert _settled(site, old, 0).fate is Fate.HALTED, "a worker of a driver that was replaced was let through"
    assert held(site) == [], "a worker of a driver that was replaced wrote rows"
    assert _settled(site, new, 0).fate is Fate.LANDED
    assert held(site) == as_rows(four(0))


@case()
def what_is_not_committed_leaves_nothing(site: TransactionSite) -> None:
    """Rows without their row in the ledger are delivered again."""
    state = _prepared(site, 1)
    writer = site.writer(0)
    assert writer.flip(Claim.of(state), RECEIPT)
    writer.write(four(0))
    writer.close()
    assert held(site) == [], "rows of a transaction that was not committed are there"
    assert _marks(site) == [BlockState.BEFORE], "the row of a transaction that was not committed is flipped"


@case()
def blocks_of_one_plan_land_side_by_side(site: TransactionSite) -> None:
    """The workers of one batch write at the same time: one would undo what another wrote."""
    state = _prepared(site, 4)
    fates = in_threads(4, lambda name: _settled(site, state, int(name[-1])).fate)
    assert fates == [Fate.LANDED] * 4
    assert held(site) == as_rows(*map(four, range(4))), "blocks disturbed each other"


@case()
def two_runs_of_one_task_at_once_are_one(site: TransactionSite) -> None:
    """A speculative task would deliver beside the first one."""
    state = _prepared(site, 1)
    fates = in_threads(4, lambda _: _settled(site, state, 0).fate)
    assert fates == [Fate.LANDED] * 4
    assert held(site) == as_rows(four(0)), "two runs of one task both wrote"


@case()
def a_batch_is_not_recorded_without_all_of_its_blocks(site: TransactionSite) -> None:
    """The position would move past records that never landed."""
    state = _prepared(site, 2)
    _settled(site, state, 0)
    refused(
        Unbalanced,
        lambda: site.ledger().change(state, recorded(state, Totals(landed=4))),
        "a batch was recorded, and one of its blocks is not in the table",
    )
    _settled(site, state, 1)
    assert site.ledger().change(state, recorded(state, Totals(landed=8))).pending is None


@case()
def a_plan_is_not_forgotten_with_blocks_that_are_there(site: TransactionSite) -> None:
    """What landed would be planned again, and delivered again."""
    state = _prepared(site, 2)
    _settled(site, state, 0)
    forgotten = replace(taken(state, "operator"), pending=None)
    refused(
        PlanPending, lambda: site.ledger().change(state, forgotten), "a plan was forgotten with a block that is there"
    )
    assert _marks(site) == [BlockState.AFTER, BlockState.BEFORE], "the rows of the blocks went with it"


@case(HAS_TABLE)
def exactly_the_rows_of_the_ranges_are_removed(site: TransactionSite) -> None:
    """`state seek --remove-rows` would deliver records beside rows that stayed, or lose rows that nobody delivers again."""
    state, blocks = _prepared(site, 4), neighbours()
    for number, block in enumerate(blocks):
        assert _settled(site, state, number, table=block).fate is Fate.LANDED
    with closing(site.table()) as table:
        if table.no_removal():
            return
        for _ in range(2):
            table.remove(REMOVED)
            assert held(site) == left(*blocks), "rows of the ranges are still there, or others are gone"
            assert table.count(REMOVED) == 0, "rows that were removed are counted"


@case()
def after_a_crash_at_any_line_a_block_lands_once(site: TransactionSite) -> None:
    """The whole promise. Recovery is landonce's own: a takeover, and then every block once more."""
    state = _prepared(site, site.moments + 1)
    lines = (*lines_of(site.writer(0)), "landonce.sinks.transactional")
    found = moments(lines, lambda: _settled(site, state, site.moments), site.moments)
    require_kills([crashed(lines, partial(_settled, site, state, at), moment) for at, moment in enumerate(found)])
    state = _taken_over(site, state)
    for number, moment in enumerate(found):
        fate = _settled(site, state, number).fate
        assert fate is Fate.LANDED, f"the block cannot land any more (line {moment}): {fate}"
    assert held(site) == as_rows(*map(four, [*range(len(found)), site.moments])), "rows are missing or there twice"


def four(number: int) -> pa.Table:
    return rows(0, 1, 2, 3, partition=number)


def _prepared(site: TransactionSite, blocks: int) -> LedgerState:
    """A plan with a block for each of so many partitions is pending."""
    return pending(site.ledger(), blocks, 4)


def _taken_over(site: TransactionSite, state: LedgerState) -> LedgerState:
    return site.ledger().change(state, taken(state, "second"))


def _settled(
    site: TransactionSite, state: LedgerState, number: int, receipt: str = RECEIPT, table: pa.Table | None = None
) -> Transacting:
    """What a worker does with the block of this number."""
    block = four(number) if table is None else table
    return settle_block(lambda: site.writer(number), Claim.of(state), receipt, block, f"block {number}")


def _marks(site: TransactionSite) -> list[BlockState]:
    return [row.mark for row in site.ledger().blocks(BATCH)]
