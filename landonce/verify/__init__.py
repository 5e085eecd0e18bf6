"""Verify: an audit that trusts nothing of the run.

    read (plain consumer) ─► expect (decode, where) ─► judge ◄─ held (target), letters (dead letters)
                                                        │
                                                      report

The topic is read again by code that shares nothing with `landonce.read.records`; what a record should have become is
decided by the pipeline's own decoding and `where`, for that is the definition of it. Only the bounds of the audit come
from the ledger. Everything works in windows, so that memory does not grow with the topic. Nothing is written.
"""

from landonce.verify.audit import Auditor
from landonce.verify.report import Report

__all__ = ["Auditor", "Report"]
