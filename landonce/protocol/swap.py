"""What every ledger compares before it swaps, and what it refuses to swap at all. Pure.

A version names one state for ever: no change may keep its version, or an answer that was lost could never be settled
by looking.
"""

from __future__ import annotations

from itertools import pairwise

from landonce.protocol.ledger import LedgerState

Key = tuple[str, int, str, int, str]


def key(state: LedgerState) -> Key:
    """The compare of the compare-and-set. Owner and lineage are random, so a restored ledger cannot repeat a key."""
    return (state.pipeline, state.epoch, state.owner, state.version, state.lineage)


def check_change(pipeline: str, old: LedgerState, new: LedgerState) -> None:
    """Raises for a change that no caller can mean: a mistake in the program, never in the world."""
    if not pipeline == old.pipeline == new.pipeline:
        raise ValueError(f"this ledger keeps {pipeline!r}, not {old.pipeline!r} or {new.pipeline!r}")
    if new.version <= old.version:
        raise ValueError(f"version {new.version} does not follow version {old.version}")
    check_order(new)


def check_order(state: LedgerState) -> None:
    """A store gives positions back in order, so only a state in order comes back equal to itself."""
    partitions = [partition for partition, _ in state.positions]
    if any(left >= right for left, right in pairwise(partitions)):
        raise ValueError("positions are in order, each partition once")
