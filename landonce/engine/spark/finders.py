"""What PySpark does before every task, and need not do.

It has Python look at all places for modules again, and a zip file among them is read again from its first entry to its last,
in Python: PySpark itself is one, and so is every jar of `spark.jars.packages`, which Spark puts on the path of modules too.
With some of these, a task waits for half a second before it begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar
from zipimport import zipimporter

Recipe = TypeVar("Recipe")
Task = TypeVar("Task")
Result = TypeVar("Result")


def sparing(work: Callable[[Recipe, Task], Result], recipe: Recipe, task: Task) -> Result:
    """Does a worker's task, and leaves nothing behind that would have to be read again before the next one."""
    try:
        return work(recipe, task)
    finally:
        forget_zips()


def forget_zips() -> None:
    """They are found again when a module is looked for; what is in them, Python remembers elsewhere."""
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[place]
