"""What a query hears when there is nothing exact to do. Every message says what happened, what is safe and what goes on."""

from __future__ import annotations

from collections.abc import Iterable

from landonce import errors
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition

_UNTOUCHED = "Nothing was written, and the position did not move."


def same_source(state: LedgerState, cluster_id: str, topic_ids: Iterable[tuple[str, str]]) -> None:
    """Offsets mean something only in the cluster and the topics that the ledger was bound to."""
    if state.cluster_id and state.cluster_id != cluster_id:
        raise errors.ClusterChanged(
            f"the ledger belongs to Kafka cluster {state.cluster_id}, and the query reads from cluster {cluster_id}.",
            safe=f"{_UNTOUCHED} Offsets of one cluster mean nothing in another.",
            command="landonce state rebase {file}   (if the topics were migrated), or correct kafka.bootstrap.servers",
        )
    known = dict(state.topic_ids)
    for topic, topic_id in topic_ids:
        if known.get(topic, topic_id) != topic_id:
            raise errors.TopicRecreated(
                f"topic {topic!r} was deleted and made anew: the ledger knows id {known[topic]}, the broker has {topic_id}.",
                safe=f"{_UNTOUCHED} Offsets of the old topic mean nothing in the new one.",
                command="landonce state rebase {file}",
            )


def settleable(plan: Plan, table: str) -> None:
    """What is pending in one table cannot be settled by looking at another, nor can several blocks of one partition."""
    other = next((block.table for block in plan.blocks if block.table != table), None)
    if other is not None:
        raise errors.PlanChanged(
            f"a plan for {other} is pending, and the query now writes to {table}.",
            safe=_UNTOUCHED,
            command="start the query with the old sink once, so that the plan is settled, then change it",
        )
    partitions = [each.partition for block in plan.blocks for each in block.ranges]
    if len(set(partitions)) < len(partitions) or len(plan.blocks) < len(partitions):
        raise errors.PlanChanged(
            f"batch {plan.batch} is pending and was not made by a query, but by `landonce run`.",
            safe=_UNTOUCHED,
            command="landonce run {file} --once   (settles the plan), then start the query",
        )


def pushed(plan: Plan, block: Block, key: str) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        f"block {key} ({block}) of batch {plan.batch} was pushed and never settled, and its rows do not come again as they were: "
        "this batch does not hold all of them, or the query or pyarrow was changed. Whether it arrived is not known.",
        safe="It was not pushed again, and the position did not move. Nothing of that attempt can take effect any more.",
        command="start the query as it was at the ledger's position (`starting_offsets`), with batches at least as large as before; or "
        f"look for the block in the target, then: landonce state settle {{file}} --block {key} --landed   (or --absent)",
    )


def unheard_of(partition: Partition, first: int, at: int) -> errors.GapRefused:
    return errors.GapRefused(
        f"{partition}: the ledger knows nothing of it, and the query, which began at offset {first}, is at {at} already: what became "
        "of the records in between is not known. The ledger is another one than before, or was lost, or the query had none.",
        safe=_UNTOUCHED,
        command="name the ledger that this query had; if it had none, start it with a new checkpoint, with `startingOffsets` as "
        "they stand in the last file of the checkpoint's folder `offsets`; if it is lost, with a new checkpoint and 'earliest'",
    )


def taken_over() -> errors.Fenced:
    return errors.Fenced(
        "another start of this query took the pipeline over.",
        safe="This one changed nothing after that and stops. Nothing is lost: the newer one goes on.",
    )


def same_name(name: str) -> errors.QueryRefused:
    return query(
        f"two `exactly_once` of it keep their position under one name, {name!r}, so what the first delivers the second would drop",
        'exactly_once(…, name="…"), another one for each',
    )


def same_batch(batch: int) -> errors.QueryRefused:
    return query(
        f"batch {batch} is handed over a second time under one name. The position is past the whole batch since the first time, so what "
        "this call brings would be dropped",
        "hand all rows of a batch over at once (`unionByName`), or to two `exactly_once` with a name and a table each; what this call "
        "brought is delivered by a query with a name of its own",
        safe="What the first call brought has landed. Nothing of this one was written.",
    )


def went_wrong() -> errors.QueryRefused:
    return errors.QueryRefused(
        "an earlier batch of this start of the query ended with an error, and something caught it: going on would skip that batch.",
        safe=_UNTOUCHED,
        command="let errors of `exactly_once` end the query, and start it again",
    )


def query(why: str, command: str = "", safe: str = "Nothing was written.") -> errors.QueryRefused:
    """A query that is not taken."""
    return errors.QueryRefused(f"the query cannot be delivered exactly once: {why}.", safe=safe, command=command)
