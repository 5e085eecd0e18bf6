"""Another number of shards: runs are split or handed over, in one transaction.

A shard is a range of ids by their first bits, so twice as many shards are halves of the old ones: each run is cut where its half begins. With
half as many shards, the runs stay as they are and belong to the shard that holds both. Drivers that compare meanwhile find other versions when
they commit, and compare again.
"""

from __future__ import annotations

from dataclasses import replace

from landonce.dedup.runs import decode, digest_of, encode, split
from landonce.dedup.store import Store
from landonce.errors import StoreDamaged
from landonce.protocol.dedup import ListedRun


def reshard(store: Store, shards: int) -> None:
    """Changes the number of shards. A crash leaves the old ones, and bytes that no list names.

    Others may commit, expire keys or change the shards meanwhile: then it looks again. A run is split once, so it catches up.
    """
    made: dict[tuple[str, int], list[ListedRun]] = {}
    kept: set[str] = set()
    while (scope := store.look()) is not None and scope.shards != shards:
        before = store.shards(range(scope.shards))
        seen = {number: each.version for number, each in before.items()}
        runs = [run for each in before.values() for run in each.runs]
        try:
            for run in runs:
                if (run.run, scope.shards) not in made:
                    made[run.run, scope.shards] = _resharded(store, run, scope.shards, shards)
        except StoreDamaged:
            if {number: each.version for number, each in store.shards(range(scope.shards)).items()} == seen:
                raise
            continue  # the run was merged or has expired, and its bytes are gone
        wanted = [new for run in runs for new in made[run.run, scope.shards]]
        if store.replace_shards(seen, shards, wanted):
            kept = {each.run for each in wanted}
            store.forget_runs(run for run in runs if run.run not in kept)
    store.forget_runs(
        new for (name, _), some in made.items() for new in some if new.run not in kept and new.run != name
    )


def _resharded(store: Store, run: ListedRun, before: int, after: int) -> list[ListedRun]:
    if after <= before:
        return [replace(run, shard=run.shard * after // before)]
    parts = split(decode(run, store.run_segments(run)), after)
    return [
        store.put_run(replace(run, shard=shard, rows=len(keys.hi), digest=digest_of(keys)), encode(keys))
        for shard, keys in parts.items()
    ]
