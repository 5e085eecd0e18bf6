"""Why a record cannot land: a closed code to filter and alert by, the field, and words for people. Pure.

The code is chosen where the record is rejected, and never found in the words. The words say what is wrong with one record, so
two records with the same fault may read differently: `… at character 17` and `… at character 230`. Their cause is the same text
without the numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Code(str, Enum):
    """What kind of fault a record has. Closed: files, metrics and alerts rely on these words."""

    NO_VALUE = "no_value"
    """It has no value: a tombstone, or nothing."""
    TOO_LARGE = "too_large"
    """It is larger, or nested more deeply, than landonce accepts."""
    NOT_UTF8 = "not_utf8"
    """What should be text is not UTF-8."""
    MALFORMED = "malformed"
    """Its bytes are not of its format: not JSON, not a line of CSV, not a whole Avro or Protobuf message."""
    BAD_FRAME = "bad_frame"
    """It does not begin with the framing of the registry."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """Nobody knows the schema that it names."""
    SCHEMA_MISMATCH = "schema_mismatch"
    """It was written with a schema that does not become the table's columns."""
    MISSING_FIELD = "missing_field"
    """A field that the table requires is absent or null."""
    REPEATED_FIELD = "repeated_field"
    """A field, or a key of a map, is there more than once."""
    WRONG_TYPE = "wrong_type"
    """A value is of another kind than its column."""
    INVALID_VALUE = "invalid_value"
    """A value of the right kind is not one of those that its column takes."""
    OUT_OF_RANGE = "out_of_range"
    """A number, a time or a text is larger than its column holds."""
    INEXACT = "inexact"
    """A value would be rounded or cut."""
    NO_TABLE = "no_table"
    """No table takes it."""
    BAD_KEY = "bad_key"
    """Its key is absent, or cannot be read."""
    BAD_CHANGE = "bad_change"
    """It describes a change of a row that cannot be applied."""
    LATE = "late"
    """It came after its window had closed."""
    REFUSED_BY_TARGET = "refused_by_target"
    """It could be decoded, and the target itself refused it."""
    UNKNOWN = "unknown"
    """Of a landonce that did not write codes yet."""

    @staticmethod
    def of(word: object = None) -> Code:
        """The code of a letter or a receipt that was stored."""
        return next((code for code in Code if code.value == word), Code.UNKNOWN)


class Reason(str):
    """The words, with the code and the path of the field: empty if it is not about one. It holds no content of the record. Equal to any
    other text with the same words."""

    code: Code
    field: str

    def __new__(cls, words: str, code: Code, field: str = "") -> Reason:
        made = super().__new__(cls, words)
        made.code, made.field = code, field
        return made

    def __getnewargs__(self) -> tuple[str, Code, str]:  # type: ignore[override]  # of `str` it has one
        return str(self), self.code, self.field

    @staticmethod
    def of(words: str) -> Reason:
        """Of a plug-in, which may reject a record in words alone."""
        return words if isinstance(words, Reason) else Reason(words, Code.REFUSED_BY_TARGET)

    def reworded(self, words: str) -> Reason:
        """Other words for the same fault."""
        return Reason(words, self.code, self.field)


NO_VALUE = Reason("no value (a tombstone)", Code.NO_VALUE)
NOT_UTF8 = Reason("not valid UTF-8", Code.NOT_UTF8)
UNREADABLE = ("landonce.unreadable", b"the headers could not be read: the name of one is not UTF-8")
"""The one header that stands for those of a record whose headers Kafka's client cannot read: in its letter, and wherever it is stored."""


def too_large(size: int, limit: int) -> Reason:
    return Reason(f"record of {size} bytes exceeds max_record_bytes={limit}", Code.TOO_LARGE)


def of_field(path: str, problem: Reason) -> Reason:
    """`problem`: a predicate of the field."""
    return Reason(f"field {path!r} {problem}", problem.code, path)


def missing(path: str) -> Reason:
    return Reason(f"missing required field {path!r}", Code.MISSING_FIELD, path)


_MOST = 20
"""Causes that are counted apart. What refuses records may put anything into its reasons."""
_KEPT = re.compile(r"('(?:[^'\\]|\\.)*'|`[^`]*`|\w+\(\d[\d, ]*\))")
"""Names in quotes, and types with their digits."""
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d(?:[\d.,:]*\d)?")
OTHERS = "other reasons"


@dataclass(frozen=True)
class Counted:
    """How many records have a reason like this one."""

    cause: str
    records: int
    example: str
    code: Code = Code.UNKNOWN


Reasons = tuple[Counted, ...]
"""The most frequent first."""


def cause_of(reason: str) -> str:
    """The reason without the numbers of its record. Names and types are part of the cause."""
    parts = _KEPT.split(reason)
    return "".join(part if at % 2 else _NUMBER.sub("…", part) for at, part in enumerate(parts))


def counted(reasons: Iterable[str]) -> Reasons:
    """By code and cause."""
    found = Counter((each, Reason.of(each).code) for each in reasons)
    return merged(Counted(cause_of(words), records, str(words), code) for (words, code), records in found.items())


def merged(reasons: Iterable[Counted]) -> Reasons:
    """Those of several blocks, or batches. The least frequent of each code become one where there are too many."""
    ordered = _summed(reasons)
    if len(ordered) <= _MOST:
        return ordered
    named = [each for each in ordered if each.cause != OTHERS][: _MOST - 1]
    rest = (Counted(OTHERS, each.records, each.example, each.code) for each in ordered if each not in named)
    return (*named, *_summed(rest))


def _summed(reasons: Iterable[Counted]) -> Reasons:
    found: dict[tuple[Code, str], Counted] = {}
    for each in reasons:
        known = found.get((each.code, each.cause))
        records, example = (known.records if known else 0) + each.records, (known or each).example
        found[each.code, each.cause] = Counted(each.cause, records, example, each.code)
    return tuple(sorted(found.values(), key=lambda each: (each.cause == OTHERS, -each.records, each.cause, each.code)))


def by_code(reasons: Iterable[Counted]) -> dict[Code, int]:
    """How many records have each code, the most frequent first."""
    found: Counter[Code] = Counter()
    for each in reasons:
        found[each.code] += each.records
    return dict(found.most_common())


def lines(reasons: Reasons, total: int) -> list[str]:
    """For people: how many by which reason. `total` may hold letters whose reason only their file says."""
    width = len(f"{max((each.records for each in reasons), default=0):,}")
    counts = []
    for each in reasons:
        example = f", for example: {each.example}" if each.example != each.cause else ""
        counts.append(f"  {each.records:>{width},} × {each.code.value}: {each.cause}{example}")
    unknown = total - sum(each.records for each in reasons)
    return counts + ([f"  {unknown:>{width},} × of an earlier start: their files say why"] if unknown > 0 else [])
