"""What a wrapped sink keeps: what it declares is true, also if it crashes or its target stops answering, at any line and between the
portions of a large block. landonce's own worker drives it, with a ledger of the kit's own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from landonce.errors import LandonceError, NotPushed, TargetRefused
from landonce.ledger.block_ledgers import PushPlace
from landonce.protocol.block_rows import BlockState, Claim, Spot
from landonce.protocol.blocks import Block, Identity, block_key
from landonce.protocol.ledger import LedgerState, taken
from landonce.protocol.ranges import Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.sinks.wrapped.block import PushedBlock
from landonce.sinks.wrapped.sink import WrappedSink
from landonce.sinks.wrapped.worker import Sending, push_block
from landonce.testing.case import SECRET, Need, Suite, overrides, refused
from landonce.testing.crashing import (
    MOST_MOMENTS,
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
from landonce.testing.sink_sites import PIPELINE, Row, as_rows, held, odd_rows, pending, rows, span


class WrappedSite(ABC):
    """An empty target for one case, and what is declared of it.

    What the sink declares (`idempotent`, a probe) decides which cases apply. Give a sink that is not idempotent a small
    `settles_within`, such as 2.0: recovery waits for it, twice.
    """

    secret = ""
    """A part of the sink's settings that must not appear in a log: a password."""
    packages: tuple[str, ...] = ()
    """Where else the sink's own code is: packages of yours that its class or function calls. Crashes are tried there too."""
    moments = MOST_MOMENTS
    """At how many lines of its own, at most, a crash is tried."""
    large = 5_000
    """Rows of a large block, a hundred bytes each. Raise it if the sink sends as many in one portion."""

    @abstractmethod
    def sink(self) -> WrappedSink:
        """What `landonce.wrap` gives. Always of the same target."""

    @abstractmethod
    def held(self) -> list[Row]:
        """All that the target holds, in any order, read without the sink."""

    def unreachable(self) -> AbstractContextManager[None]:
        """While it is open, the target does not answer."""
        raise NotImplementedError


IDEMPOTENT: Need[WrappedSite] = Need(lambda site: site.sink().idempotent, "the sink declares idempotent=False")
PROBED: Need[WrappedSite] = Need(
    lambda site: site.sink().can_probe, "the sink has no probe, and needs none if idempotent"
)
SETTLES: Need[WrappedSite] = Need(
    lambda site: site.sink().idempotent or site.sink().can_probe,
    "the sink is neither idempotent nor has it a probe: after a crash a person decides",
)
LEAVES = overrides(WrappedSite, "unreachable", "the site has no way to make its target unreachable")

WRAPPED_CASES: Suite[WrappedSite] = Suite("wrapped sink")
case = WRAPPED_CASES.case
_NO_WORD = "what was declared is not what the sink does"


@case()
def a_wrapped_sink_travels_to_the_workers(site: WrappedSite) -> None:
    """No Spark task could push. Connections, locks and files are opened in `open`, not before."""
    pickling: Any = import_module("pyspark.cloudpickle")
    sink = site.sink()
    try:
        copy = pickling.loads(pickling.dumps(sink))
    except Exception as error:
        raise AssertionError(f"the sink cannot be pickled: {error}") from error
    assert (copy.identity, copy.idempotent, copy.can_probe) == (sink.identity, sink.idempotent, sink.can_probe)
    with copy.opened() as delivery:
        delivery.push(block(rows(0, 1), 0, 2))
    assert held(site) == as_rows(rows(0, 1)), "what the workers pushed is not there"


@case(SECRET)
def no_secret_is_shown(site: WrappedSite) -> None:
    """Passwords would appear in logs and in bug reports."""
    for said in (repr(site.sink()), str(site.sink()), site.sink().identity):
        assert site.secret not in said, "the sink shows its secret"


@case()
def what_was_pushed_is_there(site: WrappedSite) -> None:
    """Records would be lost: a push that returned is never checked again."""
    table = rows(*range(100))
    with site.sink().opened() as delivery:
        delivery.push(block(table, 0, 100))
        before = held(site)
    assert held(site) == as_rows(table), "a block is not there as it was pushed"
    assert before == as_rows(table), "a block is there only once the sink is closed: a crash before that would lose it"


@case()
def a_push_gives_nothing_back(site: WrappedSite) -> None:
    """The first block would halt the pipeline: a response may be a refusal, so a returned value never counts as success."""
    with site.sink().opened() as delivery:
        said: object = delivery.push(block(rows(0, 1), 0, 2))  # type: ignore[func-returns-value]
    assert said is None, f"`push` returned {said!r}: it returns nothing once all has landed, and raises otherwise"


@case()
def values_come_back_as_they_were(site: WrappedSite) -> None:
    """Rows would land once, and wrong."""
    table = odd_rows()
    push(site, block(table, 2**62, 2**62 + table.num_rows))
    assert held(site) == as_rows(table), "a value was changed"


@case()
def blocks_of_a_partition_are_kept_apart(site: WrappedSite) -> None:
    """The next block would replace the one before."""
    push(site, block(rows(0, 1), 0, 2), block(rows(2, 3), 2, 4), block(rows(4), 4, 5))
    assert held(site) == as_rows(rows(0, 1, 2, 3, 4)), "a block replaced another one"


@case()
def partitions_and_topics_are_kept_apart(site: WrappedSite) -> None:
    """Offsets are counted from the beginning in every partition: blocks of the same offsets would be taken for one."""
    tables = rows(0, 1), rows(0, 1, partition=1), rows(0, 1, topic="u")
    push(site, *(block(each, 0, 2) for each in tables))
    assert held(site) == as_rows(*tables), "a block of another partition or topic was taken for this one"


@case()
def long_names_are_distinct(site: WrappedSite) -> None:
    """A topic's name has up to 249 characters, a key up to 190: where they are cut, a block is taken for another one, and lost."""
    one, another, absent = (f"Orders_v1.eu-west@2.{'x' * 179}{end}" for end in "abc")
    tables = rows(0, 1, topic=one), rows(2, 3, topic=one), rows(0, 1, topic=another)
    blocks = [block(each, first, first + 2) for each, first in zip(tables, (0, 2, 0), strict=True)]
    push(site, *blocks)
    assert held(site) == as_rows(*tables), "a block with a long name was taken for another one, or its name was changed"
    if site.sink().can_probe:
        assert all(probe(site, each) for each in blocks), "a block with a long name is not found"
        assert not probe(site, block(rows(0, 1, topic=absent), 0, 2)), "the probe takes a long name for another one"


@case()
def offsets_may_have_gaps(site: WrappedSite) -> None:
    """Compaction and aborted transactions leave gaps: such a block would never be complete."""
    table = rows(0, 7, 9)
    push(site, block(table, 0, 20))
    assert held(site) == as_rows(table), "a block with gaps is not there"
    if site.sink().can_probe:
        assert probe(site, block(table, 0, 20)), "a block with gaps is not found"


@case()
def partitions_are_pushed_side_by_side(site: WrappedSite) -> None:
    """The workers of one batch push at the same time: one would undo what another pushed."""
    in_threads(4, lambda name: push(site, block(four(int(name[-1])), 0, 4)))
    assert held(site) == as_rows(*(four(each) for each in range(4))), "blocks disturbed each other"


@case(IDEMPOTENT)
def the_same_block_again_changes_nothing(site: WrappedSite) -> None:
    """The sink says that a push may be repeated, and every retry delivers twice."""
    for attempt in (1, 2, 3):
        push(site, block(rows(0, 1), 0, 2, attempt=attempt))
    assert held(site) == as_rows(rows(0, 1)), f"{_NO_WORD}: a block that was pushed again is there twice"


@case(IDEMPOTENT)
def a_late_push_changes_nothing(site: WrappedSite) -> None:
    """A driver that was replaced and wakes up pushes its old block once more, after newer ones."""
    first, second = block(rows(0, 1), 0, 2), block(rows(2, 3), 2, 4)
    push(site, first, second, first)
    assert held(site) == as_rows(rows(0, 1, 2, 3)), f"{_NO_WORD}: an older block that came again changed the target"


@case(IDEMPOTENT)
def two_pushes_of_one_block_at_once_are_one(site: WrappedSite) -> None:
    """A task that Spark runs twice pushes twice at the same time."""
    for partition in range(3):
        each = block(four(partition), 0, 4)
        in_threads(4, lambda _, each=each: push(site, each))  # type: ignore[misc]
    assert held(site) == as_rows(*(four(each) for each in range(3))), f"{_NO_WORD}: two pushes at once are two"


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
    """Another partition's block would count as this one, which is lost."""
    push(site, block(rows(0, 1), 0, 2))
    for table in (rows(0, 1, partition=1), rows(0, 1, topic="u")):
        assert not probe(site, block(table, 0, 2)), "the probe takes another partition's or topic's block for this one"


@case(PROBED)
def a_probe_says_yes_or_no(site: WrappedSite) -> None:
    """Anything else halts the pipeline: a forgotten `return` would count as a no, and deliver twice."""
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
    """Asking would deliver, or remove."""
    push(site, block(rows(0, 1), 0, 2))
    for asked in (block(rows(0, 1), 0, 2), block(rows(2, 3), 2, 4)):
        probe(site, asked)
    assert held(site) == as_rows(rows(0, 1)), "a probe changed the target"


@case(LEAVES)
def a_silent_target_takes_nothing(site: WrappedSite) -> None:
    """The position would move past records that never arrived."""
    with site.unreachable():
        refused(
            Exception, lambda: push(site, block(rows(0, 1), 0, 2)), "a push to a target that does not answer returned"
        )


@case(LEAVES)
def not_pushed_means_that_nothing_arrived(site: WrappedSite) -> None:
    """After `NotPushed` and `TargetRefused` landonce pushes again at once: what had arrived would be there twice."""
    certain = False
    with site.unreachable():
        try:
            push(site, block(rows(0, 1), 0, 2))
        except (NotPushed, TargetRefused):
            certain = True
        except Exception:
            certain = False
    before = held(site)
    assert not (certain and before), "the sink was certain that nothing arrived, and something did"
    push(site, block(rows(2, 3), 2, 4))
    if certain:
        push(site, block(rows(0, 1), 0, 2))
        assert held(site) == as_rows(rows(0, 1, 2, 3)), "what was certainly not pushed arrived after all"


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
    assert [row.mark for row in driven.place.open().status(1).rows] == [BlockState.AFTER] * 3
    assert held(site) == as_rows(*(four(each) for each in range(3))), "the batch is not there, once"


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
    """A connection breaks in the middle of a push: what arrived would count as not pushed, or be kept and sent with the next block; what did
    not arrive would count as delivered."""
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
    """Waits until nothing is in doubt; then each block lands, and is there once. `blocks`: what happened to each of them."""
    time.sleep(0 if sink.idempotent else sink.wait / 1000 + 0.1)
    for number, what in blocks.items():
        result = driven.land(sink, number)
        assert result.fate is Fate.LANDED, (
            f"a block cannot land any more ({what}): {result.fate.value}, {result.error or result.why}"
        )
    there: dict[int, list[Row]] = {}
    for row in site.held():
        there.setdefault(row.partition, []).append(row)
    wrong = []
    for number, what in blocks.items():
        wanted, found = Counter(as_rows(driven.rows(number))), Counter(there.get(number, []))
        if wanted != found:
            missing, surplus = (wanted - found).total(), (found - wanted).total()
            wrong.append(f"{what} (of {driven.size} rows {missing} missing, {surplus} too many)")
    assert not wrong, f"after recovery, rows are missing or there twice; {'; '.join(wrong)}"
    assert there.keys() <= blocks.keys(), "rows are there that nobody pushed"


def block(table: pa.Table, first: int, end: int, *, attempt: int = 1) -> PushedBlock:
    """As landonce makes them: the key is a function of the block's content."""
    topic, partition = table.column("_topic")[0].as_py(), table.column("_partition")[0].as_py()
    key = _key(span(first, end, topic, partition))
    return PushedBlock(key, topic, partition, first, end, table, attempt, 2**62)


def _key(range: Range) -> str:
    identity = Identity(PIPELINE, "lineage", "cluster", ())
    return block_key(identity, Block((range,), "contract"), range.partition.topic)


def push(site: WrappedSite, *pushed: PushedBlock) -> None:
    """Straight to the sink. The case handles what it raises."""
    for each in pushed:
        with site.sink().opened() as delivery:
            delivery.push(each)


def probe(site: WrappedSite, asked: PushedBlock) -> bool:
    with site.sink().opened() as delivery:
        assert delivery.probe is not None
        return bool(delivery.probe(asked))


@dataclass(frozen=True)
class Driven:
    """A plan that is pending, with a block of so many records for each of so many partitions."""

    place: PushPlace
    state: LedgerState
    size: int
    folder: TemporaryDirectory[str]
    """Deleted with the last object that uses it."""

    @staticmethod
    def of(partitions: int, size: int = 4) -> Driven:
        folder = TemporaryDirectory(prefix="landonce-kit-")
        place = PushPlace(Path(folder.name) / "ledger.db", PIPELINE)
        with closing(place.open()) as ledger:
            return Driven(place, pending(ledger, partitions, size), size, folder)

    def taken_over(self) -> Driven:
        """As by the driver that comes after a crash."""
        with closing(self.place.open()) as ledger:
            return replace(self, state=ledger.change(self.state, taken(self.state, "second")))

    def rows(self, number: int) -> pa.Table:
        """Those of the block of this number."""
        if self.size == 4:
            return four(number)
        return rows(*range(self.size), partition=number, words=[f"{at:032}" for at in range(self.size)])

    def push(self, sink: WrappedSink, number: int) -> BlockResult:
        """What a worker does with the block of this number."""
        sending = Sending(
            index=number,
            spot=Spot(1, number),
            claim=Claim.of(self.state),
            key=_key(span(0, self.size, partition=number)),
            range=span(0, self.size, partition=number),
            rows=self.rows(number),
            receipt=Receipt(read=self.size, landed=self.size),
        )
        with closing(self.place.open()) as ledger:
            return push_block(sink, ledger, sending)

    def land(self, sink: WrappedSink, number: int) -> BlockResult:
        """As the driver does it: waits if a block is doubtful, and gives it to a worker again."""
        for _ in range(10):
            result = self.push(sink, number)
            if result.fate is not Fate.DOUBTFUL:
                break
            time.sleep(0.05 if sink.idempotent else sink.wait / 1000 + 0.1)
        return result


def four(number: int) -> pa.Table:
    return rows(0, 1, 2, 3, partition=number)
