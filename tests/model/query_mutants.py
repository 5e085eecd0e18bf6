"""Bugs that were planted on purpose in the protocol of users' own queries: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import (
    BATCH,
    DEDUPLICATING,
    DELIVERED_AGAIN,
    DROPPED,
    LOST,
    MATCH,
    NOT_FOLLOWED,
    NOT_REFUSED,
    OTHER_ROWS,
    RECORDED_FIRST,
    RECOVERED_AT_ONCE,
    REWRITTEN,
    TWICE,
    UNCOUNTED,
    UNDURABLE,
    UNLOOKED,
    WRITTEN_AS_NEW,
    planted,
)

MUTANTS = (
    planted(
        "a pending plan is dropped",
        "a query dies, an answer is lost",
        TWICE,
        *DROPPED,
        UNCOUNTED,
    ),
    planted(
        "recovery does not wait for the deadline",
        "a zombie, and the target forgets",
        TWICE,
        *RECOVERED_AT_ONCE,
    ),
    planted(
        "one row is proof of all of a block, though its rows come again",
        "the ledger is restored",
        LOST,
        BATCH,
        "    return machine.policy.compares and machine.policy.replays(machine.pending)\n",
        "    return False\n",
    ),
    planted(
        "there is no look at the target",
        "the ledger is lost",
        TWICE,
        *UNLOOKED,
        UNCOUNTED,
    ),
    planted(
        "what the target holds is delivered as if it were new",
        "the ledger is lost",
        TWICE,
        *WRITTEN_AS_NEW,
    ),
    planted(
        "what is behind an absent block is taken",
        "a query dies, an answer is lost",
        LOST,
        *NOT_FOLLOWED,
    ),
    planted("a plan of another query is written", "the query is another one", OTHER_ROWS, *REWRITTEN),
    planted(
        "a batch that begins above the position is taken", "nothing fails, two queries of one name", LOST, *NOT_REFUSED
    ),
    planted(
        "what was delivered comes again",
        "nothing fails, two queries of one name",
        TWICE,
        *DELIVERED_AGAIN,
        UNCOUNTED,
    ),
    planted(
        "a ledger that was lost skips one record",
        "the ledger is lost",
        LOST,
        MATCH,
        "begun.at > begun.first:",
        "begun.at > begun.first + 1:",
    ),
    planted(
        "the position moves before anything is written",
        "nothing fails, two queries of one name",
        LOST,
        *RECORDED_FIRST,
    ),
    planted(
        "the new deadline is not durable before the resend",
        "a query dies twice",
        TWICE,
        *UNDURABLE,
    ),
)

OF_SEVERAL_PARTITIONS = (
    planted(
        "a look at one partition forgets what the look at another one saw",
        "two partitions: the ledger is lost",
        TWICE,
        DEDUPLICATING,
        "ends = (*machine.ahead, *((each.partition, each.end) for each in found))",
        "ends = tuple((each.partition, each.end) for each in found)",
        UNCOUNTED,
    ),
    planted(
        "a look at one partition counts as a look at all of them",
        "two partitions: the ledger is lost",
        TWICE,
        DEDUPLICATING,
        "looked=machine.looked | machine.partitions",
        "looked=frozenset(each for each, _ in machine.bound.positions)",
        UNCOUNTED,
    ),
    planted(
        "a pending block of a partition that this batch lacks landed",
        "two partitions: a query dies, an answer is lost",
        LOST,
        BATCH,
        "    landed = {each.index: each.totals for each in found if each.landed}\n",
        "    landed = {each.index: each.totals for each in found}\n",
    ),
)
