"""What an error means of the storage that tables' files are in: a disk, or a bucket."""

from __future__ import annotations

import re

from landonce.config.secrets import redact
from landonce.errors import TargetRefused, TargetUnavailable

_REFUSALS = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|INVALID_SIGNATURE|MISSING_AUTHENTICATION_TOKEN|"
    r"NO_SUCH_BUCKET|SIGNATURE_DOES_NOT_MATCH|UNRECOGNIZED_CLIENT)\b"
)
"""As Arrow names them. Waiting does not help."""


def is_refusal(error: OSError) -> bool:
    """Whether the storage answered, and its answer will be the same until somebody changes something."""
    return isinstance(error, PermissionError) or _REFUSALS.search(str(error)) is not None


def refusal(error: OSError, table: str = "") -> TargetRefused:
    of = f"{table}: " if table else ""
    return TargetRefused(
        f"{of}the storage refused: {redact(str(error))[:500]}",
        safe="Nothing was committed.",
        command="give landonce the right to read and write the warehouse, or correct the storage's address and keys in "
        "`sink.iceberg.catalog` in {file}",
    )


def not_written(error: OSError, table: str = "") -> TargetRefused | TargetUnavailable:
    """The error of a file that was not written."""
    if is_refusal(error):
        return refusal(error, table)
    of = f"{table}: " if table else ""
    return TargetUnavailable(f"{of}the storage did not take a file: {redact(str(error))[:500]}")
