"""Work that threads or processes do at the same time, and crashes.

Crashes are real: a process dies by SIGKILL at a chosen line of the plug-in's own Python code. No `finally` runs, no buffer is flushed, no lock
is released: the next process finds what a crash leaves. Every line of the plug-in's package that an act passes is a moment to die at: when it is
passed first, and when it is passed last. If there are more than a site wants to try, the moments are spread evenly over them, the first and
the last among them. A block that is sent in portions passes the same lines again and again: `repeats` are moments in the middle of that.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

FORK = multiprocessing.get_context("fork")
_SECONDS = 120


def in_threads(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each returns. Fails with the first failure."""
    gate = threading.Barrier(number)
    results: dict[str, Any] = {}
    failed: list[str] = []

    def one(name: str) -> None:
        try:
            gate.wait(_SECONDS)
            results[name] = work(name)
        except BaseException:
            failed.append(traceback.format_exc())

    workers = [threading.Thread(target=one, args=(f"thread-{each}",), daemon=True) for each in range(number)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(_SECONDS)
    assert not failed, f"a worker failed: {failed[0]}"
    assert len(results) == number, "a worker did not end"
    return list(results.values())


def in_processes(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each returns. Fails if one of them did."""
    gate = FORK.Barrier(number)

    def one(name: str) -> Any:
        gate.wait(_SECONDS)
        return work(name)

    children = [_Child(functools.partial(one, f"process-{each}")) for each in range(number)]
    answers = [each.end() for each in children]
    failed = [each.text for each in answers if isinstance(each, _Failed)]
    assert not failed, f"a worker failed: {failed[0]}"
    return answers


def apart(act: Callable[[], Any]) -> Any:
    """What the act returns, in a process of its own. An assertion that fails there fails here."""
    answer = _Child(act).end()
    if isinstance(answer, _Failed):
        raise (AssertionError if answer.assertion else RuntimeError)(answer.text)
    return answer


def started(work: Callable[..., Any], *arguments: Any) -> Any:
    """A process that does this. It collects no garbage that it inherits: a client of Kafka or of a database that is collected there would end
    threads and connections that only the parent has, and the process with them."""

    def run() -> None:
        gc.freeze()
        work(*arguments)

    process = FORK.Process(target=run)
    process.start()
    return process


@dataclass(frozen=True)
class _Failed:
    """How an act ended in another process, if it did not return."""

    text: str
    assertion: bool = False
    killed: bool = False


class _Child:
    """A process that does one act."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._reading, sending = FORK.Pipe(duplex=False)

        def run() -> None:
            try:
                sending.send(act())
            except BaseException as error:
                sending.send(_Failed(f"{error}\n{traceback.format_exc()}", isinstance(error, AssertionError)))
                os._exit(1)

        self._process = started(run)
        sending.close()

    def end(self) -> Any:
        """What the act returned, or a `_Failed`."""
        answered = self._reading.poll(_SECONDS)
        try:
            answer = self._reading.recv() if answered else None
        except EOFError:
            answer = _Failed("the process ended without an answer")
        self._process.join(_SECONDS if answered else 0)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(_SECONDS)
            raise AssertionError(f"the act did not end within {_SECONDS} seconds")
        killed = self._process.exitcode == -signal.SIGKILL
        return _Failed("the process was killed", killed=True) if killed else answer


MOST_MOMENTS = 200
"""Of a plug-in's own lines."""
SOME_MOMENTS = 24
"""Of landonce's own: its tests try the rest."""

Lines = tuple[str, ...]
"""The packages and modules whose lines count."""
Place = tuple[str, int]
"""A line: of a module, by its number."""


class Moment(int):
    """The number of the line that an act is about to pass, counted from its start. Its text is that line's place."""

    where: Place

    @staticmethod
    def at(number: int, where: Place) -> Moment:
        moment = Moment(number)
        moment.where = where
        return moment

    def __str__(self) -> str:
        return f"{self.where[1]} of {self.where[0]}"


def lines_of(thing: object) -> Lines:
    """The packages whose lines are a plug-in's own: those of its class and of what that inherits from, or of the function. landonce is large:
    of it, only the part that the module is in."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    kind = thing if isinstance(thing, type) else type(thing)
    is_function = hasattr(thing, "__name__") and not isinstance(thing, type)
    modules = {str(each.__module__) for each in ((thing,) if is_function else kind.__mro__)}
    names = [each.split(".") for each in modules - {"builtins", "abc", "typing", "functools"}]
    return tuple(sorted({".".join(each[: 2 if each[0] == "landonce" else 1]) for each in names}))


def moments(lines: Lines, act: Callable[[], Any], most: int = MOST_MOMENTS, also: Lines = ()) -> tuple[Moment, ...]:
    """When to die, by the number of the line that is passed then: found by running the act to its end once, in a process of its own.
    `also`: packages around the plug-in, of which some lines will do."""
    passed, own = _observed(lines, act, also)
    around = sorted(set(range(len(passed))) - set(own))
    return _named(passed, (*_chosen(passed, own, most), *_chosen(passed, around, SOME_MOMENTS)))


def repeats(lines: Lines, act: Callable[[], Any], most: int = SOME_MOMENTS) -> tuple[Moment, ...]:
    """When to die in the middle of what is done again and again: before lines that the act passes more than once, at the second
    time, half-way and at the last time. Of the other lines, so many that there are `most`, a third of them at least."""
    passed, own = _observed(lines, act)
    times: dict[Place, list[int]] = {}
    for at in own:
        times.setdefault(passed[at], []).append(at)
    again = sorted({at[each] for at in times.values() if len(at) > 1 for each in (1, len(at) // 2, -1)})
    once = [at[0] for at in times.values() if len(at) == 1]
    chosen = _spread(again, most - most // 3)
    return _named(passed, (*chosen, *_spread(once, most - len(chosen))))


def _observed(lines: Lines, act: Callable[[], Any], also: Lines = ()) -> tuple[Sequence[Place], Sequence[int]]:
    """The lines that the act passes, and which of them are the plug-in's own."""

    def observe() -> list[Place]:
        with _Tracer((*lines, *also)) as tracer:
            act()
        return tracer.passed

    passed = _Child(observe).end()
    assert not isinstance(passed, _Failed), f"the act failed by itself: {passed.text}"
    own = [at for at, (name, _) in enumerate(passed) if _within(name, lines)]
    assert own, f"no line of {', '.join(lines)} was passed: say in `packages` where the plug-in's own code is"
    return passed, own


def _named(passed: Sequence[Place], chosen: Iterable[int]) -> tuple[Moment, ...]:
    return tuple(Moment.at(number, passed[number]) for number in sorted(chosen))


def _chosen(passed: Sequence[Place], among: Sequence[int], most: int) -> list[int]:
    """All of them; or else the first and the last time that each line is passed; or else some of these, evenly spread."""
    if len(among) <= most:
        return list(among)
    first = {passed[at]: at for at in reversed(among)}
    last = {passed[at]: at for at in among}
    return _spread(sorted({*first.values(), *last.values()}), most)


def _spread(among: Sequence[int], most: int) -> list[int]:
    """All of them, or some, evenly spread."""
    if len(among) <= most:
        return list(among)
    return sorted({among[round(at * (len(among) - 1) / max(most - 1, 1))] for at in range(most)})


def crashed(lines: Lines, act: Callable[[], Any], moment: int) -> bool:
    """Runs the act in a process that dies before the line of this number. False if the act ended before that."""

    def run() -> None:
        with _Tracer(lines, moment):
            act()

    answer = _Child(run).end()
    if not isinstance(answer, _Failed):
        return False
    assert answer.killed, f"the act failed by itself: {answer.text}"
    return True


def require_kills(deaths: Sequence[bool]) -> None:
    """Raises if most acts ended before they could be killed: what holds after that need not hold after a crash."""
    assert 2 * sum(deaths) > len(deaths), (
        f"of {len(deaths)} crashes {sum(deaths)} could be tried: every act passes other lines than the one before"
    )


def struck(lines: Lines, act: Callable[[], Any], moment: int, strike: Callable[[], Any]) -> None:
    """Runs the act here, and calls `strike` before the line of this number."""
    with _Tracer(lines, moment, strike):
        act()


class _Tracer:
    """Notes lines as they are passed, also by threads that start meanwhile, and kills the process before one of them, or calls `strike`."""

    def __init__(self, lines: Lines, moment: int | None = None, strike: Callable[[], Any] | None = None) -> None:
        self._lines = lines
        self._moment = moment
        self._strike = strike or (lambda: os.kill(os.getpid(), signal.SIGKILL))
        self._before = sys.gettrace(), threading.gettrace()
        self.passed: list[Place] = []

    def __enter__(self) -> _Tracer:
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        here, threads = self._before
        sys.settrace(here)
        threading.settrace(threads)

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if _within(_name(frame), self._lines) else None

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            if len(self.passed) == self._moment:
                self._moment = None
                self._strike()
            self.passed.append((_name(frame), frame.f_lineno))
        return self._line


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _within(name: str, lines: Lines) -> bool:
    """Of the kit's own lines, only those of its reference sinks are ever a plug-in's."""
    if name.startswith("landonce.testing.") and name != "landonce.testing.reference_sinks":
        return False
    return any(f"{name}.".startswith(f"{each}.") for each in lines)
