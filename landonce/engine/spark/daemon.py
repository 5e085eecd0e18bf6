"""The process that Spark forks a driver's Python workers from, with what they need loaded in it already: a worker begins at once,
and all of them share the memory.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from importlib import import_module

LOADED = "LANDONCE_WORKERS_LOAD"
"""Names modules in the environment, with commas between them."""


def load() -> None:
    """What cannot be loaded here, a worker fails to load in its turn, and says so."""
    for name in os.environ[LOADED].split(","):
        with suppress(Exception):
            import_module(name)
    gc.freeze()


if __name__ == "__main__":
    load()
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]
