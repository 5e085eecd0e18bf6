"""Which dead letters a person means, what they have in common, and how they look on a screen or in a file to edit.

Everything here reads the files line by line: memory does not grow with the number of letters.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from landonce.clock import milliseconds
from landonce.config.model import seconds
from landonce.engine.dead_letters import Place, as_bytes, committed, place_of
from landonce.errors import ConfigError
from landonce.protocol.reasons import cause_of

Letter = Mapping[str, Any]
"""As its file holds it."""
UNKNOWN_CODE = "unknown"
_GROUPS = 500
"""Groups that are listed apart. What refuses records may put anything into its reasons."""
_OTHERS = "other reasons"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SHOWN = 4_000
"""Bytes of a value that is not text, as they are shown."""


@dataclass(frozen=True)
class Filters:
    """Which letters. One that is empty takes all of them."""

    code: str = ""
    field: str = ""
    topic: str = ""
    partition: int | None = None
    since: int | None = None
    """Milliseconds: records with an earlier timestamp are left out."""
    reason: str = ""
    """A part of the reason, in any case."""
    place: Place | None = None

    def takes(self, letter: Letter) -> bool:
        return (
            (not self.code or self.code == code_of(letter))
            and (not self.field or self.field == field_of(letter))
            and (not self.topic or self.topic == letter["topic"])
            and (self.partition is None or self.partition == letter["partition"])
            and (self.since is None or int(letter.get("timestamp") or 0) >= self.since)
            and (not self.reason or self.reason.casefold() in str(letter.get("reason", "")).casefold())
            and (self.place is None or self.place == place_of(letter))
        )

    def __str__(self) -> str:
        """As the options of a command."""
        since = datetime.fromtimestamp(self.since / 1000, timezone.utc).isoformat() if self.since is not None else ""
        named = {"code": self.code, "field": self.field, "topic": self.topic, "since": since, "reason": self.reason}
        number = {"partition": str(self.partition)} if self.partition is not None else {}
        options = " ".join(f"--{name} {value}" for name, value in (named | number).items() if value)
        return " ".join(filter(None, (":".join(map(str, self.place)) if self.place else "", options)))


def code_of(letter: Letter) -> str:
    """Files of an earlier landonce hold none."""
    return str(letter.get("code") or UNKNOWN_CODE)


def field_of(letter: Letter) -> str:
    return str(letter.get("field") or "")


def parse_place(text: str, option: str = "") -> Place:
    """`TOPIC:PARTITION:OFFSET`. `option`: what an error begins with."""
    topic, _, rest = text.partition(":")
    number, _, offset = rest.partition(":")
    if not (topic and number.isdecimal() and offset.isdecimal()):
        raise ConfigError(
            f"{option}{text!r} is not a place; write TOPIC:PARTITION:OFFSET, for example clicks:0:4711.",
            safe="Nothing was changed.",
        )
    return topic, int(number), int(offset)


def parse_since(text: str, now: float | None = None) -> int:
    """A moment (`2026-11-18`, `2026-11-18T15:00+01:00`; UTC unless it says otherwise), or how long ago (`2h`). In milliseconds."""
    try:
        return int(((time.time() if now is None else now) - seconds(text)) * 1000)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigError(
            f"--since: {text!r} is neither a moment nor a duration; write for example 2026-11-18T15:00 or 2h."
        ) from None
    return milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc))


def chosen(folders: Iterable[Path], pipeline: str, filters: Filters) -> Iterator[Letter]:
    """The letters that the filters take, oldest batch first."""
    for folder in folders:
        yield from filter(filters.takes, committed(folder, pipeline))


@dataclass
class Group:
    """Letters with the same code, field, cause and topic."""

    code: str
    field: str
    cause: str
    topic: str
    letters: int = 0
    first: int | None = None
    """The earliest timestamp of their records, in milliseconds."""
    last: int | None = None
    example: str = ""
    """The place of one of them."""
    reason: str = ""
    """That one's reason."""

    def add(self, letter: Letter) -> None:
        self.letters += 1
        if not self.example:
            self.example, self.reason = place_text(letter), str(letter.get("reason", ""))
        moment = letter.get("timestamp")
        if moment is not None:
            self.first = min(moment, self.first) if self.first is not None else moment
            self.last = max(moment, self.last) if self.last is not None else moment

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "field": self.field,
            "cause": self.cause,
            "topic": self.topic,
            "letters": self.letters,
            "first": moment_text(self.first),
            "last": moment_text(self.last),
            "example": {"place": self.example, "reason": self.reason},
        }


def groups(letters: Iterable[Letter]) -> list[Group]:
    """The most letters first."""
    found: dict[tuple[str, str, str, str], Group] = {}
    for letter in letters:
        key = code_of(letter), field_of(letter), cause_of(str(letter.get("reason", ""))), str(letter["topic"])
        if key not in found and len(found) >= _GROUPS:
            key = key[0], "", _OTHERS, key[3]
        found.setdefault(key, Group(*key)).add(letter)
    return sorted(found.values(), key=lambda each: (-each.letters, each.code, each.field, each.cause, each.topic))


def place_text(letter: Letter) -> str:
    return ":".join(map(str, place_of(letter)))


def moment_text(moment: int | None) -> str | None:
    """For people and programs: UTC."""
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment / 1000, timezone.utc).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(moment)


def readable(content: bytes | None) -> str:
    """JSON is indented and otherwise as it is, text is text, and other bytes are shown as such."""
    if content is None:
        return "(none)"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        more = f" … {len(content):,} bytes in all" if len(content) > _SHOWN else ""
        return f"{len(content):,} bytes: {content[:_SHOWN].hex(' ')}{more}"
    if text[:1] not in ("{", "["):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _indented(text)


def _indented(text: str) -> str:
    """A JSON text on many lines. Nothing in it is changed: not the digits of a number, nor a key that is there twice."""
    found, depth, before = [], 0, ""
    for piece in _TOKEN.findall(text):
        if piece in ("}", "]"):
            depth -= 1
        ends = piece in ("}", "]") and before not in ("{", "[")
        if ends or before == "," or (before in ("{", "[") and piece not in ("}", "]")):
            found.append("\n" + "  " * depth)
        found.append(": " if piece == ":" else piece)
        if piece in ("{", "["):
            depth += 1
        before = piece
    return "".join(found)


def printable(text: str) -> str:
    """Without what a terminal would obey: a record may hold anything."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def lines_of(letter: Letter) -> list[str]:
    """One letter whole."""
    headers = [f"  {each.get('name')}: {readable(as_bytes(each, 'value'))}" for each in letter.get("headers") or ()]
    key, value = as_bytes(letter, "key"), readable(as_bytes(letter, "value"))
    return [
        f"{place_text(letter)}   {moment_text(letter.get('timestamp')) or '-'}",
        f"code:   {code_of(letter)}" + (f", field {field_of(letter)}" if field_of(letter) else ""),
        f"reason: {letter.get('reason', '')}",
        f"key:    {readable(key)}",
        *(["headers:", *headers] if headers else []),
        "value:",
        *(f"  {line}" for line in value.split("\n") if value),
    ]


def to_edit(letter: Letter) -> dict[str, Any]:
    """What a person edits and gives back: the value, and what it takes to find the letter and to understand it."""
    value = {name: letter[name] for name in ("value", "value_base64") if name in letter}
    named = {name: letter[name] for name in ("topic", "partition", "offset")}
    return {**named, "code": code_of(letter), "field": field_of(letter), "reason": letter.get("reason", ""), **value}


@dataclass(frozen=True)
class EditedLine:
    """A line of a file that was edited: where, and the value that lands there."""

    place: Place
    value: bytes | None
    line: int = field(compare=False, default=0)


def fixed_lines(path: Path) -> Iterator[EditedLine]:
    """Every line of the file, with its number. A value is text, a JSON document, base64 (`value_base64`) or null. Nothing else counts."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _fixed(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--with: {path} cannot be read: {error}.", safe="Nothing was changed.") from None


def _fixed(path: Path, number: int, line: str) -> EditedLine:
    try:
        entry = json.loads(line)
        place = place_of({name: entry[name] for name in ("topic", "partition", "offset")})
        if not isinstance(place[0], str) or not all(type(each) is int for each in place[1:]):
            raise TypeError
        if "value_base64" in entry:
            return EditedLine(place, base64.b64decode(entry["value_base64"], validate=True), number)
        value = entry["value"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"--with: {path}, line {number}, is not a letter: it needs `topic`, `partition`, `offset` and `value` (or `value_base64`), "
            "as `landonce dead export` writes them.",
            safe="Nothing was changed.",
        ) from None
    if value is None:
        return EditedLine(place, None, number)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return EditedLine(place, text.encode(), number)
    except UnicodeEncodeError:
        raise ConfigError(
            f"--with: {path}, line {number}: the value holds half of a character (a lone surrogate), which no bytes stand for.",
            safe="Nothing was changed.",
            command="correct the value, or give its bytes as `value_base64`",
        ) from None
