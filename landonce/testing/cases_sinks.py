"""What a deduplicating sink keeps: tokens, deadlines, whole blocks; and when there is doubt: what it finds, how it reports a target that does
not answer, and crashes at every line."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa

from landonce.errors import Transient
from landonce.protocol.blocks import Block, Kind
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import Fate
from landonce.protocol.settle import Mode, Reply
from landonce.sinks.contract import DeduplicatingSink, Guarantee, Insert, wait_out
from landonce.testing.case import SECRET, Suite, refused
from landonce.testing.crashing import crashed, in_threads, lines_of, moments, require_kills
from landonce.testing.sink_sites import (
    ATOMIC,
    CLEARS,
    COPIES,
    LEAVES,
    NO_COPIES,
    PROBED,
    REMOVED,
    REMOVES,
    SCHEMA,
    SinkSite,
    as_rows,
    check_columns,
    check_not_refused,
    copied,
    held,
    in_order,
    insert,
    left,
    made,
    neighbours,
    odd_rows,
    rows,
    send,
    span,
    token,
)

SINK_CASES: Suite[SinkSite] = Suite("sink")
case = SINK_CASES.case
_DEADLINE = 3_000


@case()
def the_guarantee_is_one_that_this_port_keeps(site: SinkSite) -> None:
    """A pipeline would start with a promise that nothing backs."""
    declared = site.sink().guarantee
    assert declared is Guarantee.DEDUPLICATING, f"a sink with send and probe cannot be {declared}"


@case()
def a_sink_travels_to_the_workers(site: SinkSite) -> None:
    """No Spark task could write. A sink is a description: what is open belongs to its writer and its target."""
    sink = made(site)
    copy = copied(sink)
    assert copy.identity == sink.identity == site.sink().identity, "a pending plan would belong to another table"
    send(copy, rows(0, 1), 1)
    assert held(site) == as_rows(rows(0, 1)), "what the workers wrote is not there"


@case(SECRET)
def no_secret_is_shown(site: SinkSite) -> None:
    """Passwords would appear in logs and in bug reports."""
    for said in (repr(site.sink()), str(site.sink())):
        assert site.secret not in said, "the sink shows its secret"


@case()
def a_table_is_made_once(site: SinkSite) -> None:
    """A second start would empty the table, or fail."""
    target = site.sink().target()
    assert not target.exists(), "there is a table before it was created"
    target.create(SCHEMA)
    assert target.exists(), "there is no table after it was created"
    send(site.sink(), rows(0), 1)
    target.create(SCHEMA)
    assert held(site) == as_rows(rows(0)), "creating a table that exists changed it"


@case()
def the_schema_comes_back(site: SinkSite) -> None:
    """Records would be decoded to other columns than the table has."""
    check_columns(made(site).target().schema())


@case()
def a_fit_table_is_not_refused(site: SinkSite) -> None:
    """No pipeline could start, or a check would change the table."""
    target = made(site).target()
    check_not_refused(target.check())
    assert held(site) == [], "a check wrote something"


@case()
def what_is_acknowledged_is_there(site: SinkSite) -> None:
    """Records would be lost unnoticed: a first insert that is acknowledged is not probed."""
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
    """Blocks would be dropped as copies of other blocks."""
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
    """A worker that was given up, and its replacement, would both deliver."""
    sink = made(site)
    for race in range(3):
        block = rows(race)
        in_threads(4, lambda _, block=block, race=race: sink.writer().send(block, insert(sink, race)))  # type: ignore[misc]
    assert held(site) == as_rows(rows(0, 1, 2)), "two sends of one token both landed, or neither did"


# Doubt.


@case(PROBED)
def an_empty_table_holds_nothing(site: SinkSite) -> None:
    """A block that never landed would be taken for delivered."""
    sink = made(site)
    probe = sink.writer().probe(rows(0, 1, 2), [span(0, 3)])
    assert (probe.presence.expected, probe.presence.missing) == (3, 3), "rows that nobody wrote are there"
    assert probe.missing.to_pylist() == [True] * 3, "rows that nobody wrote are there"
    assert sink.writer().count([span(0, 3)]) == 0, "an empty table counts rows"
    assert sink.target().look([(Partition("t", 0), 0)]).ends == (), "an empty table has an end"


@case(PROBED)
def a_probe_finds_what_is_there(site: SinkSite) -> None:
    """After every crash the block would be sent again."""
    sink, block = made(site), rows(0, 1, 2)
    send(sink, block, 1)
    presence = sink.writer().probe(block, [span(0, 3)]).presence
    assert presence.complete, "rows that are there are reported missing"
    assert not presence.torn, "a whole block is reported torn"
    assert not presence.duplicated, "single rows are reported as copies"


@case(PROBED)
def a_probe_names_exactly_the_missing_rows(site: SinkSite) -> None:
    """What is there would be sent again, and what is missing would not."""
    sink = made(site)
    send(sink, rows(0, 3, 4), 1)
    probe = sink.writer().probe(rows(0, 1, 2, 3, 4, 5), [span(0, 6)])
    assert probe.missing.to_pylist() == [False, True, True, False, False, True], "the wrong rows are missing"
    assert (probe.presence.expected, probe.presence.missing) == (6, 3), "the number of missing rows is wrong"


@case(PROBED)
def a_probe_tells_partitions_and_topics_apart(site: SinkSite) -> None:
    """Offsets are counted from the beginning in every partition: another one's row would be taken for this one's."""
    sink = made(site)
    send(sink, rows(0, 1), 1)
    for topic, partition in (("t", 1), ("u", 0)):
        wanted = rows(0, 1, topic=topic, partition=partition)
        probe = sink.writer().probe(wanted, [span(0, 2, topic, partition)])
        assert probe.presence.missing == 2, f"rows of t-0 were taken for rows of {topic}-{partition}"


@case(PROBED)
def gaps_between_offsets_are_no_loss(site: SinkSite) -> None:
    """Compaction and aborted transactions leave gaps: a complete block would be called torn, and halt the pipeline."""
    sink, block = made(site), rows(0, 7, 9)
    send(sink, block, 1)
    presence = sink.writer().probe(block, [span(0, 20)]).presence
    assert presence.complete, "offsets that no record has are counted as missing"
    assert not presence.torn, "offsets that no record has make the block torn"


@case(PROBED, ATOMIC)
def a_part_of_a_block_is_torn(site: SinkSite) -> None:
    """Somebody deleted rows, and landonce would restore them by itself, or call the block delivered."""
    sink = made(site)
    send(sink, rows(0, 1), 1)
    presence = sink.writer().probe(rows(0, 1, 2, 3), [span(0, 4)]).presence
    assert presence.torn, "a block of which a part is there is not reported torn"


@case(PROBED, COPIES)
def copies_are_counted(site: SinkSite) -> None:
    """Rows that something else wrote beside ours would never be noticed."""
    sink, block = made(site), rows(0, 1, 2)
    send(sink, block, 1)
    send(sink, block.slice(0, 2), 2)
    presence = sink.writer().probe(block, [span(0, 3)]).presence
    assert presence.duplicated == 2, f"two copies are there, and {presence.duplicated} are reported"


@case(PROBED, NO_COPIES)
def a_row_that_is_sent_twice_becomes_one(site: SinkSite) -> None:
    """`resend_harmless` lets landonce fill a torn block: every row that is sent again would be delivered twice."""
    sink, block = made(site), rows(0, 1, 2)
    send(sink, block, 1)
    send(sink, block, 2)
    presence = sink.writer().probe(block, [span(0, 3)]).presence
    assert presence.complete, "a resend took rows away"
    assert not presence.duplicated, "a row that was sent twice is two rows"
    assert held(site) == as_rows(block), "a reader sees a row twice that was sent twice"


@case(PROBED)
def a_count_is_of_the_ranges(site: SinkSite) -> None:
    """If Kafka has lost a pending block, its rows prove that it landed: rows of a neighbour must not."""
    sink = made(site)
    send(sink, pa.concat_tables([rows(*range(6)), rows(0, 1, partition=1)]), 1)
    writer = sink.writer()
    assert writer.count([span(2, 4)]) == 2, "a range holds its first offset, and not its end"
    assert writer.count([span(6, 9)]) == 0, "rows below the range were counted"
    assert writer.count([span(4, 9), span(1, 5, partition=1)]) == 3, "several ranges are not counted together"


@case(PROBED)
def the_driver_counts_what_it_asks_for(site: SinkSite) -> None:
    """Two drivers with different ledgers would write every record twice, and neither would notice."""
    sink = made(site)
    send(sink, pa.concat_tables([rows(3, 8), rows(5, partition=1)]), 1)
    target, no_end = sink.target(), 2**63 - 1
    assert target.count([span(3, 9), span(0, 6, partition=1)]) == 3, "rows were not counted, or not all of them"
    assert target.count([span(8, no_end)]) == 1, "a range holds its first offset, and what is above it"
    assert target.count([span(9, no_end), span(0, 5, partition=1)]) == 0, "rows outside of the ranges were counted"


@case(PROBED)
def a_look_finds_the_ends(site: SinkSite) -> None:
    """A ledger that was lost or restored would deliver again what the table holds."""
    sink = made(site)
    send(sink, pa.concat_tables([rows(3, 8), rows(5, partition=1)]), 1)
    seen = sink.target().look([(Partition("t", 0), 0), (Partition("t", 1), 5)])
    assert dict(seen.ends) == {Partition("t", 0): 9, Partition("t", 1): 6}, "an end is one past the highest offset"


@case(PROBED)
def a_look_says_nothing_below_the_floor(site: SinkSite) -> None:
    """Every start would find the table ahead of its ledger."""
    sink = made(site)
    send(sink, pa.concat_tables([rows(3, 8), rows(5, partition=1)]), 1)
    seen = sink.target().look([(Partition("t", 0), 9), (Partition("u", 0), 0)])
    assert seen.ends == (), "a partition is named that was not asked for, or that holds nothing from the floor on"


@case(PROBED, CLEARS)
def exactly_the_rows_of_the_ranges_are_removed(site: SinkSite) -> None:
    """`state seek --remove-rows` would deliver records beside rows that stayed, or lose rows that nobody delivers again."""
    sink, blocks = made(site), neighbours()
    for number, block in enumerate(blocks):
        send(sink, block, number)
    target = sink.target()
    for _ in range(2):
        target.remove(REMOVED)
        assert held(site) == left(*blocks), "rows of the ranges are still there, or others are gone"
        assert target.count(REMOVED) == 0, "rows that were removed are counted"
    target.close()
    send(sink, rows(*range(2, 5)), 9)
    assert held(site) == in_order([*left(*blocks), *as_rows(rows(*range(2, 5)))]), "what was removed did not land again"


@case(PROBED, REMOVES)
def a_used_up_token_is_replaced(site: SinkSite) -> None:
    """A target that remembers a token and has lost its rows would never take them again."""
    sink, block = made(site), rows(0, 1, 2)
    send(sink, block, 1)
    site.remove(as_rows(block))
    assert held(site) == [], "the site's `remove` removes nothing"
    assert sink.writer().probe(block, [span(0, 3)]).presence.missing == 3, "rows that are gone are reported present"
    send(sink, block, 2)
    assert held(site) == as_rows(block), "the rows cannot land under the next token"


@case(LEAVES)
def a_silent_target_acknowledges_nothing(site: SinkSite) -> None:
    """The position would move past records that never landed."""
    sink = made(site)
    writer = sink.writer()
    first = insert(sink, 1)
    with site.unreachable():
        try:
            reply: Reply | None = writer.send(rows(0, 1), first)
        except Transient:
            reply = None
        assert reply is not Reply.ACKNOWLEDGED, "an insert was acknowledged by a target that does not answer"
        assert reply is not Reply.LATE, "an insert without an answer is not late: it may still land"
    assert held(site) in ([], as_rows(rows(0, 1)))


@case(PROBED, LEAVES)
def a_silent_target_is_not_an_empty_one(site: SinkSite) -> None:
    """Every block whose probe failed would be delivered again."""
    sink, block = made(site), rows(0, 1)
    send(sink, block, 1)
    writer = sink.writer()
    with site.unreachable():
        refused(Transient, lambda: writer.probe(block, [span(0, 2)]), "a probe without an answer says what is missing")
        refused(Transient, lambda: writer.count([span(0, 2)]), "a count without an answer says how many there are")
    assert writer.probe(block, [span(0, 2)]).presence.complete, "a probe after the silence finds nothing"


@case()
def a_kill_harms_nothing_that_landed(site: SinkSite) -> None:
    """Every recovery begins with a kill, which would remove delivered rows."""
    sink = made(site)
    send(sink, rows(0, 1), 1)
    sink.target().kill()
    assert held(site) == as_rows(rows(0, 1)), "a kill took rows away that had landed"
    send(sink, rows(2), 2)
    assert held(site) == as_rows(rows(0, 1, 2)), "nothing lands any more after a kill"


@case()
def nothing_lands_after_deadline_and_kill(site: SinkSite) -> None:
    """Recovery probes, sends what is missing, and then the first insert arrives after all: delivered twice."""
    sink = made(site)
    target = sink.target()
    deadline = target.now() + 3_000
    seen: list[object] = []

    def work(name: str) -> None:
        number = int(name[-1])
        if number == 0:
            wait_out(target, deadline)
            target.kill()
            seen.extend(held(site))
        else:
            mine = Insert(token(number), deadline, f"attempt{number}")
            sink.writer().send(rows(number * 10, number * 10 + 1, partition=number), mine)

    in_threads(4, work)
    assert held(site) == seen, "rows landed after the deadline had passed and everything was killed"


@case(PROBED, ATOMIC)
def a_send_that_is_killed_at_any_line_is_whole_or_absent(site: SinkSite) -> None:
    """A crash would leave a part of a block, and the pipeline would halt until a person decides."""
    sink = made(site)
    blocks = _crashed(site, sink)
    for moment, block in blocks.items():
        there = [row for row in held(site) if row.partition == moment]
        assert there in ([], as_rows(block)), f"a part of a block is there (line {moment})"


@case(PROBED)
def after_a_crash_at_any_line_a_block_lands_once(site: SinkSite) -> None:
    """The whole promise. Recovery is landonce's own: deadline, kill, probe, the same token, and then the next one."""
    sink = made(site)
    blocks = _crashed(site, sink)
    for moment, block in blocks.items():
        fates = (_recovered(sink, block, int(moment), generation) for generation in (0, 1, 2))
        assert Fate.LANDED in fates, f"the block cannot land any more (line {moment})"
    assert held(site) == as_rows(*blocks.values()), "after recovery, rows are missing or there twice"


def _crashed(site: SinkSite, sink: DeduplicatingSink) -> dict[int, pa.Table]:
    """A block for each moment, whose worker was killed there. The deadlines have passed, and the target has killed what still ran."""
    target = sink.target()
    lines = lines_of(sink.writer())
    tried = rows(0, 1, 2, 3, partition=1_000_000)
    found = moments(lines, _sending(sink, tried, 1_000_000, target.now() + 60_000), site.moments)
    blocks: dict[int, pa.Table] = {1_000_000: tried}
    blocks |= {moment: rows(0, 1, 2, 3, partition=int(moment)) for moment in found}
    deaths = [
        crashed(lines, _sending(sink, blocks[moment], int(moment), target.now() + _DEADLINE), moment)
        for moment in found
    ]
    require_kills(deaths)
    wait_out(target, target.now() + _DEADLINE)
    target.kill()
    return blocks


def _sending(sink: DeduplicatingSink, block: pa.Table, number: int, deadline: int) -> Callable[[], object]:
    return lambda: sink.writer().send(block, Insert(token(number), deadline, f"attempt{number}"))


def _recovered(sink: DeduplicatingSink, block: pa.Table, number: int, generation: int) -> Fate | None:
    """The fate of the block after a worker of the next driver recovered it."""
    from landonce.sinks.deduplicating import InsertTask, land

    task = InsertTask(
        index=0,
        batch=1,
        plan="plan",
        block=Block((span(0, 4, partition=number),), "events", generation=generation),
        token=token(number + generation * 10_000_000),
        deadline=sink.target().now() + 60_000,
        mode=Mode.RESOLVE,
        kind=Kind.DELIVER,
    )
    return land(sink.writer(), task, block)[0].fate
