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
                f"topic {topic!r} was deleted and created again: the ledger knows id {known[topic]}, the broker has "
                f"{topic_id}.",
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
        f"block {key} ({block}) of batch {plan.batch} was pushed and no answer came, so nobody knows whether it "
        "arrived. Its rows do not come again as they were: this batch does not contain all of them, or the query, the "
        "columns or pyarrow were changed.",
        safe="It was not pushed again, and the position did not move. That attempt can no longer take effect.",
        command="bring its rows again as they were, from the ledger's position on and at least as many (a query: `starting_offsets`; a push: "
        f"`position`); or look for the block in the target, then: landonce state settle {{file}} --block {key} --landed   (or --absent)",
    )


def unheard_of(partition: Partition, first: int, at: int) -> errors.GapRefused:
    return errors.GapRefused(
        f"{partition}: the ledger has no position for it, but the query began at offset {first} and is already at "
        f"{at}. Whether the records in between were delivered is not known. The query ran with another ledger or with "
        "none, or the ledger was lost.",
        safe=_UNTOUCHED,
        command="name the ledger that this query used. If it used none: start it with a new checkpoint, and with the "
        "offsets of the last file in the old checkpoint's folder `offsets` as `startingOffsets`. If the "
        "ledger is lost: start with a new checkpoint and 'earliest'",
    )


def taken_over() -> errors.Fenced:
    return errors.Fenced(
        "another start of this query took over the pipeline.",
        safe="This one stops and changes nothing more. Nothing is lost: the newer one continues.",
    )


def same_name(name: str) -> errors.QueryRefused:
    return query(
        f"two `exactly_once` objects in it have the same name, {name!r}: the second would drop what the first delivers",
        'give each its own name: exactly_once(…, name="…")',
    )


def same_batch(batch: int) -> errors.QueryRefused:
    return query(
        f"batch {batch} is passed a second time under the same name. The first call moved the position past the whole "
        "batch, so the rows of this call would be dropped",
        "pass all rows of a batch in one call (`unionByName`), or use two `exactly_once` objects, each with its own "
        "name and table. To deliver the rows of this call, use a query with another name",
        safe="The rows of the first call have landed. Nothing of this call was written.",
    )


def went_wrong() -> errors.QueryRefused:
    return errors.QueryRefused(
        "an earlier batch ended with an error, and the query caught it. To continue would skip that batch.",
        safe=_UNTOUCHED,
        command="let errors of `exactly_once` end the query, and start it again",
    )


def query(why: str, command: str = "", safe: str = "Nothing was written.") -> errors.QueryRefused:
    """A query that is not taken."""
    return errors.QueryRefused(f"the query cannot be delivered exactly once: {why}.", safe=safe, command=command)


def push(why: str, command: str = "", safe: str = _UNTOUCHED) -> errors.PushRefused:
    """Rows of a push that are not taken."""
    return errors.PushRefused(f"the push cannot be delivered exactly once: {why}.", safe=safe, command=command)
