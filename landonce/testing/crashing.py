"""Processes of the kit's own, work that several do at the same time, and crashes.

Crashes are real: a process of its own dies by SIGKILL at a chosen line of the plug-in's own Python code.

No `finally` runs, no buffer is flushed, no lock is given back by hand: what the next process finds is what a crash leaves.
Every line of the plug-in's package that an act passes is a moment to die at: when it is passed first, and when it is passed last.
Where there are more than a site wants to try, moments are spread evenly over them, the first and the last among them.
What is sent in portions passes the same lines again and again: `repeats` are moments in the middle of that.
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
from types import FrameType
from typing import Any

FORK = multiprocessing.get_context("fork")


def started(work: Callable[..., Any], *arguments: Any) -> Any:
    """A process that does this. It leaves alone what it inherits: were a client of Kafka or of a database collected as garbage there,
    it would end threads and connections that only the parent has, and the process with them."""

    def run() -> None:
        gc.freeze()
        work(*arguments)

    process = FORK.Process(target=run)
    process.start()
    return process


_SECONDS = 120


def in_threads(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each gives back. Fails with what the first of them failed with."""
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
    assert len(results) == number, "a worker did not come to its end"
    return list(results.values())


def in_processes(number: int, work: Callable[[str], Any]) -> list[Any]:
    """All start at once; what each gives back. Fails if one of them did."""
    gate = FORK.Barrier(number)
    pipes, workers = [], []

    def one(name: str, sending: Any) -> None:
        gate.wait(_SECONDS)
        sending.send(work(name))

    for each in range(number):
        reading, sending = FORK.Pipe(duplex=False)
        worker = started(one, f"process-{each}", sending)
        sending.close()
        pipes.append(reading)
        workers.append(worker)
    results = []
    for reading in pipes:
        try:
            results += [reading.recv()] if reading.poll(_SECONDS) else []
        except EOFError:
            continue
    for worker in workers:
        worker.join(_SECONDS)
    codes = [worker.exitcode for worker in workers]
    assert codes == [0] * number, f"a worker failed, see its traceback: exit codes {codes}"
    return results


MOST_MOMENTS = 200
"""Of a plug-in's own lines."""
SOME_MOMENTS = 24
"""Of landonce's own: its tests have the rest."""

Lines = tuple[str, ...]
"""The packages and modules whose lines count."""
Place = tuple[str, int]
"""A line: of a module, by its number."""


class Moment(int):
    """Before the so-manieth line that an act passes; reads as that line's place."""

    where: Place

    @staticmethod
    def at(number: int, where: Place) -> Moment:
        moment = Moment(number)
        moment.where = where
        return moment

    def __str__(self) -> str:
        return f"{self.where[1]} of {self.where[0]}"


def lines_of(thing: object) -> Lines:
    """The packages whose lines are a plug-in's own: those of its class and of what that inherits from, or of the function."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    kinds = (thing,) if hasattr(thing, "__name__") and not isinstance(thing, type) else _kind(thing).__mro__
    modules = {str(each.__module__) for each in kinds} - {"builtins", "abc", "typing", "functools"}
    return tuple(sorted({_package(each) for each in modules}))


def _kind(thing: object) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _package(module: str) -> str:
    """landonce is large: of it, the part that the module is in."""
    return ".".join(module.split(".")[: 2 if module.startswith("landonce.") else 1])


def moments(lines: Lines, act: Callable[[], Any], most: int = MOST_MOMENTS, also: Lines = ()) -> tuple[Moment, ...]:
    """When to die, by the number of the line that is passed then: found by letting the act run to its end once, in a process
    of its own. `also`: packages around the plug-in, of which some lines will do."""
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
    reading, sending = FORK.Pipe(duplex=False)
    process = _child(lambda: sending.send(_passed((*lines, *also), act)), sending)
    sending.close()
    passed: Any = _heard(reading, _SECONDS)
    code = _end(process, sending)
    assert code == 0, f"the act failed by itself: {passed}"
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
    """Lets the act run in a process that dies before the line of this number. False if the act was over before."""
    reading, sending = FORK.Pipe(duplex=False)

    def run() -> None:
        with _Tracer(lines, moment):
            act()

    code = _end(_child(run, sending), sending)
    if code == -signal.SIGKILL:
        return True
    assert code == 0, f"the act failed by itself: {_heard(reading)}"
    return False


def require_kills(deaths: Sequence[bool]) -> None:
    """Raises where most acts were over before they could be killed: whatever holds after that, it does not hold after a crash."""
    assert 2 * sum(deaths) > len(deaths), (
        f"of {len(deaths)} crashes {sum(deaths)} could be tried: every act passes other lines than the one before"
    )


def struck(lines: Lines, act: Callable[[], Any], moment: int, strike: Callable[[], Any]) -> None:
    """Lets the act run here, and something happen to it before the line of this number."""
    with _Tracer(lines, moment, strike):
        act()


def in_another_process(act: Callable[[], Any]) -> None:
    """Runs the act to its end, in a process that is gone afterwards."""
    reading, sending = FORK.Pipe(duplex=False)
    code = _end(_child(act, sending), sending)
    assert code == 0, f"the act failed by itself: {_heard(reading)}"


class _Tracer:
    """Notes lines as they are passed, also by threads that start meanwhile, and dies at one of them, or what else is to happen there."""

    def __init__(self, lines: Lines, moment: int | None = None, strike: Callable[[], Any] | None = None) -> None:
        self._lines = lines
        self._moment = moment
        self._strike = strike or _die
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

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        return self._line if _within(_name(frame), self._lines) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "line":
            if len(self.passed) == self._moment:
                self._moment = None
                self._strike()
            self.passed.append((_name(frame), frame.f_lineno))
        return self._line


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _within(name: str, lines: Lines) -> bool:
    return any(f"{name}.".startswith(f"{each}.") for each in lines) and not name.startswith(_NEVER)


_NEVER = tuple(
    f"landonce.testing.{each}"
    for each in ("crashing", "cases_", "ledger_sites", "sink_sites", "snapshot_sites", "wrapped_sites")
)
"""The kit's own lines are nobody's steps."""


def _passed(lines: Lines, act: Callable[[], Any]) -> list[Place]:
    with _Tracer(lines) as tracer:
        act()
    return tracer.passed


def _child(act: Callable[[], Any], sending: Any) -> Any:
    def run() -> None:
        try:
            act()
        except BaseException:
            sys.settrace(None)
            sending.send(traceback.format_exc())
            os._exit(1)

    return started(run)


def _heard(reading: Any, seconds: float = 1.0) -> Any:
    """What the process said before it ended."""
    try:
        return reading.recv() if reading.poll(seconds) else "it said nothing"
    except EOFError:
        return "it said nothing"


def _end(process: Any, sending: Any) -> int | None:
    sending.close()
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join(_SECONDS)
        raise AssertionError(f"the act did not end within {_SECONDS} seconds")
    return int(process.exitcode)
