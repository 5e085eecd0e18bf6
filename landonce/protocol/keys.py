"""The name of a block that people and other systems see. Pure."""

from __future__ import annotations

from landonce.protocol.blocks import Block, Identity, token

_LONGEST, _TOKEN = 100, 16


def block_key(identity: Identity, block: Block, label: str) -> str:
    """Readable, and as unique as the block's token. `label` is what the target knows the topic by."""
    each = block.ranges[0]
    return (
        f"{label[:_LONGEST]}-{each.partition.number}-{each.first}-{each.end}-{token(identity, block)[:_TOKEN]}"
    )  # fmt: skip
