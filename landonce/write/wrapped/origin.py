"""Which target a wrapped sink is for, as far as it shows: addresses and paths among what it was made with.

Its code does not count: a push that fails is mended while a plan is pending. Nor do numbers and other words, which are settings
more often than targets.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from types import FunctionType
from typing import Any

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@]*@")
"""Passwords change, and the target is the same."""
_DEEP = 4


def made_with(push: Any) -> str:
    """The same at every start, on any machine, as long as the sink is for the same target."""
    named = push
    while isinstance(named, functools.partial):
        named = named.func
    name = getattr(named, "__qualname__", type(named).__qualname__)
    own = _variables(push), _variables(type(push))
    return digest([name, sorted({*_addresses(push, _DEEP), *_addresses(own, _DEEP)})])


def digest(told: object) -> str:
    """Short, and the same whatever the order of names."""
    return hashlib.sha256(json.dumps(_ordered(told), default=str).encode()).hexdigest()[:8]


def _ordered(told: Any) -> Any:
    if isinstance(told, Mapping):
        return sorted([str(name), _ordered(each)] for name, each in told.items())
    return [_ordered(each) for each in told] if isinstance(told, list | tuple) else told


def _addresses(value: Any, deep: int) -> Iterator[str]:
    if isinstance(value, PurePath):
        yield os.path.normpath(value)
    elif isinstance(value, str) and _ADDRESS.match(value):
        yield _USER.sub("", value)
    elif deep:
        for each in _parts(value):
            yield from _addresses(each, deep - 1)


def _parts(value: Any) -> Iterable[Any]:
    """What a thing was made with, where that can be seen."""
    if type(value) is dict:
        return value.values()
    if type(value) in (list, tuple, set, frozenset):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if inspect.ismethod(value):
        return [value.__func__, _variables(value.__self__)]
    return _of_function(value) if inspect.isfunction(value) else ()


def _of_function(function: FunctionType) -> list[Any]:
    """What it closes over, its defaults, and the words and paths of its module that it names."""
    names = [name for name in function.__code__.co_names if not name.startswith("__")]
    around = [function.__globals__.get(name) for name in names]
    return [
        *_closed_over(function),
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *(each for each in around if isinstance(each, str | PurePath)),
    ]


def _closed_over(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # one that is not filled yet
            yield cell.cell_contents


def _variables(thing: Any) -> dict[str, Any]:
    found: Mapping[str, Any] = getattr(thing, "__dict__", {})
    return {name: each for name, each in found.items() if not name.startswith("__")}
