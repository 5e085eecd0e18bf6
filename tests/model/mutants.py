"""Bugs that were planted on purpose: each is a change of the production source, and each must be found.

A checker that finds nothing proves nothing. These are the mistakes that the protocol exists to avoid, made one at a
time; `scenario` names the world in which each one shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from .core import Patch

INSERTS = "landonce.protocol.inserts"
BATCH = "landonce.protocol.batch"
SETTLE = "landonce.protocol.settle"
LEDGER = "landonce.protocol.ledger"
SWAP = "landonce.protocol.ledger"
BLOCKS = "landonce.protocol.blocks"
TARGET = "landonce.protocol.target"


# What a planted bug is expected to cause, as a violation says it.
TWICE = r"is in (the target|the table|table \w) twice"
LOST = r"covers .+, which is (nowhere|not there)|in the end .+ is not (in|dead-lettered)"
UNCOVERED = r"holds .+, which its mark does not cover"
ENDLESS = r"does not come to an end|stands still"
AGAIN = r"is alone, and writes a batch twice"
OTHER_ROWS = r"with another transform than it was made with"
BACKWARDS = r"moved backwards"
DISORDER = r"is made after a newer one|arrives after a later one"
ACCOUNT = r"blocks are left over, or the totals are not"
TOO_EARLY = r"a person is asked about a block that may still arrive"
FOLLOWED = r"a rollback is followed, though the file says"
STRANGER = r"was made anew, and is written as if it were the old one"


def halts(error: str) -> str:
    """A driver stops, and nothing but the bug is the reason: nobody can go on."""
    return rf"stopped without a reason: {error}:"


@dataclass(frozen=True)
class Mutant:
    """One mistake, where it does harm, and which harm. Another violation does not count."""

    name: str
    scenario: str
    expects: str
    patches: tuple[Patch, ...]


def planted(
    name: str, scenario: str, expects: str, module: str, snippet: str, replacement: str, *more: Patch
) -> Mutant:
    return Mutant(name, scenario, expects, (Patch(module, snippet, replacement), *more))


UNCOUNTED = Patch(TARGET, "    if rows is None or rows <= landed:\n", "    if rows != -1:\n")
"""Rows are counted against other writers, which finds some mistakes of this driver too, before they do harm."""

MUTANTS = (
    # ── the plan is durable before the first byte ──
    planted(
        "prepare is skipped",
        "a driver dies, an answer is lost",
        TWICE,
        INSERTS,
        "return change(driver, Step.PREPARE, states.prepared(driver.state, plan))",
        "return send(replace(driver, ledger=replace(driver.state, pending=plan, batch=plan.batch)), Mode.FIRST)",
    ),
    planted(
        "a pending plan is made anew, not replayed literally",
        "records arrive, one block",
        halts("PartialPresence"),
        INSERTS,
        "plan = driver.pending.regenerated(driver.used_up).rearmed(target_now + driver.world.patience)",
        "anew = pack(driver.new_ranges(), driver.settings.table, driver.world.limits)\n"
        "    plan = replace(driver.pending, blocks=anew, deadline=target_now + driver.world.patience)",
    ),
    planted(
        "a pending plan is dropped",
        "a driver dies, an answer is lost",
        TWICE,
        INSERTS,
        "    if driver.state.pending is not None:\n        _same_fingerprint(driver)\n",
        "    driver = replace(driver, ledger=replace(driver.state, pending=None))\n"
        "    if driver.state.pending is not None:\n        _same_fingerprint(driver)\n",
    ),
    planted(
        "a plan of another transform is replayed",
        "the transform changes",
        OTHER_ROWS,
        INSERTS,
        "        _same_fingerprint(driver)\n        return",
        "        return",
    ),
    # ── fencing ──
    planted(
        "the ledger compares nothing",
        "nothing fails, two drivers",
        TWICE,
        SWAP,
        "return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)",
        'return (state.pipeline, 0, "", 0, "")',
    ),
    planted(
        "the ledger compares epoch and version, not the owner",
        "an epoch is handed out twice",
        TWICE,
        SWAP,
        "return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)",
        'return (state.pipeline, state.epoch, "", state.version, "")',
    ),
    planted(
        "an unanswered change that was not applied counts as applied",
        "the ledger does not answer",
        TWICE,
        LEDGER,
        "    if seen == old:\n        return False",
        "    if seen == old:\n        return True",
    ),
    # ── the deadline ──
    planted(
        "recovery does not wait for the deadline",
        "workers outlive their driver",
        TWICE,
        INSERTS,
        "        _same_fingerprint(driver)\n        return to(driver, Step.AWAIT, Await(driver.pending.deadline))",
        "        _same_fingerprint(driver)\n        return to(driver, Step.KILL, Kill())",
    ),
    planted(
        "doubt does not wait for the deadline",
        "a zombie, and the target forgets",
        TWICE,
        INSERTS,
        "        return to(driver, Step.COMMIT, Commit(driver.pending, receipts))\n"
        "    return to(driver, Step.AWAIT, Await(driver.pending.deadline))",
        "        return to(driver, Step.COMMIT, Commit(driver.pending, receipts))\n"
        "    return to(driver, Step.KILL, Kill())",
    ),
    planted(
        "the deadline never comes",
        "nothing fails, two drivers",
        ENDLESS,
        INSERTS,
        "deadline=driver.world.target_now + driver.world.patience,",
        "deadline=driver.world.target_now + 1_000_000,",
    ),
    planted(
        "the new deadline is not durable before the resend",
        "a new deadline, a late insert",
        TWICE,
        INSERTS,
        "return change(driver, Step.REARM, states.amended(driver.state, plan))",
        "return send(replace(driver, ledger=replace(driver.state, pending=plan)), Mode.RESOLVE)",
    ),
    planted(
        "the old deadline is used again",
        "a driver dies, an answer is lost",
        ENDLESS,
        INSERTS,
        ".rearmed(target_now + driver.world.patience)",
        "",
    ),
    planted(
        "late counts as landed",
        "a driver dies, an answer is lost",
        LOST,
        SETTLE,
        "return _done(settling, Fate.LATE)",
        "return _done(settling, Fate.LANDED)",
    ),
    # ── the kill ──
    planted(
        "recovery does not kill what runs",
        "workers outlive their driver",
        TWICE,
        INSERTS,
        "    if step is Step.AWAIT:\n        return to(driver, Step.KILL, Kill())",
        "    if step is Step.AWAIT:\n        return _rearm(driver, driver.pending.deadline + 1)",
    ),
    planted(
        "nothing is killed before the look",
        "the ledger is restored",
        TWICE,
        INSERTS,
        "    if not driver.looked:\n        return to(driver, Step.KILL, Kill())",
        "    if not driver.looked:\n        return _look(driver)",
    ),
    # ── the probe ──
    planted(
        "the token is trusted: an acknowledged resend has landed",
        "a token is burnt, twice",
        LOST,
        SETTLE,
        "if settling.mode is Mode.FIRST and settling.sends == 1 and not settling.wary:",
        "if settling.sends >= 1:",
    ),
    planted(
        "what the second probe sees is ignored",
        "a token is burnt, twice",
        LOST,
        SETTLE,
        "return _done(settling, Fate.TOKEN_USED_UP)",
        "return _done(settling, Fate.LANDED)",
    ),
    planted(
        "recovery writes as if for the first time",
        "a token is burnt, twice",
        LOST,
        INSERTS,
        "    if step is Step.REARM:\n        return send(driver, Mode.RESOLVE)",
        "    if step is Step.REARM:\n        return send(driver, Mode.FIRST)",
    ),
    planted(
        "doubtful counts as landed",
        "a driver dies, an answer is lost",
        LOST,
        SETTLE,
        "return _done(settling, Fate.DOUBTFUL)",
        "return _done(settling, Fate.LANDED)",
    ),
    planted(
        "an error of the target counts as landed",
        "the server dies, inserts end in errors",
        LOST,
        SETTLE,
        "return _to(settling, Stage.PROBE)",
        "return _done(settling, Fate.LANDED)",
    ),
    planted(
        "a resend holds all rows, not the missing ones",
        "a zombie, and the target forgets",
        TWICE,
        SETTLE,
        "missing_only=True",
        "missing_only=False",
    ),
    # ── tokens ──
    planted(
        "the token leaves out the ranges",
        "records arrive, one block",
        LOST,
        BLOCKS,
        "[[each.partition.topic, each.partition.number, each.first, each.end] for each in block.ranges],\n        block.table",
        "block.table",
    ),
    planted(
        "the token leaves out the generation",
        "a token is burnt, twice",
        halts("RowsNotKept"),
        BLOCKS,
        "        block.generation,\n    ]",
        "    ]",
    ),
    planted(
        "the token leaves out the lineage",
        "restored, with a burnt token",
        LOST,
        BLOCKS,
        "        identity.lineage,\n",
        "",
    ),
    planted(
        "the lineage is the ledger's, not the plan's",
        "restored, with a burnt token",
        LOST,
        LEDGER,
        "version=state.version + 1, lineage=state.owner, pending=plan",
        "version=state.version + 1, pending=plan",
    ),
    planted(
        "the remainder goes under another token",
        "a kill misses, the token holds",
        TWICE,
        INSERTS,
        "driver.pending.regenerated(driver.used_up)",
        "driver.pending.regenerated(frozenset(range(len(driver.pending.blocks))))",
    ),
    planted(
        "the next generation is not recorded",
        "a token is burnt, twice",
        ENDLESS,
        INSERTS,
        "driver.pending.regenerated(driver.used_up).rearmed",
        "driver.pending.rearmed",
        Patch(
            BATCH,
            "Write(machine.pending, machine.unwritten, mode))",
            "Write(machine.pending.regenerated(machine.used_up), machine.unwritten, mode))",
        ),
    ),
    # ── the position ──
    planted(
        "the position moves before anything is written",
        "nothing fails, two drivers",
        LOST,
        INSERTS,
        "    if step is Step.PREPARE:\n        return send(",
        "    if step is Step.PREPARE:\n        return _record(driver)\n        return send(",
    ),
    planted(
        "the position moves before the commit",
        "gaps, filtered records and dead letters",
        LOST,
        INSERTS,
        "return to(driver, Step.COMMIT, Commit(driver.pending, receipts))",
        "return _record(driver)",
    ),
    planted(
        "the position moves backwards",
        "records arrive, one block",
        BACKWARDS,
        LEDGER,
        "committed=max(position.committed, ends.get(partition, 0))",
        "committed=ends.get(partition, 0)",
    ),
    planted(
        "there is no look at the target at the start",
        "the ledger is restored",
        TWICE,
        INSERTS,
        "    if not driver.looked:",
        "    if driver.state.batch < 0:",
        UNCOUNTED,
    ),
    planted(
        "a partition that appears later is not looked for",
        "restored, and a partition is seen late",
        TWICE,
        INSERTS,
        "replace(driver, looked=driver.looked and not binding.added)",
        "driver",
        UNCOUNTED,
    ),
    planted(
        "a lost ledger is bound before the target is asked",
        "the ledger is lost, and the pipeline begins at the end",
        LOST,
        INSERTS,
        "    if driver.state.fresh:\n        return to(driver, Step.KILL, Kill())\n",
        "",
    ),
    planted(
        "a partition without rows in the target says nothing of a lost ledger",
        "the ledger is lost, and the pipeline begins at the end",
        LOST,
        TARGET,
        "if position > 0:",
        "if 0 < dict(target.ends).get(partition, 0) < position:",
    ),
    planted(
        "what the target holds is delivered as if it were new",
        "the ledger is restored",
        TWICE,
        INSERTS,
        "send(driver, first_mode(driver))",
        "send(driver, Mode.FIRST)",
    ),
)
