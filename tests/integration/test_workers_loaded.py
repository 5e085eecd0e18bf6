"""Workers are forked from a process that has loaded what they run. One that cannot load it is no worse than none."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from pyspark import SparkContext

from landonce.config.model import Spark
from landonce.run.session import open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WORK = "landonce.write.work"


def loaded(context: SparkContext) -> list[bool]:
    def ask(_: object) -> Iterator[bool]:
        yield "landonce.write.work" in sys.modules

    return context.parallelize(range(2), 2).mapPartitions(ask).collect()


@pytest.mark.parametrize(("work", "found"), [("", False), ("landonce.no_such_module", False), (WORK, True)])
def test_what_workers_begin_with(work: str, found: bool) -> None:
    session = open_session("loaded", Spark(master="local[2]"), expressions=False, work=work)
    try:
        assert loaded(session.sparkContext) == [found, found]
    finally:
        session.stop()
