"""What a wrapped sink keeps when there is doubt: at every line where it may crash or its target may fall silent,
and between the portions of a large block."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial

from landonce.errors import LandonceError
from landonce.protocol.receipt import Fate
from landonce.sinks.wrapped.sink import WrappedSink
from landonce.testing import cases_wrapped
from landonce.testing.crashing import (
    SOME_MOMENTS,
    Lines,
    Moment,
    crashed,
    lines_of,
    moments,
    repeats,
    require_kills,
    struck,
)
from landonce.testing.sink_sites import Row
from landonce.testing.wrapped_sites import LEAVES, SETTLES, WRAPPED_CASES, Driven, WrappedSite, expected

__all__ = ["WRAPPED_CASES", "cases_wrapped"]

case = WRAPPED_CASES.case
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
            fall_silent = partial(silence.enter_context, site.away())
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
