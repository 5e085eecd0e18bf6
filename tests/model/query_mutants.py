"""Bugs that were planted on purpose in the protocol of users' own queries: each must be found. See `mutants`."""

from __future__ import annotations

from .mutants import LOST, TWICE, UNCOUNTED, planted

PROTOCOL = "landonce.protocol.query_batches"
JUDGING = "landonce.protocol.match_ranges"

MUTANTS = (
    planted(
        "a pending plan is dropped",
        "a query dies, an answer is lost",
        TWICE,
        PROTOCOL,
        "    plan = driver.state.pending\n    if plan is None:\n        return _go_on(driver)\n",
        "    plan = None\n    driver = replace(driver, ledger=replace(driver.state, pending=None))\n"
        "    if plan is None:\n        return _go_on(driver)\n",
        UNCOUNTED,
    ),
    planted(
        "recovery does not wait for the deadline",
        "a zombie, and the target forgets",
        TWICE,
        PROTOCOL,
        "        return to(driver, Step.AWAIT, Await(plan.deadline))\n",
        "        return to(driver, Step.KILL, Kill())\n",
    ),
    planted(
        "one row is proof of all of a block, though its rows come again",
        "the ledger is restored",
        LOST,
        PROTOCOL,
        "    return driver.settings.deadlines and driver.pending.fingerprint == driver.settings.fingerprint\n",
        "    return False\n",
    ),
    planted(
        "there is no look at the target",
        "the ledger is lost",
        TWICE,
        PROTOCOL,
        "    if driver.incoming.partitions <= driver.looked:\n",
        "    if driver.incoming.partitions:\n",
        UNCOUNTED,
    ),
    planted(
        "what the target holds is delivered as if it were new",
        "the ledger is lost",
        TWICE,
        PROTOCOL,
        "send(driver, first_mode(driver))",
        "send(driver, Mode.FIRST)",
    ),
    planted(
        "what was delivered comes again",
        "nothing fails, two queries of one name",
        TWICE,
        JUDGING,
        "Range(each.partition, max(each.first, committed[each.partition]), each.end)",
        "Range(each.partition, each.first, each.end)",
        UNCOUNTED,
    ),
    planted(
        "a ledger that was lost skips one record",
        "the ledger is lost",
        LOST,
        JUDGING,
        "begun.at > begun.first:",
        "begun.at > begun.first + 1:",
    ),
    planted(
        "the position moves before anything is written",
        "nothing fails, two queries of one name",
        LOST,
        PROTOCOL,
        "    if step is Step.PREPARE:\n        return send(",
        "    if step is Step.PREPARE:\n        return change(driver, Step.RECORD, states.recorded(driver.state, driver.totals))\n"
        "        return send(",
    ),
    planted(
        "the new deadline is not durable before the resend",
        "a query dies twice",
        TWICE,
        PROTOCOL,
        "        return change(driver, Step.REARM, states.amended(driver.state, plan))\n",
        "        return send(replace(driver, ledger=replace(driver.state, pending=plan)), Mode.RESOLVE)\n",
    ),
)
