"""Bugs that were planted on purpose: each is a change of the production source, and each must be found.

A checker that finds nothing proves nothing. These are the mistakes that the protocol exists to avoid, made one at a
time; `scenario` names the world in which each one shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from .core import Patch

DEDUPLICATING = "landonce.protocol.deduplicating"
MATCH = "landonce.protocol.match_ranges"
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
TOO_MANY = r"with too many dead letters is recorded"
ACCOUNT = r"blocks are left over, or the totals are not"
TOO_EARLY = r"a person is asked about a block that may still arrive"
FOLLOWED = r"a rollback is followed, though the file says"
STRANGER = r"was made again, and is written as if it were the old one"


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

# Mistakes in the one machine, each planted for several kinds of sinks.
UNPREPARED = (
    BATCH,
    "return change(machine, Step.PREPARE, states.prepared(machine.state, plan))",
    "return policy.write(replace(machine, ledger=replace(machine.state, pending=plan, batch=plan.batch)), Mode.FIRST)",
)
DROPPED = (
    BATCH,
    "    if machine.state.pending is not None:\n        return policy.recover(machine)\n",
    "    machine = replace(machine, ledger=replace(machine.state, pending=None))\n",
)
CHANGED = (
    BATCH,
    "    elif plan is not None and not policy.replays(plan):\n        raise policy.plan_changed()\n",
    "",
)
RECORDED_FIRST = (
    BATCH,
    "        if step is Step.PREPARE:\n            return policy.write(",
    "        if step is Step.PREPARE:\n            return change(machine, Step.RECORD, policy.recorded(machine))\n"
    "            return policy.write(",
)
UNCOMMITTED = (
    BATCH,
    "return do(machine, machine.policy.commit(machine, machine.balanced_receipts()))",
    "return change(machine, Step.RECORD, machine.policy.recorded(machine))",
)
INCOMPLETE = (
    BATCH,
    "    if machine.unwritten:\n        return machine.policy.recover(machine)\n",
    "    if machine.unwritten:\n        return change(machine, Step.RECORD, machine.policy.recorded(machine))\n",
)
UNHEARD = (BATCH, "    if machine.unwritten:\n        return machine.policy.recover(machine)\n", "")
RECOVERED_AT_ONCE = (BATCH, "        return policy.recover(machine)\n", "        return policy.after_await(machine)\n")
WRITTEN_AS_NEW = (BATCH, "Mode.FIRST if machine.pending.kind is Kind.DELIVER else Mode.RESOLVE", "Mode.FIRST")
UNLOOKED = (BATCH, "    if not policy.has_looked(machine):\n", "    if machine.state.batch < 0:\n")
BOUND_FIRST = (BATCH, "        return machine.state.fresh\n", "        return False\n")
NOT_REFUSED = (
    BATCH,
    "        refuse_early(machine.state, machine.incoming, machine.policy.on_rewind)\n",
    "        pass\n",
)
COUNTED_AGAIN = (
    BATCH,
    "return replace(machine, receipts=(), opened=False, used_up",
    "return replace(machine, opened=False, used_up",
)
NOT_FOLLOWED = (
    BATCH,
    "        follow(machine.state, plan.blocks[index], machine.incoming, landed=index in landed)\n",
    "        pass\n",
)
REWRITTEN = (MATCH, "frozenset(found if plan.fingerprint == fingerprint else ())", "frozenset(found)")
DELIVERED_AGAIN = (
    MATCH,
    "Range(each.partition, max(each.first, committed[each.partition]), each.end)",
    "Range(each.partition, each.first, each.end)",
)
UNDURABLE = (
    DEDUPLICATING,
    "return change(machine, Step.REARM, states.amended(machine.state, plan))",
    "return self.write(replace(machine, ledger=replace(machine.state, pending=plan)), Mode.RESOLVE)",
)

ONE_FOR_ALL = "    return Fate.LANDED if len(settled) == tables else None\n"

MUTANTS = (
    # ── a block with rows for several tables ──
    planted(
        "two tables share a token",
        "two tables, a token is used up, a driver dies",
        LOST,
        BLOCKS,
        'return token if table == block.table else hashlib.sha256(f"{token} {table}".encode()).hexdigest()',
        "return token",
    ),
    planted(
        "a block has landed when its first table has",
        "two tables, an answer is lost, workers outlive their driver",
        LOST,
        SETTLE,
        ONE_FOR_ALL,
        "    return Fate.LANDED if settled else None\n",
    ),
    planted(
        "the probe of one table stands for all",
        "two tables, a token is used up, a driver dies",
        LOST,
        SETTLE,
        ONE_FOR_ALL,
        "    proven = any(each.mode is Mode.RESOLVE for each in settled)\n"
        "    return Fate.LANDED if proven or len(settled) == tables else None\n",
    ),
    planted(
        "what one table lacks is not heard of",
        "two tables, an answer is lost, workers outlive their driver",
        LOST,
        SETTLE,
        "    if other is not None:\n        return other\n    return Fate.LANDED if",
        "    return Fate.LANDED if",
    ),
    # ── the plan is durable before the first byte ──
    planted(
        "prepare is skipped",
        "a driver dies, an answer is lost",
        TWICE,
        *UNPREPARED,
    ),
    planted(
        "a pending plan is made again, not replayed literally",
        "records arrive, one block",
        halts("PartialPresence"),
        DEDUPLICATING,
        "plan = machine.pending.regenerated(machine.used_up).rearmed(machine.deadline)",
        "plan = replace(machine.pending, blocks=self.blocks(machine, machine.new_ranges), deadline=machine.deadline)",
    ),
    planted(
        "a pending plan is dropped",
        "a driver dies, an answer is lost",
        TWICE,
        *DROPPED,
    ),
    planted(
        "a plan of another transform is replayed",
        "the transform changes",
        OTHER_ROWS,
        *CHANGED,
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
        *RECOVERED_AT_ONCE,
    ),
    planted(
        "doubt does not wait for the deadline",
        "a zombie, and the target forgets",
        TWICE,
        BATCH,
        "        return machine.policy.recover(machine)\n",
        "        return machine.policy.after_await(machine)\n",
    ),
    planted(
        "the deadline never comes",
        "nothing fails, two drivers",
        ENDLESS,
        DEDUPLICATING,
        "return machine.world.target_now + machine.world.patience",
        "return machine.world.target_now + 1_000_000",
    ),
    planted(
        "the new deadline is not durable before the resend",
        "a new deadline, a late insert",
        TWICE,
        *UNDURABLE,
    ),
    planted(
        "the old deadline is used again",
        "a driver dies, an answer is lost",
        ENDLESS,
        DEDUPLICATING,
        ".rearmed(machine.deadline)",
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
        DEDUPLICATING,
        "    def after_await(self, machine: Machine) -> Next:\n        return do(machine, Kill())",
        "    def after_await(self, machine: Machine) -> Next:\n"
        "        return self.after_kill(machine, machine.pending.deadline + 1)",
    ),
    planted(
        "nothing is killed before the look",
        "the ledger is restored",
        TWICE,
        DEDUPLICATING,
        'the plan that it belongs to."""\n        return do(machine, Kill())',
        'the plan that it belongs to."""\n        return do(machine, Look(machine.floors))',
    ),
    # ── the probe ──
    planted(
        "the token is trusted: an acknowledged resend has landed",
        "a token is used up, twice",
        LOST,
        SETTLE,
        "if settling.mode is Mode.FIRST and settling.sends == 1 and not settling.wary:",
        "if settling.sends >= 1:",
    ),
    planted(
        "what the second probe sees is ignored",
        "a token is used up, twice",
        LOST,
        SETTLE,
        "return _done(settling, Fate.TOKEN_USED_UP)",
        "return _done(settling, Fate.LANDED)",
    ),
    planted(
        "recovery writes as if for the first time",
        "a token is used up, twice",
        LOST,
        BATCH,
        "policy.write(machine, Mode.RESOLVE)\n        if step is Step.LOOK:",
        "policy.write(machine, Mode.FIRST)\n        if step is Step.LOOK:",
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
        "return replace(settling, stage=InsertStage.PROBE)",
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
        "a token is used up, twice",
        halts("RowsNotKept"),
        BLOCKS,
        "        block.generation,\n    ]",
        "    ]",
    ),
    planted(
        "the token leaves out the lineage",
        "restored, with a token that is used up",
        LOST,
        BLOCKS,
        "        identity.lineage,\n",
        "",
    ),
    planted(
        "the lineage is the ledger's, not the plan's",
        "restored, with a token that is used up",
        LOST,
        LEDGER,
        "version=state.version + 1, lineage=state.owner, pending=plan",
        "version=state.version + 1, pending=plan",
    ),
    planted(
        "the remainder goes under another token",
        "a kill misses, the token holds",
        TWICE,
        DEDUPLICATING,
        "machine.pending.regenerated(machine.used_up)",
        "machine.pending.regenerated(frozenset(range(len(machine.pending.blocks))))",
    ),
    planted(
        "the next generation is not recorded",
        "a token is used up, twice",
        ENDLESS,
        DEDUPLICATING,
        "machine.pending.regenerated(machine.used_up).rearmed",
        "machine.pending.rearmed",
        Patch(
            DEDUPLICATING,
            "Write(machine.pending, machine.unwritten, mode, final",
            "Write(machine.pending.regenerated(machine.used_up), machine.unwritten, mode, final",
        ),
    ),
    # ── the position ──
    planted(
        "the position moves before anything is written",
        "nothing fails, two drivers",
        LOST,
        *RECORDED_FIRST,
    ),
    planted(
        "the position moves before the commit",
        "gaps, filtered records and dead letters",
        LOST,
        *UNCOMMITTED,
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
        *UNLOOKED,
        UNCOUNTED,
    ),
    planted(
        "a partition that appears later is not looked for",
        "restored, and a partition is seen late",
        TWICE,
        BATCH,
        "return machine.partitions <= machine.looked",
        "return bool(machine.looked)",
        UNCOUNTED,
    ),
    planted(
        "a lost ledger is bound before the target is asked",
        "the ledger is lost, and the pipeline begins at the end",
        LOST,
        *BOUND_FIRST,
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
        *WRITTEN_AS_NEW,
    ),
    planted(
        "a plan is given up while an insert of it is under way",
        "too many dead letters",
        TWICE,
        BATCH,
        "    if machine.unwritten:\n        return machine.policy.recover(machine)\n"
        "    if (error := _too_many(machine)) is not None:\n        return _halt(machine, error)\n",
        "    if (error := _too_many(machine)) is not None:\n        return _halt(machine, error)\n"
        "    if machine.unwritten:\n        return machine.policy.recover(machine)\n",
    ),
    planted(
        "the position moves when a plan is given up",
        "too many dead letters",
        LOST,
        BATCH,
        "Step.REARM, states.resolved(machine.state, {}, None))",
        "Step.REARM, states.recorded(machine.state, machine.totals))",
    ),
)
