"""Where rows and ledger are in one database: a block's rows and its row in the ledger change in one transaction. Pure.

There is no deadline, no token and no probe. A block whose answer is missing is simply written again: its transaction begins by flipping the
block's row, and finds it flipped if it had landed (`protocol.transact`). After a crash, blocks that landed are not read again: their receipts
are in their rows. Rows and position change together, so a table that is ahead of both has lost its ledger, or another one wrote to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from landonce import errors
from landonce.protocol.batch import Machine, Next, Policy, bind, settle, unexpected
from landonce.protocol.steps import Reply
from landonce.protocol.target import TargetView


@dataclass(frozen=True)
class Transactional(Policy):
    """SQL databases."""

    keeps_receipts = True

    def plan_changed(self) -> errors.PlanChanged:
        return errors.PlanChanged(
            "the pending plan was made with another table, transform, schema or decoder than the pipeline file has "
            "now. Some of its blocks may already be in the table.",
            safe="Nothing was written. The plan is still pending in the ledger.",
            command="put the old pipeline file back, run `landonce run {file} --once`, then make the change; "
            "or `landonce state accept-change {file}`",
        )

    def recover(self, machine: Machine) -> Next:
        """What is pending may be in the table. What is above it may not, so the look comes first."""
        return settle(machine) if self.has_looked(machine) else self.look(machine)

    def after_look(self, machine: Machine, reply: Reply) -> Next:
        if not isinstance(reply, TargetView):
            raise unexpected(machine, reply)
        for partition, end in reply.ends:
            at = machine.state.committed().get(partition, 0)
            raise errors.TargetAhead(
                f"{partition}: the ledger is at offset {at}, and the table {self.target} holds records of this topic up to {end}. Rows "
                "and ledger change in one transaction, so the ledger's tables were removed or restored without the table, or another "
                "pipeline wrote these rows.",
                safe="Nothing was written, and the position did not move.",
                command="restore the tables landonce_* from the same backup as the table, or use an empty table",
            )
        return bind(replace(machine, looked=machine.looked | machine.partitions))
