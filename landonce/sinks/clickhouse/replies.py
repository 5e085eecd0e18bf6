"""What ClickHouse's answers mean for an insert. Pure.

    answer                                               means
    ───────────────────────────────────────────────────  ──────────────────────────────────────────────────────────
    200 with the request's own query id                  ACKNOWLEDGED: the rows are there, or were before
    an exception with ClickHouse's own code
        our own throwIf: LATE                            LATE: nothing was written
        our own throwIf: ALTERED                         REFUSED: nothing was written; the table is looked at again
        out of a view behind the table                   raises ViewRefused (`worker`): the view lacks what the table has
        a code of UNDECIDED                              LOST: ClickHouse itself does not know
        a code of PERMANENT, a field too long            raises TargetRefused
        any other                                        REFUSED: the request is over, and may have landed in part
    never connected                                      REFUSED: nothing was sent
    anything else (a proxy's 5xx, a reset, a timeout)    LOST

The list of permanent codes is closed: what is not on it may pass, and is tried again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from landonce.errors import TargetRefused
from landonce.protocol.settle import Reply

LATE = "landonce: this insert came after its deadline"
ALTERED = "landonce: the columns of the table were altered"
_THROW_IF = 395

_LOGIN = {192: "unknown user", 193: "wrong password", 194: "password required", 195: "address not allowed",
          516: "authentication failed"}  # fmt: skip
_GRANT = {164: "read-only user", 291: "database access denied", 452: "setting constrained", 497: "access denied"}
_TABLE = {8: "no such column", 10: "no such column", 16: "no such column", 20: "other number of columns",
          36: "bad arguments", 43: "illegal type", 44: "illegal column", 46: "unknown function", 47: "unknown identifier",
          48: "not implemented", 50: "unknown type", 53: "type mismatch", 60: "unknown table", 62: "syntax error",
          70: "cannot convert type", 81: "unknown database", 115: "unknown setting", 218: "table is dropped",
          344: "support is disabled", 386: "no common type", 446: "function not allowed",
          764: "deduplication is not possible", 774: "table is read-only for good"}  # fmt: skip
_VALUE = {6: "cannot parse text", 27: "cannot parse input", 38: "cannot parse date", 41: "cannot parse time",
          69: "argument out of bound", 72: "cannot parse number", 128: "array too large", 131: "string too long",
          153: "illegal division", 190: "arrays of different sizes", 321: "value out of range",
          349: "NULL in a column that takes none", 376: "cannot parse UUID", 395: "a view or default refused the rows by throwIf",
          407: "decimal overflow", 467: "cannot parse Bool", 469: "violated constraint", 675: "cannot parse IPv4",
          676: "cannot parse IPv6", 691: "unknown enum element"}  # fmt: skip
_LIMIT = {158: "too many rows", 161: "too many columns", 165: "too many temporary columns", 166: "too many temporary columns",
          167: "statement too deep", 168: "statement too large", 229: "query too large", 307: "too many bytes",
          396: "too many rows or bytes"}  # fmt: skip
_ALTER = {524: "ALTER of the column is forbidden"}

PERMANENT: dict[int, str] = {**_LOGIN, **_GRANT, **_TABLE, **_VALUE, **_LIMIT, **_ALTER}
_VIEW = re.compile(rb"while pushing to view (\S+)")
_FORM = "HTML Form Exception"
"""ClickHouse's message if a field of a request is too long. Its code has other meanings too."""
UNDECIDED = frozenset({216, 319})
"""The same query id still runs; unknown status of insert."""


@dataclass(frozen=True)
class Answer:
    """The relevant parts of an HTTP answer. `code` is ClickHouse's own; a proxy does not send one."""

    status: int
    code: int | None = None
    query_id: str = ""
    data: bytes = b""

    @property
    def text(self) -> str:
        """The beginning of the body."""
        return self.data[:10_000].decode(errors="replace")

    def threw(self, message: str) -> bool:
        """Whether a `throwIf` with this message ended the statement. ClickHouse may also quote the message as a part of the statement."""
        return self.code == _THROW_IF and f"DB::Exception: {message}" in self.text

    @property
    def view(self) -> str:
        """The materialized view that failed; the table itself has the rows by then. Empty if none failed."""
        found = _VIEW.search(self.data) if self.code is not None else None
        return found[1].decode(errors="replace").rstrip(".:") if found else ""

    @property
    def said(self) -> str:
        """The message for people."""
        for ours in (LATE, ALTERED):
            if self.threw(ours):
                return ours.removeprefix("landonce: ")
        if self.code is None:  # a page of a proxy, for example
            page = " ".join(re.sub(r"<[^>]*>", " ", self.text).split())[:200]
            return f"HTTP status {self.status}, not from ClickHouse itself{': ' * bool(page)}{page}"
        return first_line(self.text) or f"code {self.code}"


def judge(answer: Answer, query_id: str, table: str) -> Reply:
    """What an answer to an insert means. Raises `TargetRefused` if waiting does not help."""
    if answer.code is None:
        proven = answer.status == 200 and answer.query_id == query_id
        return Reply.ACKNOWLEDGED if proven else Reply.LOST
    if answer.threw(LATE):
        return Reply.LATE
    if answer.threw(ALTERED):
        return Reply.REFUSED
    if answer.code in UNDECIDED:
        return Reply.LOST
    refuse_permanent(answer, table)
    return Reply.REFUSED


def refuse_permanent(answer: Answer, asked: str) -> None:
    """Raises `TargetRefused`, with the next step, if the same request would be refused again."""
    if answer.code is None or (answer.code not in PERMANENT and _FORM not in answer.text):
        return
    why = PERMANENT.get(answer.code, "request too large")
    if answer.code in _LOGIN:
        command = "correct user and password in the url of {file}, then start again"
    elif answer.code in _GRANT:
        command = "give the user of {file} the right that ClickHouse names, then `landonce check {file}`"
    elif answer.code in _VALUE:
        command = "make the table accept the value, or filter it out with `where` in {file}, then start again"
    elif answer.code in _TABLE:
        command = "landonce check {file}"
    elif answer.code in _ALTER:
        command = (
            "drop what ClickHouse names (a projection, for example), or leave `evolve` out of {file}; then start again"
        )
    else:
        command = "raise the limit that ClickHouse names in the profile of the user of {file}, or write fewer columns; then start again"
    raise TargetRefused(
        f"ClickHouse refused {asked} ({why}, code {answer.code}): {answer.said}",
        safe="Nothing of this request was acknowledged; starting again is safe.",
        command=command,
    )


def first_line(text: str) -> str:
    """The first line of a server's message, without version and stack."""
    line = re.sub(r"^Code: \d+\. ", "", text.strip().partition("\n")[0])
    line = re.sub(r"\s*\(version .*\)\s*$", "", line).removeprefix("DB::Exception: ")
    return line if len(line) <= 300 else line[:297] + "..."
