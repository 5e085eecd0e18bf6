"""The process of a local ClickHouse server. Run as a script, in a folder that holds `config.xml`.

Only this module uses chdb. It uses a private entry point of one pinned version: the engine in the wheel is a complete
ClickHouse, and starts its listeners when a query asks for them. That query has to stay open, so it sleeps for ever, at
no CPU cost. This module imports nothing of landonce.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_SERVE = """\
SYSTEM START LISTEN HTTP;
SYSTEM START LISTEN TCP;
SELECT sleepEachRow(0.5) FROM system.numbers
SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 3000000
FORMAT Null"""


def main(data: str) -> None:
    _engine().query(_SERVE, "TabSeparated", path=data)


def _engine() -> Any:
    """Loads only chdb's extension module: importing the package opens and closes an engine, and in a process
    where that happened the Kafka table engine reports "Shutdown was called"."""
    found = find_spec("chdb")
    assert found is not None
    package = ModuleType("chdb")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["chdb"] = package
    return import_module("chdb._chdb")


if __name__ == "__main__":
    del sys.path[0]  # the modules beside this file would hide others of the same name
    main(sys.argv[1])
