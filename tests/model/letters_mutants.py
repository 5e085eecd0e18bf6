"""Bugs in how dead letters are replayed, planted on purpose: each must be found."""

from __future__ import annotations

from .core import Patch
from .mutants import ACCOUNT, BACKWARDS, BATCH, BLOCKS, LEDGER, LOST, SETTLE, planted

LETTERS = "landonce.protocol.letters"
BOTH_PLACES = r"is in the target and in the dead letters"

MUTANTS = (
    planted(
        "a replay moves the position",
        "letters are replayed",
        BACKWARDS,
        BLOCKS,
        "        if self.kind is Kind.LETTERS:\n            return ends\n",
        "",
        Patch(
            LEDGER,
            "committed=max(position.committed, ends.get(partition, 0))",
            "committed=ends.get(partition, position.committed) - (state.pending is not None and state.pending.kind is Kind.LETTERS)",
        ),
    ),
    planted(
        "a replay is recorded before it is written",
        "letters are replayed",
        LOST,
        BATCH,
        "        if step is Step.PREPARE:\n            return policy.write(",
        "        if step is Step.PREPARE and machine.pending.kind is Kind.LETTERS:\n"
        "            return change(machine, Step.RECORD, states.recorded(machine.state, Totals()))\n"
        "        if step is Step.PREPARE:\n            return policy.write(",
    ),
    planted(
        "letters that land are counted twice",
        "letters are replayed",
        ACCOUNT,
        LEDGER,
        "    if state.pending.kind is Kind.LETTERS:\n        counted",
        "    if state.owner is None:\n        counted",
    ),
    planted(
        "letters leave their files before their plan is recorded",
        "letters are replayed",
        LOST,
        LETTERS,
        "    return (state.batch, state.lineage) == (batch, lineage) and state.pending is None\n",
        "    return (state.batch, state.lineage) == (batch, lineage)\n",
    ),
    planted(
        "a replay has the token of the block that was delivered, and believes in it",
        "letters are replayed",
        LOST,
        LETTERS,
        "Block((each,), table, shard=letters.digest, number=number)",
        "Block((each,), table, number=number)",
        Patch(BLOCKS, "        identity.lineage,\n", ""),
        Patch(BATCH, "Mode.FIRST if machine.pending.kind is Kind.DELIVER else Mode.RESOLVE", "Mode.FIRST"),
    ),
    planted(
        "letters above the position land",
        "a replay of letters that a restored ledger does not know",
        ACCOUNT,
        LETTERS,
        "            return partition if position.first <= offset < position.committed else None\n",
        "            return partition\n",
        Patch(
            LETTERS,
            "if position is None or each.first < position.first or each.end > position.committed:",
            "if position is None:",
        ),
    ),
    planted(
        "a record that a replay landed is a dead letter again",
        "a replay after the ledger was restored",
        BOTH_PLACES,
        SETTLE,
        "    return mode is Mode.RESOLVE\n",
        "    return False\n",
    ),
    planted(
        "a letter stays though its record landed when it was delivered again",
        "letters land when a restored ledger has them delivered again",
        BOTH_PLACES,
        LETTERS,
        "    return (state.batch, state.lineage) == (batch, lineage) and state.pending is None\n",
        "    return False\n",
    ),
    planted(
        "a driver that was replaced publishes its dead letters",
        "a replay beside a driver",
        BOTH_PLACES,
        LEDGER,
        "    if seen is None or (seen.epoch, seen.owner) != (mine.epoch, mine.owner):\n        raise fenced(mine, seen)\n",
        "    return\n",
    ),
)

BOTH_HERE = r"is in the table and in the dead letters"
TRANSACTIONS = (
    planted(
        "letters that land in a transaction are counted twice",
        "letters land in transactions",
        ACCOUNT,
        LEDGER,
        "    if state.pending.kind is Kind.LETTERS:\n        counted",
        "    if state.owner is None:\n        counted",
    ),
    planted(
        "letters leave their files before their transactions",
        "letters land in transactions",
        LOST,
        LETTERS,
        "    return (state.batch, state.lineage) == (batch, lineage) and state.pending is None\n",
        "    return (state.batch, state.lineage) == (batch, lineage)\n",
    ),
    planted(
        "a driver that was replaced publishes its dead letters beside a replay",
        "letters land beside a driver",
        BOTH_HERE,
        LEDGER,
        "    if seen is None or (seen.epoch, seen.owner) != (mine.epoch, mine.owner):\n        raise fenced(mine, seen)\n",
        "    return\n",
    ),
)

SNAPSHOTS = (
    planted(
        "letters that land in a commit are counted twice",
        "own: letters land in a commit",
        ACCOUNT,
        LEDGER,
        "    if state.pending.kind is Kind.LETTERS:\n        counted",
        "    if state.owner is None:\n        counted",
    ),
    planted(
        "a driver that was replaced publishes its dead letters after its commit",
        "own: letters land beside a driver",
        BOTH_HERE,
        LEDGER,
        "    if seen is None or (seen.epoch, seen.owner) != (mine.epoch, mine.owner):\n        raise fenced(mine, seen)\n",
        "    return\n",
    ),
    planted(
        "letters leave their files before their plan is recorded in the ledger of a fan-out",
        "fan-out: letters land",
        LOST,
        LETTERS,
        "    return (state.batch, state.lineage) == (batch, lineage) and state.pending is None\n",
        "    return (state.batch, state.lineage) == (batch, lineage)\n",
    ),
)
