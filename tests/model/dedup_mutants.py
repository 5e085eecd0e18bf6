"""Bugs that were planted on purpose in deduplication: each must be found. See `mutants`."""

from __future__ import annotations

from .core import Patch
from .mutants import BLOCKS, DROPPED, LOST, TWICE, planted

DEDUP = "landonce.protocol.dedup"
OWN = "landonce.protocol.own_ledger"

KEY_TWICE = r"the key \w is in the store twice"
MISCOUNTED = r"has (read|accepted) \d+ (records|events), and counts"
OTHER_BYTES = r"other bytes are sent"
NO_BYTES = r"is accepted, and its bytes were removed"
IN_WINDOW = r"is in the window, and is refused as late"

RACE = "two pipelines with one scope"
BATCHES = "copies in a batch, two drivers"
BLOCKS_OF_ONE = "copies in two blocks of a batch"
EXPIRE = "an id expires, and the topic is read again"
SHARDS = "the number of shards changes"
CODE = "the code of the push driver changes"
CONTENT = "the target knows blocks by their content"
CLEANED = "two partitions are pushed and cleaned"
RESTORED = "the store is restored, its ledger with it"
UNASKED = "the store is restored, its ledger is elsewhere, and the target cannot be asked"

_COMPARED = "return judged == current and all(now.get(shard) == version for shard, version in seen.items())"
_AGAIN = "    if not may_commit(dict(added.seen), dict(enumerate(lists.versions)), added.terms, lists.terms):\n        return True\n"
_LATE = "    return timestamp_ms < horizon_ms"

_LOOK_AND_COMMIT = (
    planted(
        "look and commit are apart: no version is compared",
        RACE,
        KEY_TWICE,
        DEDUP,
        _COMPARED,
        "return judged == current",
    ),
    planted(
        "a commit does not raise the versions of its shards",
        RACE,
        KEY_TWICE,
        DEDUP,
        "version + (shard in touched)",
        "version",
    ),
    planted(
        "the horizon that a batch was judged by is not compared with that of the scope",
        EXPIRE,
        TWICE,
        DEDUP,
        _COMPARED,
        "return all(now.get(shard) == version for shard, version in seen.items())",
    ),
    planted(
        "the shards that a batch was split by are not compared with those of the scope",
        SHARDS,
        KEY_TWICE,
        DEDUP,
        _COMPARED,
        "return all(now.get(shard) == version for shard, version in seen.items())",
    ),
    planted(
        "shards change though somebody accepted meanwhile",
        SHARDS,
        KEY_TWICE + "|" + TWICE,
        DEDUP,
        "    if dict(seen) != dict(enumerate(lists.versions)):\n        return None\n",
        "",
    ),
    planted(
        "versions begin again with other shards",
        SHARDS,
        KEY_TWICE + "|" + TWICE,
        DEDUP,
        "version = max(lists.versions) + 1",
        "version = 0",
    ),
)

_ONE_COMMIT = (
    planted(
        "a rerun is judged by its keys, and not by the position",
        BATCHES,
        MISCOUNTED,
        OWN,
        "    last = seen.last\n    if last is not None and key(last.state) == key(new):\n",
        "    return Verdict.GO\n    last = seen.last\n    if last is not None and key(last.state) == key(new):\n",
    ),
    planted(
        "the position moves apart from the keys: it moves though the batch is to be compared again",
        RACE,
        MISCOUNTED,
        DEDUP,
        _AGAIN,
        _AGAIN.replace("return True", "return replace(lists, marks=marks)"),
    ),
    planted(
        "the position moves, and the keys do not count",
        RACE,
        TWICE,
        DEDUP,
        "runs=(lists.runs - added.merged) | added.runs",
        "runs=lists.runs - added.merged",
    ),
    planted(
        "the keys count, and the position does not move",
        BLOCKS_OF_ONE,
        MISCOUNTED + "|" + LOST,
        DEDUP,
        "        chunks=lists.chunks | added.chunks,\n        marks=marks,\n",
        "        chunks=lists.chunks | added.chunks,\n",
    ),
    planted(
        "the keys count, and the events are not kept",
        BLOCKS_OF_ONE,
        MISCOUNTED,
        DEDUP,
        "chunks=lists.chunks | added.chunks",
        "chunks=lists.chunks",
    ),
    planted(
        "bytes that were removed are listed",
        "bytes that no list names are removed",
        NO_BYTES,
        DEDUP,
        "return written_at > now_s - ORPHANED // 2",
        "return True",
    ),
)

_COPIES = (
    planted(
        "copies within one batch are kept",
        BLOCKS_OF_ONE,
        TWICE,
        DEDUP,
        "return Judgement.NEW if event.place == first else Judgement.COPY",
        "return Judgement.NEW",
    ),
    planted(
        "copies are looked for in each block alone",
        BLOCKS_OF_ONE,
        TWICE,
        DEDUP,
        "for block in blocks for event in block), key=lambda each: each[1:]):\n        first.setdefault(event.id, event.place)\n",
        "for block in blocks for event in block), key=lambda each: each[1:]):\n        first[event.id, event.place.partition] = event.place\n"
        "    first = {key: place for (key, _), place in first.items()} | first\n",
        Patch(
            DEDUP, "first[event.id]) for event in block)", "first[event.id, event.place.partition]) for event in block)"
        ),
    ),
    planted(
        "what is known is not asked for",
        "copies in several batches, runs are merged",
        KEY_TWICE,
        DEDUP,
        "_judged(event, known.get(event.id), first[event.id])",
        "_judged(event, None, first[event.id])",
    ),
    planted(
        "a record that is read again is a copy of itself",
        "a topic is read again",
        r"is counted as a copy of itself",
        DEDUP,
        "return Judgement.SEEN_AGAIN if event.place == known else Judgement.COPY",
        "return Judgement.COPY",
    ),
    planted(
        "a record that is read again is new",
        "a topic is read again",
        TWICE,
        DEDUP,
        "return Judgement.SEEN_AGAIN if event.place == known else Judgement.COPY",
        "return Judgement.NEW if event.place == known else Judgement.COPY",
    ),
)

_WINDOW = (
    planted(
        "ids expire, and the horizon does not move",
        EXPIRE,
        TWICE,
        DEDUP,
        "horizon_ms=max(horizon_ms, lists.terms.horizon_ms)",
        "horizon_ms=lists.terms.horizon_ms",
    ),
    planted(
        "ids expire a bucket too early",
        "ids expire",
        TWICE,
        DEDUP,
        "if (each + 1) * bucket_s + ttl_s <= now_s",
        "if each * bucket_s + ttl_s <= now_s",
    ),
    planted(
        "nothing is too late",
        EXPIRE,
        TWICE,
        DEDUP,
        _LATE,
        "    return False",
    ),
    planted(
        "the horizon is past what was dropped",
        "ids expire",
        IN_WINDOW,
        DEDUP,
        "*((each + 1) * bucket_s * 1000 for each in dropped)",
        "*((each + 1) * bucket_s * 1000 + ttl_s * 2000 for each in dropped)",
    ),
)

_PUSH = (
    planted(
        "a block is sent without being stored",
        CODE,
        OTHER_BYTES,
        DEDUP,
        "        return PushStep.FREEZE, made\n",
        "        return PushStep.SEND, made\n",
    ),
    planted(
        "a block is sent without being stored, to a target that knows it by its content",
        CONTENT,
        TWICE,
        DEDUP,
        "        return PushStep.FREEZE, made\n",
        "        return PushStep.SEND, made\n",
    ),
    planted(
        "a retry sends what its code makes, and not what is stored",
        CODE,
        OTHER_BYTES,
        DEDUP,
        "    return PushStep.SEND, stored\n",
        "    return PushStep.SEND, made\n",
    ),
    planted(
        "the token is not made of the ranges",
        CLEANED,
        OTHER_BYTES,
        BLOCKS,
        "        [[each.partition.topic, each.partition.number, each.first, each.end] for each in block.ranges],\n        block.table,",
        "        block.table,",
    ),
    planted(
        "the token is made of the content of the attempt: of its lineage and its owner",
        CODE,
        TWICE,
        "landonce.protocol.ledger",
        "return Identity(self.pipeline, self.lineage,",
        "return Identity(self.pipeline, self.lineage + self.owner,",
    ),
    planted(
        "a chunk is removed before it is sent",
        CLEANED,
        LOST,
        DEDUP,
        "return last < sent_up_to and accepted_at < before",
        "return accepted_at < before",
        Patch(DEDUP, "return first >= removed_up_to", "return True"),
        Patch(
            "landonce.protocol.source",
            "if extent.start > committed and not pending",
            "if extent.start > committed and False",
        ),
    ),
    planted(
        "a chunk is removed when its first event is sent",
        CLEANED,
        r"stopped without a reason: RetentionOverrun|" + LOST,
        DEDUP,
        "return last < sent_up_to and accepted_at < before",
        "return last <= sent_up_to and accepted_at < before",
    ),
    planted("a pending plan of the push driver is dropped", CODE, TWICE, *DROPPED),
)

_RESTORED = (
    planted(
        "a restored store is not noticed",
        RESTORED,
        TWICE,
        DEDUP,
        "return frozenset(partition for partition, end in held.items() if end > accepted.get(partition, 0))",
        "return frozenset()",
        Patch(
            "landonce.protocol.transactional",
            "        for partition, end in reply.ends:\n",
            "        for partition, end in ():\n",
        ),
    ),
    planted(
        "a restored store is not compared with the ledger of the target",
        UNASKED,
        TWICE,
        DEDUP,
        "        if end > max(accepted.get(partition, 0), firsts.get(partition, 0))\n",
        "        if end < 0\n",
    ),
)

MUTANTS = (*_LOOK_AND_COMMIT, *_ONE_COMMIT, *_COPIES, *_WINDOW, *_PUSH, *_RESTORED)
