"""What a wrapped sink keeps: what it declares is true, also where it crashes or its target falls silent, at any line and between the
portions of a large block."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from landonce.errors import LandonceError, NotPushed, TargetRefused
from landonce.protocol.block_rows import Mark
from landonce.protocol.receipt import Fate
from landonce.sinks.wrapped.sink import WrappedSink
from landonce.testing.case import refused
from landonce.testing.crashing import (
    SOME_MOMENTS,
    Lines,
    Moment,
    crashed,
    in_threads,
    lines_of,
    moments,
    repeats,
    require_kills,
    struck,
)
from landonce.testing.sink_sites import Row, odd_rows, rows
from landonce.testing.wrapped_sites import (
    IDEMPOTENT,
    LEAVES,
    PROBED,
    SECRET,
    SETTLES,
    WRAPPED_CASES,
    Driven,
    WrappedSite,
    block,
    expected,
    four,
    held,
    probe,
    push,
)

__all__ = ["WRAPPED_CASES"]

case = WRAPPED_CASES.case
_NO_WORD = "what was declared is not what the sink does"


@case()
def a_wrapped_sink_travels_to_the_workers(site: WrappedSite) -> None:
    """No Spark task could push. Connections, locks and files are made in `open`, not before."""
    pickling: Any = import_module("pyspark.cloudpickle")
    sink = site.sink()
    try:
        copy = pickling.loads(pickling.dumps(sink))
    except Exception as error:
        raise AssertionError(f"the sink cannot be pickled: {error}") from error
    assert (copy.identity, copy.idempotent, copy.can_probe) == (sink.identity, sink.idempotent, sink.can_probe)
    with copy.opened() as delivery:
        delivery.push(block(rows(0, 1), 0, 2))
    assert held(site) == expected(rows(0, 1)), "what the workers pushed is not there"


@case(SECRET)
def no_secret_is_shown(site: WrappedSite) -> None:
    """Passwords would stand in logs and in bug reports."""
    for said in (repr(site.sink()), str(site.sink()), site.sink().identity):
        assert site.secret not in said, "the sink shows its secret"


@case()
def what_was_pushed_is_there(site: WrappedSite) -> None:
    """Records are lost: a push that returns is never looked at again."""
    table = rows(*range(100))
    with site.sink().opened() as delivery:
        delivery.push(block(table, 0, 100))
        before = held(site)
    assert held(site) == expected(table), "a block is not there as it was pushed"
    assert before == expected(table), "a block is there only once the sink is closed: a crash before that would lose it"


@case()
def a_push_gives_nothing_back(site: WrappedSite) -> None:
    """The first block halts the pipeline: a response may be a refusal, so what `push` gives back is never taken for a yes."""
    with site.sink().opened() as delivery:
        said: object = delivery.push(block(rows(0, 1), 0, 2))  # type: ignore[func-returns-value]
    assert said is None, f"`push` returned {said!r}: it returns nothing once all has landed, and raises otherwise"


@case()
def values_come_back_as_they_were(site: WrappedSite) -> None:
    """Rows would land once, and wrong."""
    table = odd_rows()
    push(site, block(table, 2**62, 2**62 + table.num_rows))
    assert held(site) == expected(table), "a value was changed"


@case()
def blocks_of_a_partition_are_kept_apart(site: WrappedSite) -> None:
    """The next block would take the place of the one before."""
    push(site, block(rows(0, 1), 0, 2), block(rows(2, 3), 2, 4), block(rows(4), 4, 5))
    assert held(site) == expected(rows(0, 1, 2, 3, 4)), "a block replaced another one"


@case()
def partitions_and_topics_are_kept_apart(site: WrappedSite) -> None:
    """Offsets are counted from the beginning in every partition: blocks of the same offsets would be taken for one."""
    tables = rows(0, 1), rows(0, 1, partition=1), rows(0, 1, topic="u")
    push(site, *(block(each, 0, 2) for each in tables))
    assert held(site) == expected(*tables), "a block of another partition or topic was taken for this one"


@case()
def long_names_are_told_apart(site: WrappedSite) -> None:
    """A topic's name has up to 249 characters, a key up to 190: where they are cut, a block is taken for another one, and lost."""
    one, another, absent = (f"Orders_v1.eu-west@2.{'x' * 179}{end}" for end in "abc")
    tables = rows(0, 1, topic=one), rows(2, 3, topic=one), rows(0, 1, topic=another)
    blocks = [block(each, first, first + 2) for each, first in zip(tables, (0, 2, 0), strict=True)]
    push(site, *blocks)
    assert held(site) == expected(*tables), (
        "a block with a long name was taken for another one, or its name was changed"
    )
    if site.sink().can_probe:
        assert all(probe(site, each) for each in blocks), "a block with a long name is not found"
        assert not probe(site, block(rows(0, 1, topic=absent), 0, 2)), "the probe takes a long name for another one"


@case()
def offsets_may_have_gaps(site: WrappedSite) -> None:
    """Compaction and aborted transactions leave gaps: such a block would never be complete."""
    table = rows(0, 7, 9)
    push(site, block(table, 0, 20))
    assert held(site) == expected(table), "a block with gaps is not there"
    if site.sink().can_probe:
        assert probe(site, block(table, 0, 20)), "a block with gaps is not found"


@case()
def partitions_are_pushed_side_by_side(site: WrappedSite) -> None:
    """The workers of one batch push at the same time: one would undo what another pushed."""
    in_threads(4, lambda name: push(site, block(four(int(name[-1])), 0, 4)))
    assert held(site) == expected(*(four(each) for each in range(4))), "blocks disturbed each other"


@case(IDEMPOTENT)
def the_same_block_again_changes_nothing(site: WrappedSite) -> None:
    """The sink says that a push may be repeated, and every retry delivers twice."""
    for attempt in (1, 2, 3):
        push(site, block(rows(0, 1), 0, 2, attempt=attempt))
    assert held(site) == expected(rows(0, 1)), f"{_NO_WORD}: a block that was pushed again is there twice"


@case(IDEMPOTENT)
def a_late_push_changes_nothing(site: WrappedSite) -> None:
    """A driver that was replaced and wakes up pushes its old block once more, after newer ones."""
    first, second = block(rows(0, 1), 0, 2), block(rows(2, 3), 2, 4)
    push(site, first, second, first)
    assert held(site) == expected(rows(0, 1, 2, 3)), f"{_NO_WORD}: an older block that came again changed the target"


@case(IDEMPOTENT)
def two_pushes_of_one_block_at_once_are_one(site: WrappedSite) -> None:
    """A task that Spark runs twice pushes twice at the same time."""
    for partition in range(3):
        each = block(four(partition), 0, 4)
        in_threads(4, lambda _, each=each: push(site, each))  # type: ignore[misc]
    assert held(site) == expected(*(four(each) for each in range(3))), f"{_NO_WORD}: two pushes at once are two"


@case(PROBED)
def a_probe_finds_what_is_there(site: WrappedSite) -> None:
    """A block that arrived would be pushed again."""
    push(site, block(rows(0, 1), 0, 2))
    assert probe(site, block(rows(0, 1), 0, 2)), "the probe does not find a block that is there"


@case(PROBED)
def a_probe_does_not_find_what_is_absent(site: WrappedSite) -> None:
    """A block that never arrived would count as delivered."""
    assert not probe(site, block(rows(0, 1), 0, 2)), "the probe finds a block in an empty target"
    push(site, block(rows(2, 3), 2, 4))
    assert not probe(site, block(rows(0, 1), 0, 2)), "the probe takes a later block for an earlier one"
    assert not probe(site, block(rows(4, 5), 4, 6)), "the probe takes an earlier block for a later one"


@case(PROBED)
def a_probe_tells_partitions_and_topics_apart(site: WrappedSite) -> None:
    """Another partition's block would stand for this one, which is lost."""
    push(site, block(rows(0, 1), 0, 2))
    for table in (rows(0, 1, partition=1), rows(0, 1, topic="u")):
        assert not probe(site, block(table, 0, 2)), "the probe takes another partition's or topic's block for this one"


@case(PROBED)
def a_probe_says_yes_or_no(site: WrappedSite) -> None:
    """Anything else halts the pipeline: what forgot its `return` would pass for a no, and deliver twice."""
    push(site, block(rows(0, 1), 0, 2))
    for asked in (block(rows(0, 1), 0, 2), block(rows(2, 3), 2, 4)):
        with site.sink().opened() as delivery:
            assert delivery.probe is not None
            said: object = delivery.probe(asked)
        assert isinstance(said, bool | np.bool_), (
            f"`probe` returned {said!r}: True or False, or raise what is in the way"
        )


@case(PROBED)
def a_probe_changes_nothing(site: WrappedSite) -> None:
    """A look would deliver, or take away."""
    push(site, block(rows(0, 1), 0, 2))
    for asked in (block(rows(0, 1), 0, 2), block(rows(2, 3), 2, 4)):
        probe(site, asked)
    assert held(site) == expected(rows(0, 1)), "a probe changed the target"


@case(LEAVES)
def a_silent_target_takes_nothing(site: WrappedSite) -> None:
    """The position would move past records that never arrived."""
    with site.unreachable():
        refused(
            Exception, lambda: push(site, block(rows(0, 1), 0, 2)), "a push to a target that does not answer returned"
        )


@case(LEAVES)
def not_pushed_means_that_nothing_arrived(site: WrappedSite) -> None:
    """`NotPushed` and `TargetRefused` let landonce push again at once: whatever had arrived is there twice."""
    with site.unreachable():
        certain = _certain(site)
    before = held(site)
    assert not (certain and before), "the sink was certain that nothing arrived, and something did"
    push(site, block(rows(2, 3), 2, 4))
    if certain:
        push(site, block(rows(0, 1), 0, 2))
        assert held(site) == expected(rows(0, 1, 2, 3)), "what was certainly not pushed arrived after all"


def _certain(site: WrappedSite) -> bool:
    try:
        push(site, block(rows(0, 1), 0, 2))
    except (NotPushed, TargetRefused):
        return True
    except Exception:
        return False
    return False


@case(PROBED, LEAVES)
def a_silent_target_is_not_an_empty_one(site: WrappedSite) -> None:
    """A probe that fails says nothing. One that says "absent" instead delivers twice."""
    push(site, block(rows(0, 1), 0, 2))
    with site.unreachable():
        refused(Exception, lambda: probe(site, block(rows(0, 1), 0, 2)), "a probe without an answer gave one")
    assert probe(site, block(rows(0, 1), 0, 2)), "after the silence the probe does not find the block"


@case()
def a_batch_is_pushed_and_recorded(site: WrappedSite) -> None:
    """The ordinary life of a batch, by landonce's own worker: opened and closed for each block, claimed, pushed, settled."""
    driven, sink = Driven.of(3), site.sink()
    for number in range(3):
        result = driven.land(sink, number)
        assert result.fate is Fate.LANDED, f"a block did not land: {result.error or result.why}"
        assert driven.push(sink, number).fate is Fate.LANDED, (
            "a task that is run again does not see that its block landed"
        )
    assert [row.mark for row in driven.ledger().status(1).rows] == [Mark.AFTER] * 3
    assert held(site) == expected(*(four(each) for each in range(3))), "the batch is not there, once"


_STEPS = ("landonce.sinks.wrapped.worker",)
"""landonce's own lines between claim, push and settle, beside those of the plug-in."""
_TO_ITS_END = "pushed to its end"


@case(SETTLES)
def after_a_crash_at_any_line_a_block_lands_once(site: WrappedSite) -> None:
    """The whole promise. Recovery is landonce's own: takeover, waiting out, and then the same block again or the probe."""
    sink, own, whole = site.sink(), _own(site), site.moments + SOME_MOMENTS
    driven = Driven.of(whole + 1)
    found = moments(own, lambda: driven.push(sink, whole), site.moments, also=_STEPS)
    _killed(driven, sink, (*own, *_STEPS), found)
    _recovers(site, driven.taken_over(), site.sink(), {**_kills(found), whole: _TO_ITS_END})


@case(SETTLES)
def after_a_crash_between_its_portions_a_large_block_lands_once(site: WrappedSite) -> None:
    """A sink that sends so many rows at a time dies after some: the rest is lost if one row passes for all, or the first are there twice."""
    sink, own, whole = site.sink(), _own(site), SOME_MOMENTS
    driven = Driven.of(whole + 1, size=site.large)
    found = repeats(own, lambda: driven.push(sink, whole), min(site.moments, whole))
    _killed(driven, sink, own, found)
    _recovers(site, driven.taken_over(), site.sink(), {**_kills(found), whole: _TO_ITS_END})


@case(SETTLES, LEAVES)
def where_the_target_falls_silent_a_block_lands_once(site: WrappedSite) -> None:
    """A connection breaks in the middle of a push: what arrived would be taken for nothing, as by `NotPushed`, or be kept and sent with the
    next block; what did not arrive would be taken for delivered."""
    sink, own, whole = site.sink(), _own(site), SOME_MOMENTS
    driven = Driven.of(whole + 1)
    found = moments(own, lambda: driven.push(sink, whole), min(site.moments, whole))
    for number, moment in enumerate(found):
        with ExitStack() as silence, suppress(LandonceError):
            fall_silent = partial(silence.enter_context, site.unreachable())
            struck(own, partial(driven.push, sink, number), moment, fall_silent)
    silent = {number: f"silent from line {moment} on" for number, moment in enumerate(found)}
    _recovers(site, driven, sink, {**silent, whole: _TO_ITS_END})


def _own(site: WrappedSite) -> Lines:
    return (*lines_of(site.sink().wrapped), *site.packages)


def _killed(driven: Driven, sink: WrappedSink, lines: Lines, found: tuple[Moment, ...]) -> None:
    """A block for each moment, whose worker was killed there."""
    deaths = [
        crashed(lines, lambda number=number: driven.push(sink, number), moment)  # type: ignore[misc]
        for number, moment in enumerate(found)
    ]
    require_kills(deaths)


def _kills(found: tuple[Moment, ...]) -> dict[int, str]:
    return {number: f"killed before line {moment}" for number, moment in enumerate(found)}


def _recovers(site: WrappedSite, driven: Driven, sink: WrappedSink, blocks: Mapping[int, str]) -> None:
    """What was in doubt is waited out; then each block lands, and is there once. `blocks`: what happened to each of them."""
    time.sleep(0 if sink.idempotent else sink.wait / 1000 + 0.1)
    for number, what in blocks.items():
        result = driven.land(sink, number)
        assert result.fate is Fate.LANDED, (
            f"a block cannot land any more ({what}): {result.fate.value}, {result.error or result.why}"
        )
    there: dict[int, list[Row]] = {}
    for row in site.held():
        there.setdefault(row.partition, []).append(row)
    found = {number: _difference(driven, number, there.get(number, [])) for number in blocks}
    wrong = [f"{blocks[number]} ({difference})" for number, difference in found.items() if difference]
    assert not wrong, f"after recovery, rows are missing or there twice; {'; '.join(wrong)}"
    assert there.keys() <= blocks.keys(), "rows are there that nobody pushed"


def _difference(driven: Driven, number: int, there: list[Row]) -> str:
    wanted, found = Counter(expected(driven.rows(number))), Counter(there)
    missing, surplus = (wanted - found).total(), (found - wanted).total()
    return f"of {driven.size} rows {missing} missing, {surplus} too many" if missing or surplus else ""
