"""What ClickHouse's answers mean for an insert. Pure.

    answer                                               means
    ───────────────────────────────────────────────────  ──────────────────────────────────────────────────────────
    200 with the request's own query id                  ACKNOWLEDGED: the rows are there, or were before
    an exception with ClickHouse's own code
        our own throwIf                                  LATE: nothing was written
        a code of UNDECIDED                              LOST: ClickHouse itself does not know
        a code of PERMANENT                              raises TargetRefused
        any other                                        REFUSED: the request is over, and may have landed in part
    never connected                                      REFUSED: nothing was sent
    anything else (a proxy's 5xx, a reset, a timeout)    LOST

The list of permanent codes is closed: what is not on it may pass, and is tried again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from landonce.errors import TargetRefused
from landonce.write.settle import Reply

LATE = "landonce: this insert came after its deadline"

_LOGIN = {192: "unknown user", 193: "wrong password", 194: "password required", 195: "address not allowed",
          516: "authentication failed"}  # fmt: skip
_GRANT = {164: "read-only user", 291: "database access denied", 452: "setting constrained", 497: "access denied"}
_TABLE = {8: "no such column", 10: "no such column", 16: "no such column", 20: "other number of columns",
          36: "bad arguments", 43: "illegal type", 44: "illegal column", 47: "unknown identifier", 48: "not implemented",
          50: "unknown type", 53: "type mismatch", 60: "unknown table", 62: "syntax error", 70: "cannot convert type",
          81: "unknown database", 115: "unknown setting", 218: "table is dropped"}  # fmt: skip
_VALUE = {6: "cannot parse text", 27: "cannot parse input", 69: "argument out of bound", 131: "string too long",
          321: "value out of range", 349: "NULL in a column that takes none", 376: "cannot parse UUID",
          395: "a view or default refused the rows by throwIf", 407: "decimal overflow", 469: "violated constraint",
          675: "cannot parse IPv4", 676: "cannot parse IPv6", 691: "unknown enum element"}  # fmt: skip

PERMANENT: dict[int, str] = {**_LOGIN, **_GRANT, **_TABLE, **_VALUE}
UNDECIDED = frozenset({216, 319})
"""The same query id still runs; unknown status of insert."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, as far as it matters. `code` is ClickHouse's own, which no proxy makes up."""

    status: int
    code: int | None = None
    query_id: str = ""
    data: bytes = b""

    @property
    def text(self) -> str:
        """What it says, as far as anyone wants to read."""
        return self.data[:10_000].decode(errors="replace")


def judge(answer: Answer, query_id: str, table: str) -> Reply:
    """What an answer to an insert means. Raises `TargetRefused` for what waiting does not mend."""
    if answer.code is None:
        proven = answer.status == 200 and answer.query_id == query_id
        return Reply.ACKNOWLEDGED if proven else Reply.LOST
    if LATE in answer.text:
        return Reply.LATE
    if answer.code in UNDECIDED:
        return Reply.LOST
    if answer.code in PERMANENT:
        raise refusal(answer.code, answer.text, table)
    return Reply.REFUSED


def refusal(code: int, text: str, asked: str) -> TargetRefused:
    """The error for a permanent code, with what to do about it."""
    return TargetRefused(
        f"ClickHouse refused {asked} ({PERMANENT[code]}, code {code}): {first_line(text)}",
        safe="Nothing of this request was acknowledged; starting again is safe.",
        command=_what_to_do(code),
    )


def first_line(text: str) -> str:
    """The part of a server's message that helps, without version and stack."""
    line = re.sub(r"^Code: \d+\. ", "", text.strip().partition("\n")[0])
    line = re.sub(r"\s*\(version .*\)\s*$", "", line).removeprefix("DB::Exception: ")
    return line if len(line) <= 300 else line[:297] + "..."


def _what_to_do(code: int) -> str:
    if code in _LOGIN:
        return "correct user and password in the url of {file}, then start again"
    if code in _GRANT:
        return "give the user of {file} the right that ClickHouse names, then `landonce check {file}`"
    if code in _VALUE:
        return "make the table accept the value, or filter it out with `where` in {file}, then start again"
    return "landonce check {file}"
