"""Crashes that are real: a process of its own dies by SIGKILL at a chosen line of the plug-in's own Python code.

No `finally` runs, no buffer is flushed, no lock is given back by hand: what the next process finds is what a crash leaves.
Every line of the plug-in's package that an act passes is a moment to die at; where there are very many, moments are spread
evenly over them, the first and the last among them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_FORK = multiprocessing.get_context("fork")
_SECONDS = 120
MOST_MOMENTS = 24


Lines = tuple[str, ...]
"""The packages and modules whose lines count."""


def lines_of(thing: object) -> Lines:
    """The packages whose lines are a plug-in's own: those of its class and of what that inherits from, or of the function."""
    kinds = (thing,) if hasattr(thing, "__name__") and not isinstance(thing, type) else _kind(thing).__mro__
    modules = {str(each.__module__) for each in kinds} - {"builtins", "abc", "typing", "functools"}
    return tuple(sorted({_package(each) for each in modules}))


def _kind(thing: object) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _package(module: str) -> str:
    """landonce is large: of it, the part that the module is in."""
    return ".".join(module.split(".")[: 2 if module.startswith("landonce.") else 1])


def moments(lines: Lines, act: Callable[[], Any], most: int = MOST_MOMENTS) -> tuple[int, ...]:
    """The lines to die at, by number, found by letting the act run to its end once, in a process of its own."""
    told, tell = _FORK.Pipe(duplex=False)
    code = _end(_child(lambda: tell.send(_count(lines, act)), tell), tell)
    count: Any = _heard(told)
    assert code == 0, f"the act failed by itself: {count}"
    if count <= most:
        return tuple(range(count))
    return tuple(sorted({round(at * (count - 1) / (most - 1)) for at in range(most)}))


def crashed(lines: Lines, act: Callable[[], Any], moment: int) -> bool:
    """Lets the act run in a process that dies before the line of this number. False if the act was over before."""
    told, tell = _FORK.Pipe(duplex=False)

    def run() -> None:
        with _Tracer(lines, moment):
            act()

    code = _end(_child(run, tell), tell)
    if code == -signal.SIGKILL:
        return True
    assert code == 0, f"the act failed by itself: {_heard(told)}"
    return False


def crashes(lines: Lines, act: Callable[[], Any], most: int = MOST_MOMENTS) -> Iterator[int]:
    """Crashes the act at one moment after the other, and yields after each of them."""
    for moment in moments(lines, act, most):
        crashed(lines, act, moment)
        yield moment


def in_another_process(act: Callable[[], Any]) -> None:
    """Runs the act to its end, in a process that is gone afterwards."""
    told, tell = _FORK.Pipe(duplex=False)
    code = _end(_child(act, tell), tell)
    assert code == 0, f"the act failed by itself: {_heard(told)}"


class _Tracer:
    """Counts lines, and dies at one of them."""

    def __init__(self, lines: Lines, moment: int | None = None) -> None:
        self._within = lines
        self._moment = moment
        self.passed = 0

    def __enter__(self) -> _Tracer:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        name = str(frame.f_globals.get("__name__", ""))
        mine = any(f"{name}.".startswith(f"{each}.") for each in self._within) and not name.startswith(_NEVER)
        return self._line if mine else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        del frame, argument
        if event == "line":
            if self.passed == self._moment:
                os.kill(os.getpid(), signal.SIGKILL)
            self.passed += 1
        return self._line


_NEVER = tuple(
    f"landonce.testing.{each}"
    for each in ("crashing", "cases_", "states", "ledger_sites", "sink_sites", "wrapped_sites")
)
"""The kit's own lines are nobody's steps."""


def _count(lines: Lines, act: Callable[[], Any]) -> int:
    with _Tracer(lines) as tracer:
        act()
    return tracer.passed


def _child(act: Callable[[], Any], tell: Any) -> Any:
    def run() -> None:
        try:
            act()
        except BaseException:
            sys.settrace(None)
            tell.send(traceback.format_exc())
            os._exit(1)

    process = _FORK.Process(target=run)
    process.start()
    return process


def _heard(told: Any) -> Any:
    """What the process said before it ended."""
    try:
        return told.recv() if told.poll(1) else "it said nothing"
    except EOFError:
        return "it said nothing"


def _end(process: Any, tell: Any) -> int | None:
    tell.close()
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join(_SECONDS)
        raise AssertionError(f"the act did not end within {_SECONDS} seconds")
    return int(process.exitcode)
