"""A whole run: open the ends, make the table if asked, start Spark, drive. What `landonce run` does, for programs."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from landonce.config.model import Pipeline
from landonce.record.ledger import Totals
from landonce.run.assemble import create_if_asked, make_driver, open_parts
from landonce.run.driver import Driver
from landonce.run.observe import Observer, Silent
from landonce.run.session import open_session


def run_pipeline(
    config: Pipeline,
    *,
    once: bool = False,
    observer: Observer | None = None,
    ready: Callable[[Driver], None] | None = None,
) -> Totals:
    """Runs a pipeline until it is stopped, or (`once`) until what is there has landed; gives what became of the records.

    `ready` gets the driver before it starts; `driver.stopping.set()` from a signal handler or another thread finishes the
    batch in hand. Every way out but a return is an error of `landonce.errors`, and after each of them starting again is safe.
    """
    parts = open_parts(config)
    target = parts.sink.target()
    borrowed = SparkSession.getActiveSession()
    try:
        create_if_asked(parts, target)
        session = open_session(config.pipeline, config.spark, expressions=not config.transform.empty)
        driver = make_driver(parts, target, session, observer or Silent(), once=once)
        if ready is not None:
            ready(driver)
        totals = driver.run()
        if borrowed is None:
            session.stop()
        return totals
    finally:
        target.close()
        parts.ledger.close()
