"""Small values of the pipeline file: durations like `15s`, sizes like `64MB`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmg]i?b|b)?\s*$", re.IGNORECASE)
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def seconds(value: Any) -> float:
    """`500ms`, `15s`, `2m`, `1h`, or a plain number of seconds."""
    found = _DURATION.match(str(value)) if not isinstance(value, bool) else None
    if found is None:
        raise ValueError("is not a duration; write for example 500ms, 15s, 2m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def size(value: Any) -> int:
    """`64MB`, `256MiB`, or a plain number of bytes."""
    found = _SIZE.match(str(value)) if not isinstance(value, bool) else None
    if found is None:
        raise ValueError("is not a size; write for example 64MB or 256MiB")
    return int(float(found[1]) * _BYTES[(found[2] or "b").lower()])


Duration = Annotated[float, BeforeValidator(seconds)]
Size = Annotated[int, BeforeValidator(size)]
