"""Reading the names of ClickHouse's types, such as `Array(Tuple(a Nullable(Int8), b DateTime64(3, 'UTC')))`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = re.compile(r"\s*(\w+)\s*")
_ELEMENT = re.compile(r"(`(?:[^`\\]|\\.)+`|\w+)\s+(?=[A-Za-z])")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}


@dataclass(frozen=True)
class TypeName:
    """A type's name and its arguments, as they are spelled."""

    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})" if self.arguments else self.name

    @property
    def inner(self) -> TypeName:
        """The type that this one wraps."""
        return parse_type(self.arguments[0])

    def elements(self) -> Iterator[tuple[str, str]]:
        """A tuple's elements as (name, type); the name is empty where there is none."""
        for argument in self.arguments:
            found = _ELEMENT.match(argument)
            yield (unquote(found[1]), argument[found.end() :]) if found else ("", argument)


def parse_type(text: str) -> TypeName:
    """One level of a type: its name and the text of each argument."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"not a ClickHouse type: {text!r}")
    rest = text[head.end() :].strip()
    if not rest:
        return TypeName(head[1])
    if not (rest.startswith("(") and rest.endswith(")")):
        raise ValueError(f"not a ClickHouse type: {text!r}")
    return TypeName(head[1], tuple(split_list(rest[1:-1])))


def split_list(text: str) -> list[str]:
    """The parts of a list, cut at the commas that stand outside of brackets and quotes."""
    parts, depth, start = [], 0, 0
    for at, character in _outside_quotes(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def unquote(text: str) -> str:
    """The string behind a literal or an identifier in backticks; anything else is returned as it is."""
    if len(text) < 2 or text[0] not in "'`" or text[-1] != text[0]:
        return text
    body = text[1:-1].replace(text[0] * 2, text[0])
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), body, flags=re.DOTALL)


def _outside_quotes(text: str) -> Iterator[tuple[int, str]]:
    quote, at = "", 0
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'`\"":
            quote = character
        else:
            yield at, character
        at += 1
