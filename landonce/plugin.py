"""Everything that authors of sinks and ledgers need. Import from here, and from `landonce.testing` and `landonce.errors`, and from nowhere else.

| kind          | subclass                                       | suite                 |
|---------------|------------------------------------------------|-----------------------|
| wrapped       | nothing: `wrap` a function or a class          | `WrappedContract`     |
| deduplicating | `DeduplicatingSink`, `Target`, `BlockWriter`   | `SinkContract`        |
| transactional | `TransactionalSink`, `TransactionalTable`, `BlockTransaction`, `PlainSqlLedger` | `TransactionContract` |
| snapshot      | `SnapshotSink`, `SnapshotTable`                | `SnapshotContract`    |
| ledger        | `Ledger`                                       | `LedgerContract`      |

A sink of any kind is named in a pipeline file through a `SinkSection`, which a package offers as an entry point of the group `landonce.sinks`.
"""

from landonce import errors
from landonce.config.model import Duration
from landonce.config.part import SecretUrl
from landonce.config.secrets import remember as remember_secret
from landonce.ledger.as_text import mark_from_text, mark_to_text, state_from_text, state_to_text
from landonce.ledger.plain_sql import BlockKey, Execute, PlainSqlLedger, flip_block, read_block
from landonce.protocol.block_rows import BlockRow, Claim
from landonce.protocol.ledger import Ledger, LedgerState, Note, Totals, check_change, check_order, fenced, key
from landonce.protocol.marks import Mark, Verdict
from landonce.protocol.operate import kept_notes
from landonce.protocol.own_ledger import OwnView
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.settle import Presence, Reply
from landonce.protocol.target import TargetView
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import (
    COORDINATES,
    BlockWriter,
    DeduplicatingSink,
    Finding,
    Guarantee,
    Insert,
    Level,
    Probe,
    Sink,
    Target,
)
from landonce.sinks.promise import Promise
from landonce.sinks.section import LedgerPlace, SinkSection, TableSection
from landonce.sinks.snapshot import (
    Judge,
    Origin,
    Seen,
    SnapshotSink,
    SnapshotTable,
    TableLedger,
    origin_of,
)
from landonce.sinks.transactional import (
    Blame,
    BlockTransaction,
    TransactionalSink,
    TransactionalTable,
    Trouble,
    rows_left_out,
)
from landonce.sinks.wrapped.block import PushedBlock
from landonce.sinks.wrapped.sink import WrappedSink, wrap

__all__ = [
    "COORDINATES",
    "Blame",
    "BlockKey",
    "BlockRow",
    "BlockTransaction",
    "BlockWriter",
    "Claim",
    "DeduplicatingSink",
    "Duration",
    "Execute",
    "Field",
    "Finding",
    "Guarantee",
    "Insert",
    "Judge",
    "Ledger",
    "LedgerPlace",
    "LedgerState",
    "Level",
    "Mark",
    "Note",
    "Origin",
    "OwnView",
    "Partition",
    "PlainSqlLedger",
    "Presence",
    "Probe",
    "Promise",
    "PushedBlock",
    "Range",
    "Reply",
    "Schema",
    "SecretUrl",
    "Seen",
    "Sink",
    "SinkSection",
    "SnapshotSink",
    "SnapshotTable",
    "TableLedger",
    "TableSection",
    "Target",
    "TargetView",
    "Totals",
    "TransactionalSink",
    "TransactionalTable",
    "Trouble",
    "Verdict",
    "WrappedSink",
    "check_change",
    "check_order",
    "errors",
    "fenced",
    "flip_block",
    "kept_notes",
    "key",
    "mark_from_text",
    "mark_to_text",
    "origin_of",
    "read_block",
    "remember_secret",
    "rows_left_out",
    "state_from_text",
    "state_to_text",
    "wrap",
]
