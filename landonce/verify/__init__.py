"""Verify: an audit that does not trust the run.

    topic (plain consumer) ─► expect (decode, where, route) ─► judge ◄─ held (tables), letters (dead letters)
                                                                │
                                                                ├─ compare (values, if requested)
                                                              report ─► words

A plain consumer reads the topic again. It shares no code with `landonce.read.kafka.records`, only Kafka's client
library. The pipeline's own decoding, `where` and routing say what a record should have become, because they define it.
Only the bounds of the audit come from the ledger. The topic is read in windows, so memory does not grow with its size.
For an Iceberg table the audit keeps an index of offsets (`held.offsets`), and if records change rows, every key
(`keys`). Nothing is written.
"""

from landonce.verify.audit import Auditor
from landonce.verify.report import Report

__all__ = ["Auditor", "Report"]
