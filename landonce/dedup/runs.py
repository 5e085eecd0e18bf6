"""Sorted runs of 128-bit ids: sorted, searched, merged and split with numpy, and stored as blobs.

An id is two unsigned 64-bit numbers, the high and the low half. Ids are hashes, so two ids rarely share a high half:
sorting and searching use the high halves, and repair what is equal. For each id a run keeps where and when the event
was first accepted, in an array of its own: a lookup reads 16 bytes per key, and those 20 for hits only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from landonce.errors import StoreDamaged
from landonce.protocol.dedup import ListedRun

Halves = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
FirstSeen = npt.NDArray[np.void]

FIRST_SEEN = np.dtype([("place", "<u8"), ("offset", "<i8"), ("at", "<u4")])
"""Where an event was first accepted: topic and partition as `place_of`, the offset, and when, in seconds."""
SEGMENT_KEYS = 131_072
"""The most keys of one blob."""
KEY_BYTES = 16 + FIRST_SEEN.itemsize

_HALF = np.dtype("<u8")


class Keys(NamedTuple):
    """Ids in ascending order, without copies, and where and when each was first accepted. The arrays may be mapped."""

    hi: Halves
    lo: Halves
    first_seen: FirstSeen

    def only(self, part: slice | Mask) -> Keys:
        return Keys(self.hi[part], self.lo[part], self.first_seen[part])


class Merged(NamedTuple):
    """The keys of several runs, and how many were in more than one: 0, unless there is a bug."""

    keys: Keys
    repeated: int


class Segment(NamedTuple):
    """A part of a run as the store keeps it. `ids` holds the high halves, then the low halves. All is little-endian."""

    ids: bytes
    first_seen: bytes


def place_of(label: str, partition: int) -> int:
    """A 64-bit hash of a topic's label and a partition."""
    text = f"{partition}/{label}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"landonce-place").digest(), "little")


def first_seen_of(place: npt.ArrayLike, offset: npt.ArrayLike, at_s: npt.ArrayLike) -> FirstSeen:
    """One row per offset. A place or a time may be one value for all of them."""
    rows = np.empty(np.shape(offset), FIRST_SEEN)
    rows["place"], rows["offset"], rows["at"] = place, offset, at_s
    return rows


def sort_ids(hi: Halves, lo: Halves, *tie_breakers: npt.NDArray[Any]) -> Positions:
    """The order that sorts ids. Equal ids are in the order of the tie-breakers, the most significant one first.

    With timestamp, topic, partition and offset as tie-breakers, the first of equal ids is the event to accept.
    """
    return _repair_ties(np.argsort(hi), hi, lo, *tie_breakers)


def _repair_ties(order: Positions, hi: Halves, lo: Halves, *tie_breakers: npt.NDArray[Any]) -> Positions:
    """Makes an order by high half one by id and tie-breakers: sorts keys that share their high half again."""
    ordered = hi.take(order)
    equal = ordered[1:] == ordered[:-1]
    if equal.any():
        tied = np.append(equal, False)
        tied[1:] |= equal
        among = order[tied]
        columns = (hi, lo, *tie_breakers)
        order[tied] = among[np.lexsort([each.take(among) for each in reversed(columns)])]
    return order


def first_of_each(hi: Halves, lo: Halves) -> Mask:
    """For sorted ids: which are not a copy of the id before them."""
    first = np.ones(len(hi), np.bool_)
    np.not_equal(hi[1:], hi[:-1], out=first[1:])
    first[1:] |= lo[1:] != lo[:-1]
    return first


def search(run_hi: Halves, run_lo: Halves, hi: Halves, lo: Halves) -> Positions:
    """The positions of ids in a run, -1 for those that it lacks. Ids in ascending order are found fastest."""
    positions = np.full(len(hi), -1, np.int64)
    if not len(run_hi):
        return positions
    at = np.searchsorted(run_hi, hi)
    np.minimum(at, len(run_hi) - 1, out=at)
    candidates = np.flatnonzero(run_hi.take(at) == hi)
    if len(candidates):
        below, wanted = at[candidates], lo[candidates]
        if (run_lo.take(below) != wanted).any():
            above = np.searchsorted(run_hi, hi[candidates], side="right")
            below = _bisect(run_lo, below, above, wanted)
        found = run_lo.take(below) == wanted
        positions[candidates[found]] = below[found]
    return positions


def _bisect(run_lo: Halves, first: Positions, end: Positions, wanted: Halves) -> Positions:
    """Where each low half is, or would be, from a first position to an end; the last position if it is above all."""
    below: Positions = first.copy()
    above: Positions = end - 1
    while (unsettled := np.flatnonzero(below < above)).size:
        middle = (below[unsettled] + above[unsettled]) // 2
        less = run_lo.take(middle) < wanted[unsettled]
        below[unsettled[less]] = middle[less] + 1
        above[unsettled[~less]] = middle[~less]
    return below


def look_up(runs: Iterable[Keys], hi: Halves, lo: Halves) -> tuple[Mask, FirstSeen]:
    """Which ids are in the runs, and for each of those, in order, where and when it was first accepted."""
    found = np.zeros(len(hi), np.bool_)
    first_seen = np.zeros(len(hi), FIRST_SEEN)
    for run in runs:
        positions = search(run.hi, run.lo, hi, lo)
        hits = np.flatnonzero(positions >= 0)
        if len(hits):
            found[hits] = True
            first_seen[hits] = run.first_seen.take(positions[hits])
    return found, first_seen[found]


def merge(runs: Sequence[Keys]) -> Merged:
    """All keys of these runs as one run. Of an id that is in several runs, the earliest acceptance is kept."""
    if not runs:
        return Merged(Keys(np.empty(0, _HALF), np.empty(0, _HALF), np.empty(0, FIRST_SEEN)), 0)
    hi, lo, first_seen = (np.concatenate(column) for column in zip(*runs, strict=True))
    # A stable sort takes runs that are sorted already for what they are, and only merges them.
    order = _repair_ties(np.argsort(hi, kind="stable"), hi, lo, first_seen["at"])
    keys = Keys(hi.take(order), lo.take(order), first_seen.take(order))
    first = first_of_each(keys.hi, keys.lo)
    repeated = len(first) - int(first.sum())
    return Merged(keys.only(first) if repeated else keys, repeated)


def shard_of(hi: Halves, shards: int) -> npt.NDArray[np.int64]:
    """The shard of each id: its top bits. The number of shards is a power of two."""
    bits = _bits(shards)
    return (hi >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(hi), np.int64)


def slices_of_shards(hi: Halves, shards: int) -> list[slice]:
    """For sorted ids: where each shard's ids are."""
    width = 64 - _bits(shards)
    starts = np.array([shard << width for shard in range(shards)], np.uint64)
    edges = [*np.searchsorted(hi, starts).tolist(), len(hi)]
    return [slice(first, end) for first, end in pairwise(edges)]


def split(keys: Keys, shards: int) -> dict[int, Keys]:
    """The keys of each shard that has any. When shards double, the run of a shard becomes one run for each of two."""
    parts = enumerate(slices_of_shards(keys.hi, shards))
    return {shard: keys.only(part) for shard, part in parts if part.start < part.stop}


def _bits(shards: int) -> int:
    if shards < 1 or shards & (shards - 1):
        raise ValueError(f"the number of shards is a power of two, not {shards}")
    return shards.bit_length() - 1


def encode(keys: Keys) -> list[Segment]:
    """A run as blobs of at most `SEGMENT_KEYS` keys."""
    parts = (slice(at, at + SEGMENT_KEYS) for at in range(0, len(keys.hi), SEGMENT_KEYS))
    return [
        Segment(b"".join(_bytes(half[part]) for half in keys[:2]), bytes(_bytes(keys.first_seen[part])))
        for part in parts
    ]


def digest_of(keys: Keys) -> str:
    """The digest of a run: 16 bytes of blake2b over all high halves, all low halves and all of `first_seen`, in hex."""
    digest = hashlib.blake2b(digest_size=16)
    for column in keys:
        digest.update(_bytes(column))
    return digest.hexdigest()


def decode(run: ListedRun, segments: Iterable[Segment]) -> Keys:
    """The run that was encoded. Raises `StoreDamaged` if a byte differs."""
    given = list(segments)
    halves = [np.frombuffer(each.ids, _HALF).reshape(2, -1) for each in given if len(each.ids) % 16 == 0]
    places = b"".join(each.first_seen for each in given)
    if sum(half.shape[1] for half in halves) == run.rows and len(places) == run.rows * FIRST_SEEN.itemsize:
        hi, lo = np.concatenate(halves, axis=1) if halves else np.empty((2, 0), _HALF)
        keys = Keys(hi, lo, np.frombuffer(places, FIRST_SEEN))
        if digest_of(keys) == run.digest:
            return keys
    raise damaged(run)


def _bytes(column: npt.NDArray[Any]) -> memoryview:
    """The bytes of a column, little-endian, copied only if it is not contiguous or the machine is big-endian."""
    wire = FIRST_SEEN if column.dtype.names else _HALF
    return np.ascontiguousarray(column, wire).view(np.uint8).data


def damaged(run: ListedRun) -> StoreDamaged:
    return StoreDamaged(
        f"The run {run.run} of shard {run.shard} in the deduplication store does not match its digest.",
        safe="No event was accepted or refused by it.",
        command="restore the store from a backup",
    )
