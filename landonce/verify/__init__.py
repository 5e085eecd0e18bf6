"""Verify: an audit that does not trust the run.

    topic (plain consumer) ─► expect (decode, where, route) ─► judge ◄─ the sink's tables, topic (dead letters)
                                                                │
                                                                ├─ compare (values, if requested)
                                                              report ─► words

A plain consumer reads the topic again. It shares no code with `landonce.read.kafka.records`, only Kafka's client
library. The pipeline's own decoding, `where` and routing say what a record should have become, because they define it.
Only the bounds of the audit come from the ledger. The topic is read in windows, so memory does not grow with its size.
What the tables hold is asked of the sink (`Sink.held`, the port is `landonce.sinks.audit`); if records change rows,
every key is kept in memory (`keys`). With `dedup`, an id of each record is kept, and of the records of one event exactly one must have landed
(`events`). Nothing is written.
"""

from landonce.verify.audit import Auditor
from landonce.verify.report import Report

__all__ = ["Auditor", "Report"]
