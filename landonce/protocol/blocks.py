"""Blocks, their tokens, and the plan of one micro-batch.

A block's token is a pure function of what is written, never of who writes it: pipeline, lineage, cluster id, topic ids,
ranges, table, shard and generation. The lineage changes with every driver that makes plans, so that a token of an
earlier life (a truncated table, a deleted or restored ledger) can never make the target drop rows that are not there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from landonce.protocol.ranges import Partition, Range


@dataclass(frozen=True)
class Identity:
    """What all tokens of a pipeline's ledger have in common."""

    pipeline: str
    lineage: str
    cluster_id: str
    topic_ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Block:
    """Ranges that are written to one table as one unit, in (topic, partition, offset) order."""

    ranges: tuple[Range, ...]
    table: str
    shard: str = ""
    generation: int = 0
    number: int = 0
    """Its place in the plan that was prepared. It names the block's dead letters, and stays when others are dropped."""

    def __post_init__(self) -> None:
        partitions = [each.partition for each in self.ranges]
        if not partitions or partitions != sorted(set(partitions)):
            raise ValueError("a block has at least one range, in order, and at most one of each partition")

    @property
    def span(self) -> int:
        """At most this many records."""
        return sum(each.span for each in self.ranges)

    def __str__(self) -> str:
        more = f" and {len(self.ranges) - 1} more" if len(self.ranges) > 1 else ""
        return f"{self.ranges[0]}{more}"


def token(identity: Identity, block: Block) -> str:
    """The name under which the target knows a block. Same rows, same token; other rows, other token."""
    topics = {each.partition.topic for each in block.ranges}
    named = [
        identity.pipeline,
        identity.lineage,
        identity.cluster_id,
        [[topic, topic_id] for topic, topic_id in identity.topic_ids if topic in topics],
        [[each.partition.topic, each.partition.number, each.first, each.end] for each in block.ranges],
        block.table,
        block.shard,
        block.generation,
    ]
    return hashlib.sha256(json.dumps(named, separators=(",", ":")).encode()).hexdigest()


def table_token(token: str, block: Block, table: str) -> str:
    """The name of a block's rows in one of several tables. `token`: of the block. Two tables never share one."""
    return token if table == block.table else hashlib.sha256(f"{token} {table}".encode()).hexdigest()


def shard_token(token: str, shard: int) -> str:
    """The name of the rows of a block, or of one of its tables, in one of several shards. Two shards never share one."""
    return hashlib.sha256(f"{token} shard {shard}".encode()).hexdigest()


class Kind(str, Enum):
    """Why a plan exists."""

    DELIVER = "deliver"
    """New offsets, which the target cannot hold yet."""
    RECONCILE = "reconcile"
    """Offsets that the target holds already, though the ledger does not know: look before writing."""
    FILL = "fill"
    """As reconcile, and an operator said that what is missing in between shall be written."""
    REPLAY = "replay"
    """Offsets below the position, for tables of a fan-out that were rolled back."""
    LETTERS = "letters"
    """Dead letters, below the position, that land now. No position moves."""
    SEEK = "seek"
    """No plan, but a marker: an operator's command removes rows, and has not moved the position yet (`operate.seek`)."""


@dataclass(frozen=True)
class Plan:
    """The blocks of one micro-batch. Durable in the ledger before the first byte is written."""

    batch: int
    blocks: tuple[Block, ...]
    fingerprint: str
    deadline: int
    """Milliseconds on the target's clock. An insert that begins later is refused by the target itself."""
    kind: Kind = Kind.DELIVER
    letters: str = ""
    """The folder of its dead letters, as the pipeline file named it when the plan was made."""
    late: tuple[int, ...] = ()
    """The numbers of blocks that were cut off, for they were not ready in time. Their offsets follow in a later plan, with dead letters of
    its own."""

    def ends(self) -> dict[Partition, int]:
        """Where each partition is once this plan has landed. Letters move none."""
        ends: dict[Partition, int] = {}
        if self.kind is Kind.LETTERS:
            return ends
        for block in self.blocks:
            for each in block.ranges:
                ends[each.partition] = max(each.end, ends.get(each.partition, 0))
        return ends

    def rearmed(self, deadline: int) -> Plan:
        return replace(self, deadline=deadline)

    def regenerated(self, used_up: frozenset[int]) -> Plan:
        """The same plan, with the next generation for the blocks (by index) whose token is used up."""
        blocks = tuple(
            replace(block, generation=block.generation + 1) if index in used_up else block
            for index, block in enumerate(self.blocks)
        )
        return replace(self, blocks=blocks)

    def to_json(self) -> str:
        return json.dumps(
            {
                "batch": self.batch,
                "fingerprint": self.fingerprint,
                "deadline": self.deadline,
                "kind": self.kind.value,
                "letters": self.letters,
                "blocks": [_block_to_dict(block) for block in self.blocks],
                **({"late": list(self.late)} if self.late else {}),
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        return Plan(
            batch=fields["batch"],
            blocks=tuple(_block_from_dict(each) for each in fields["blocks"]),
            fingerprint=fields["fingerprint"],
            deadline=fields["deadline"],
            kind=Kind(fields["kind"]),
            letters=fields.get("letters", ""),
            late=tuple(fields.get("late", ())),
        )


def _block_to_dict(block: Block) -> dict[str, Any]:
    return {
        "table": block.table,
        "shard": block.shard,
        "generation": block.generation,
        "number": block.number,
        "ranges": [[each.partition.topic, each.partition.number, each.first, each.end] for each in block.ranges],
    }


def _block_from_dict(fields: dict[str, Any]) -> Block:
    ranges = tuple(Range(Partition(topic, number), first, end) for topic, number, first, end in fields["ranges"])
    return Block(ranges, fields["table"], fields["shard"], fields["generation"], fields["number"])


_LONGEST, _TOKEN = 100, 16


def block_key(identity: Identity, block: Block, label: str) -> str:
    """Readable, and as unique as the block's token. `label` is what the target knows the topic by."""
    each = block.ranges[0]
    return (
        f"{label[:_LONGEST]}-{each.partition.number}-{each.first}-{each.end}-{token(identity, block)[:_TOKEN]}"
    )  # fmt: skip
