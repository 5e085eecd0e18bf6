"""Verify: an audit that trusts nothing of the run.

    topic (plain consumer) ─► expect (decode, where, route) ─► judge ◄─ held (tables), letters (dead letters)
                                                                │
                                                                ├─ compare (values, where asked)
                                                              report ─► words

The topic is read again by a plain consumer that shares no code with `landonce.read.kafka.records`, only Kafka's client library; what a
record should have become is decided by the pipeline's own decoding, `where` and routing, for they are the definition of it. Only the bounds of the audit
come from the ledger. The topic is read in windows, so that memory does not grow with its bytes. Of a table in Iceberg an
index of offsets is kept (`held.offsets`), and where records change rows, every key (`keys`). Nothing is written.
"""

from landonce.verify.audit import Auditor
from landonce.verify.report import Report

__all__ = ["Auditor", "Report"]
