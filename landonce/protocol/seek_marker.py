"""The marker that is pending while an operator's command removes rows: what the command decided. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from landonce.errors import PlanPending
from landonce.protocol.blocks import Plan
from landonce.protocol.ranges import Partition, Range


def to_text(to: Mapping[Partition, int], removed: Iterable[Range]) -> str:
    positions = [[each.topic, each.number, at] for each, at in sorted(to.items())]
    ranges = [[each.partition.topic, each.partition.number, each.first, each.end] for each in removed]
    return json.dumps({"to": positions, "removed": ranges, "totals": [0, 0]})


def from_text(text: str) -> tuple[dict[Partition, int], tuple[Range, ...]]:
    document = json.loads(text)
    to = {Partition(topic, number): at for topic, number, at in document["to"]}
    ranges = (Range(Partition(topic, number), first, end) for topic, number, first, end in document["removed"])
    return to, tuple(ranges)


def interrupted(plan: Plan) -> PlanPending:
    """What a driver says that finds the marker."""
    to, _ = from_text(plan.fingerprint)
    where = ", ".join(f"{partition} to {at}" for partition, at in sorted(to.items()))
    return PlanPending(
        f"`landonce state seek` was interrupted while it removed rows ({where}). Until it is finished, the position is not true.",
        safe="Nothing was written.",
        command="landonce state seek {file} --resume",
    )
