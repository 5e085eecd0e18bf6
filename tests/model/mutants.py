"""Bugs that were planted on purpose: each is a change of the production source, and each must be found.

A checker that finds nothing proves nothing. These are the mistakes that the protocol exists to avoid, made one at a
time; `scenario` names the world in which each one shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from .core import Patch

INSERTS = "landonce.run.inserts"
SETTLE = "landonce.write.settle"
LEDGER = "landonce.record.ledger"
SWAP = "landonce.record.swap"
BLOCKS = "landonce.plan.blocks"
TARGET = "landonce.write.target"


@dataclass(frozen=True)
class Mutant:
    """One mistake, and where it does harm."""

    name: str
    scenario: str
    patches: tuple[Patch, ...]


def planted(name: str, scenario: str, module: str, snippet: str, replacement: str, *more: Patch) -> Mutant:
    return Mutant(name, scenario, (Patch(module, snippet, replacement), *more))


MUTANTS = (
    # ── the plan is durable before the first byte ──
    planted(
        "prepare is skipped",
        "a driver dies, an answer is lost",
        INSERTS,
        "return _change(driver, Step.PREPARE, states.prepared(driver.state, plan))",
        "return _write(replace(driver, ledger=replace(driver.state, pending=plan, batch=plan.batch)), Mode.FIRST)",
    ),
    planted(
        "a pending plan is made anew, not replayed literally",
        "records arrive, one block",
        INSERTS,
        "plan = driver.pending.regenerated(driver.burnt).rearmed(target_now + driver.world.patience)",
        "anew = pack(driver.new_ranges(), driver.settings.table, driver.world.limits)\n"
        "    plan = replace(driver.pending, blocks=anew, deadline=target_now + driver.world.patience)",
    ),
    planted(
        "a pending plan is dropped",
        "a driver dies, an answer is lost",
        INSERTS,
        "    if driver.state.pending is not None:\n        _same_fingerprint(driver)\n",
        "    driver = replace(driver, ledger=replace(driver.state, pending=None))\n"
        "    if driver.state.pending is not None:\n        _same_fingerprint(driver)\n",
    ),
    planted(
        "a plan of another transform is replayed",
        "the transform changes",
        INSERTS,
        "        _same_fingerprint(driver)\n        return",
        "        return",
    ),
    # ── fencing ──
    planted(
        "the ledger compares nothing",
        "nothing fails, two drivers",
        SWAP,
        "return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)",
        'return (state.pipeline, 0, "", 0, "")',
    ),
    planted(
        "the ledger compares epoch and version, not the owner",
        "an epoch is handed out twice",
        SWAP,
        "return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)",
        'return (state.pipeline, state.epoch, "", state.version, "")',
    ),
    planted(
        "an unanswered change that was not applied counts as applied",
        "the ledger does not answer",
        LEDGER,
        "    if seen == old:\n        return False",
        "    if seen == old:\n        return True",
    ),
    # ── the deadline ──
    planted(
        "recovery does not wait for the deadline",
        "workers outlive their driver",
        INSERTS,
        "        _same_fingerprint(driver)\n        return _to(driver, Step.AWAIT, Await(driver.pending.deadline))",
        "        _same_fingerprint(driver)\n        return _to(driver, Step.KILL, Kill())",
    ),
    planted(
        "doubt does not wait for the deadline",
        "a zombie, and the target forgets",
        INSERTS,
        "        return _to(driver, Step.COMMIT, Commit(driver.pending, receipts))\n"
        "    return _to(driver, Step.AWAIT, Await(driver.pending.deadline))",
        "        return _to(driver, Step.COMMIT, Commit(driver.pending, receipts))\n"
        "    return _to(driver, Step.KILL, Kill())",
    ),
    planted(
        "the deadline never comes",
        "nothing fails, two drivers",
        INSERTS,
        "deadline=driver.world.target_now + driver.world.patience,",
        "deadline=driver.world.target_now + 1_000_000,",
    ),
    planted(
        "the new deadline is not durable before the resend",
        "a new deadline, a late insert",
        INSERTS,
        "return _change(driver, Step.REARM, states.amended(driver.state, plan))",
        "return _write(replace(driver, ledger=replace(driver.state, pending=plan)), Mode.RESOLVE)",
    ),
    planted(
        "the old deadline is used again",
        "a driver dies, an answer is lost",
        INSERTS,
        ".rearmed(target_now + driver.world.patience)",
        "",
    ),
    planted(
        "late counts as landed",
        "a driver dies, an answer is lost",
        SETTLE,
        "return _done(settling, Fate.LATE)",
        "return _done(settling, Fate.LANDED)",
    ),
    # ── the kill ──
    planted(
        "recovery does not kill what runs",
        "workers outlive their driver",
        INSERTS,
        "    if step is Step.AWAIT:\n        return _to(driver, Step.KILL, Kill())",
        "    if step is Step.AWAIT:\n        return _rearm(driver, driver.pending.deadline + 1)",
    ),
    planted(
        "nothing is killed before the look",
        "the ledger is restored",
        INSERTS,
        "    if not driver.looked:\n        return _to(driver, Step.KILL, Kill())",
        "    if not driver.looked:\n        return _look(driver)",
    ),
    # ── the probe ──
    planted(
        "the token is trusted: an acknowledged resend has landed",
        "a token is burnt, twice",
        SETTLE,
        "if settling.mode is Mode.FIRST and settling.sends == 1 and not settling.wary:",
        "if settling.sends >= 1:",
    ),
    planted(
        "what the second probe sees is ignored",
        "a token is burnt, twice",
        SETTLE,
        "return _done(settling, Fate.BURNT)",
        "return _done(settling, Fate.LANDED)",
    ),
    planted(
        "recovery writes as if for the first time",
        "a token is burnt, twice",
        INSERTS,
        "    if step is Step.REARM:\n        return _write(driver, Mode.RESOLVE)",
        "    if step is Step.REARM:\n        return _write(driver, Mode.FIRST)",
    ),
    planted(
        "doubtful counts as landed",
        "a driver dies, an answer is lost",
        SETTLE,
        "return _done(settling, Fate.DOUBTFUL)",
        "return _done(settling, Fate.LANDED)",
    ),
    planted(
        "an error of the target counts as landed",
        "the server dies, inserts end in errors",
        SETTLE,
        "return _to(settling, Stage.PROBE)",
        "return _done(settling, Fate.LANDED)",
    ),
    planted(
        "a resend holds all rows, not the missing ones",
        "a zombie, and the target forgets",
        SETTLE,
        "missing_only=True",
        "missing_only=False",
    ),
    # ── tokens ──
    planted(
        "the token leaves out the ranges",
        "records arrive, one block",
        BLOCKS,
        "[[each.partition.topic, each.partition.number, each.first, each.end] for each in block.ranges],\n        block.table",
        "block.table",
    ),
    planted(
        "the token leaves out the generation",
        "a token is burnt, twice",
        BLOCKS,
        "        block.generation,\n    ]",
        "    ]",
    ),
    planted(
        "the token leaves out the lineage",
        "restored, with a burnt token",
        BLOCKS,
        "        identity.lineage,\n",
        "",
    ),
    planted(
        "the lineage is the ledger's, not the plan's",
        "restored, with a burnt token",
        LEDGER,
        "version=state.version + 1, lineage=state.owner, pending=plan",
        "version=state.version + 1, pending=plan",
    ),
    planted(
        "the remainder goes under another token",
        "a kill misses, the token holds",
        INSERTS,
        "driver.pending.regenerated(driver.burnt)",
        "driver.pending.regenerated(frozenset(range(len(driver.pending.blocks))))",
    ),
    planted(
        "the next generation is not recorded",
        "a token is burnt, twice",
        INSERTS,
        "driver.pending.regenerated(driver.burnt).rearmed",
        "driver.pending.rearmed",
        Patch(
            INSERTS,
            "Write(driver.pending, driver.unwritten, mode))",
            "Write(driver.pending.regenerated(driver.burnt), driver.unwritten, mode))",
        ),
    ),
    # ── the position ──
    planted(
        "the position moves before anything is written",
        "nothing fails, two drivers",
        INSERTS,
        "    if step is Step.PREPARE:\n        return _write(",
        "    if step is Step.PREPARE:\n        return _record(driver)\n        return _write(",
    ),
    planted(
        "the position moves before the commit",
        "gaps, filtered records and dead letters",
        INSERTS,
        "return _to(driver, Step.COMMIT, Commit(driver.pending, receipts))",
        "return _record(driver)",
    ),
    planted(
        "the position moves backwards",
        "records arrive, one block",
        LEDGER,
        "committed=max(position.committed, ends.get(partition, 0))",
        "committed=ends.get(partition, 0)",
    ),
    planted(
        "there is no look at the target at the start",
        "the ledger is restored",
        INSERTS,
        "    if not driver.looked:",
        "    if driver.state.batch < 0:",
    ),
    planted(
        "a partition that appears later is not looked for",
        "restored, and a partition is seen late",
        INSERTS,
        "replace(driver, looked=driver.looked and not binding.added)",
        "driver",
    ),
    planted(
        "a lost ledger is bound before the target is asked",
        "the ledger is lost, and the pipeline begins at the end",
        INSERTS,
        "    if driver.state.fresh:\n        return _to(driver, Step.KILL, Kill())\n",
        "",
    ),
    planted(
        "a partition without rows in the target says nothing of a lost ledger",
        "the ledger is lost, and the pipeline begins at the end",
        TARGET,
        "if position > 0:",
        "if 0 < dict(target.ends).get(partition, 0) < position:",
    ),
    planted(
        "what the target holds is delivered as if it were new",
        "the ledger is restored",
        INSERTS,
        "_write(driver, Mode.FIRST if driver.pending.kind is Kind.DELIVER else Mode.RESOLVE)",
        "_write(driver, Mode.FIRST)",
    ),
)
