"""Ledgers that other packages offer, by entry point in the group `landonce.ledgers`.

An entry point names a function `open_ledger(pipeline, folder, **options)` that returns a `Ledger` and does not connect
yet. `folder` is the folder of the pipeline file: paths in the options are relative to it, so every start opens the same
ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from landonce.config.secrets import redact
from landonce.errors import ConfigError, LandonceError
from landonce.plugins import plug_in
from landonce.protocol.ledger import Ledger

GROUP = "landonce.ledgers"
_KEY = "ledger.plugin"


def plugged_ledger(name: str, options: Mapping[str, Any], pipeline: str, folder: Path) -> Ledger:
    """The ledger that the plug-in of this name opens."""
    opens = plug_in(GROUP, name, key=f"{_KEY}.name", instead="name `sqlite` or `postgres`")
    try:
        ledger = opens(pipeline, folder, **options)
    except LandonceError:
        raise
    except Exception as error:
        raise ConfigError(redact(f"{_KEY}: {name} failed: {type(error).__name__}: {error}")) from None
    if not isinstance(ledger, Ledger) or ledger.pipeline != pipeline:
        raise ConfigError(f"{_KEY}: {name} gives {type(ledger).__name__}, which is no ledger of pipeline {pipeline!r}.")
    return ledger
