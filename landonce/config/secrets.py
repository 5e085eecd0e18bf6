"""Keeps secrets out of everything that a person can read.

It remembers values that came into the pipeline file from files and commands, from environment variables whose names suggest a
secret, and every password in a URL, and replaces them with *** in messages, logs and reports. It is the last line of defence, not the
first: code must not put secrets there.
"""

from __future__ import annotations

import json
import logging
import re
from urllib.parse import quote, unquote, urlsplit

_HIDDEN = "***"
_SHORTEST = 3
_SHORTEST_LINE = 16
_known: set[str] = set()
_URL_PASSWORD = re.compile(
    r"(?P<before>[a-z][a-z0-9+.-]*://[^\s:/@]*:)(?P<secret>[^\s\"'<>]+)(?P<after>@)", re.IGNORECASE
)


def remember(secret: str) -> None:
    """From now on `secret` is replaced, plain, percent-encoded, or as JSON and Python write it. Short ones are not: ordinary words would be
    replaced too."""
    for form in {secret, quote(secret, safe=""), unquote(secret)}:
        if len(form) >= _SHORTEST:
            _known.update((form, json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1], repr(form)[1:-1]))


def remember_text(text: str) -> None:
    """As `remember`, for a text that may have several lines, such as a key: a message may hold one of them."""
    remember(text)
    lines = text.splitlines()
    for line in lines if len(lines) > 1 else ():
        if len(line) >= _SHORTEST_LINE and not line.startswith("-----"):
            remember(line)


def remember_url(url: str) -> None:
    """Remembers the password of a URL, if it has one."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return
    if password:
        remember(password)


def redact(text: str) -> str:
    """`text` without known secrets, and without passwords in URLs."""
    text = _URL_PASSWORD.sub(lambda found: found["before"] + _HIDDEN + found["after"], text)
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


class RedactingFilter(logging.Filter):
    """Removes secrets from every log record, its arguments and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = redact(record.getMessage())
        record.args = None
        if record.exc_info:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
        return True
