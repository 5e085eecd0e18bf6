"""What a deduplicating sink keeps when it writes: tokens, deadlines, whole blocks."""

from __future__ import annotations

import pickle
import time

import pyarrow as pa

from landonce.protocol.settle import Reply
from landonce.sinks.contract import COORDINATES, Guarantee, Insert, Level, wait_out
from landonce.testing.crashing import in_threads
from landonce.testing.sink_sites import (
    SCHEMA,
    SECRET,
    SINK_CASES,
    SinkSite,
    as_rows,
    held,
    insert,
    made,
    odd_rows,
    rows,
    send,
)

case = SINK_CASES.case


@case()
def the_guarantee_is_one_that_this_port_keeps(site: SinkSite) -> None:
    """A pipeline would start with a promise that nothing backs."""
    declared = site.sink().guarantee
    assert declared is Guarantee.DEDUPLICATING, f"a sink with send and probe cannot be {declared}"


@case()
def a_sink_travels_to_the_workers(site: SinkSite) -> None:
    """No Spark task could write. A sink is a description: what is open belongs to its writer and its target."""
    sink = made(site)
    try:
        copy = pickle.loads(pickle.dumps(sink))  # noqa: S301
    except Exception as error:
        raise AssertionError(f"the sink cannot be pickled: {error}") from error
    assert copy.identity == sink.identity == site.sink().identity, "a pending plan would belong to another table"
    send(copy, rows(0, 1), 1)
    assert held(site) == as_rows(rows(0, 1)), "what the workers wrote is not there"


@case(SECRET)
def no_secret_is_shown(site: SinkSite) -> None:
    """Passwords would stand in logs and in bug reports."""
    for said in (repr(site.sink()), str(site.sink())):
        assert site.secret not in said, "the sink shows its secret"


@case()
def a_table_is_made_once(site: SinkSite) -> None:
    """A second start would empty the table, or fail."""
    target = site.sink().target()
    assert not target.exists(), "there is a table before anybody made it"
    target.create(SCHEMA)
    assert target.exists(), "there is no table after it was made"
    send(site.sink(), rows(0), 1)
    target.create(SCHEMA)
    assert held(site) == as_rows(rows(0)), "making a table that is there changed it"


@case()
def the_schema_comes_back(site: SinkSite) -> None:
    """Records would be decoded to other columns than the table has."""
    seen = made(site).target().schema().by_name()
    assert {name: each.type for name, each in seen.items() if name not in COORDINATES} == {
        each.name: each.type for each in SCHEMA.fields
    }, "the table's columns are not the declared ones"
    assert not set(seen) & set(COORDINATES), "coordinates are landonce's own, and no record fills them"


@case()
def a_fit_table_is_not_refused(site: SinkSite) -> None:
    """No pipeline could start, or a look would change the table."""
    target = made(site).target()
    refusals = [finding.what for finding in target.check() if finding.level is Level.REFUSED]
    assert not refusals, f"a table that the sink made itself is refused: {refusals}"
    assert held(site) == [], "a check wrote something"


@case()
def what_is_acknowledged_is_there(site: SinkSite) -> None:
    """Records are lost, and nobody ever looks again: a first insert that is acknowledged is not probed."""
    sink, block = made(site), rows(*range(100))
    send(sink, block, 1)
    assert held(site) == as_rows(block), "an acknowledged block is not there as it was sent"


@case()
def values_come_back_as_they_were(site: SinkSite) -> None:
    """Rows would land once, and wrong."""
    sink, block = made(site), odd_rows()
    send(sink, block, 1)
    assert held(site) == as_rows(block), "a value was changed"


@case()
def the_same_token_lands_once(site: SinkSite) -> None:
    """A request that is repeated on its way would be delivered twice."""
    sink, block = made(site), rows(0, 1, 2)
    for attempt in range(3):
        reply = sink.writer().send(block, insert(sink, 1, attempt=attempt))
        assert reply is Reply.ACKNOWLEDGED, f"a resend was answered with {reply.value}"
    assert held(site) == as_rows(block), "a token landed twice"


@case()
def another_token_is_another_block(site: SinkSite) -> None:
    """Blocks would be dropped as copies of others that they are not."""
    sink = made(site)
    for number in range(4):
        send(sink, rows(number), number)
    assert held(site) == as_rows(rows(0, 1, 2, 3)), "a block was taken for another one"


@case()
def a_late_insert_is_refused(site: SinkSite) -> None:
    """A worker that wakes up after its block was settled by others would write it again."""
    sink = made(site)
    writer = sink.writer()
    late = Insert("e" * 64, sink.target().now() - 1_000, "late")
    assert writer.send(rows(0, 1), late) is Reply.LATE, "an insert after its deadline was not refused as late"
    assert held(site) == [], "an insert after its deadline was written"
    reply = writer.send(rows(0, 1), insert(sink, 14, attempt=1))
    assert reply is Reply.ACKNOWLEDGED, "after a late insert the block can never land"


@case()
def the_clock_counts_milliseconds(site: SinkSite) -> None:
    """Deadlines would be a thousand times too near or too far."""
    target = site.sink().target()
    made(site)
    began = target.now()
    time.sleep(1.0)
    passed = target.now() - began
    assert passed >= 900, f"the clock moved by {passed} in a second"
    then = time.monotonic()
    wait_out(target, target.now() + 300)
    assert time.monotonic() - then > 0.1, "the clock runs faster than milliseconds"


@case()
def chunks_are_one_block(site: SinkSite) -> None:
    """How Arrow happens to cut a table would decide what lands."""
    sink, block = made(site), rows(*range(10))
    pieces = pa.concat_tables([block.slice(0, 3), block.slice(3, 3), block.slice(6)])
    send(sink, pieces, 1)
    assert held(site) == as_rows(block), "only a part of the chunks landed"
    send(sink, block, 1)
    assert held(site) == as_rows(block), "the same block, cut otherwise, landed twice"


@case()
def a_block_of_several_partitions_lands_whole(site: SinkSite) -> None:
    """Small partitions share a block: all but one would be lost."""
    sink = made(site)
    parts = (rows(0, 1), rows(0, 1, partition=1), rows(5, topic="u"))
    send(sink, pa.concat_tables(parts), 1)
    assert held(site) == as_rows(*parts), "some partitions of a block are missing"


@case()
def blocks_land_side_by_side(site: SinkSite) -> None:
    """The workers of one batch write at the same time: one would undo what another wrote."""
    sink = made(site)
    in_threads(4, lambda name: send(sink, rows(int(name[-1]), partition=int(name[-1])), int(name[-1])))
    assert held(site) == as_rows(*(rows(each, partition=each) for each in range(4))), "blocks disturbed each other"


@case()
def two_sends_of_one_token_at_once_land_once(site: SinkSite) -> None:
    """A worker that was given up, and the one in its place, would both deliver."""
    sink = made(site)
    for race in range(3):
        block = rows(race)
        in_threads(4, lambda _, block=block, race=race: sink.writer().send(block, insert(sink, race)))  # type: ignore[misc]
    assert held(site) == as_rows(rows(0, 1, 2)), "two sends of one token both landed, or neither did"
