"""Every error that landonce raises on purpose, in one tree.

    LandonceError
    ├── ConfigError               the pipeline file is wrong; nothing was started
    ├── Fenced                    another driver took over the pipeline; this driver changes nothing more
    │   ├── LedgerSetBack         the ledger, or the table that is one, was restored under a running driver; start again
    │   └── OffsetStoreExpired    a consumer was silent for too long; another consumer may have its partitions
    ├── OffsetOutOfStep           an offset does not follow the stored one; roll the transaction back
    ├── TransactionUnsettled      offsets were saved in a transaction, and its end was not reported
    ├── OffsetsNotSaved           a consumer's transaction has results but no offset; the results would come twice
    ├── RolledBack                a table that is its own ledger was rolled back; the driver restarts from its position
    ├── TableReshaped             a table's columns changed during a batch; the driver writes the batch again
    ├── RunGone                   ids were merged or have expired, or events were removed, while they are read; they are listed again
    ├── NotPushed                 a wrapped sink reports that nothing of a block arrived; landonce pushes it again
    ├── Transient                 may pass by itself; retried with backoff before anyone sees it
    │   ├── SourceUnavailable     Kafka did not answer
    │   │   └── RegistryUnavailable   the schema registry did not answer
    │   ├── TargetUnavailable     the target did not answer
    │   └── LedgerUnavailable     the ledger did not answer
    ├── LocalStackError           a local server that landonce starts did not start or did not answer
    ├── DemoFailed                the demo did not reach its end
    ├── NothingToDo               an operator asked for a change that the pipeline does not need
    ├── Stalled                   a transient error lasted longer than its budget; it is safe to start again
    │   └── SparkLost             Spark's JVM ended or did not start; it is safe to start again
    └── Halt                      a person must act; nothing was lost, and `command` is the next step
        ├── ClusterChanged        the brokers belong to another cluster than the ledger's
        ├── TopicRecreated        the topic was deleted and created again under the same name
        ├── TopicMissing          the topic does not exist
        ├── PartitionVanished     a partition that the ledger knows does not exist
        ├── RetentionOverrun      Kafka deleted records before they were read
        ├── PositionBeyondEnd     the ledger is ahead of the topic
        ├── StartRefused          a new pipeline cannot begin where its file says
        ├── PlanChanged           another transform, schema or decoder made the pending plan
        ├── TransformFailed       a `select` or `where` expression failed on a record
        ├── BadRecord             a record cannot land, and the pipeline file says that the first one halts the run
        ├── TooManyDeadLetters    more records cannot land than the pipeline file allows
        ├── Unbalanced            read ≠ landed + dead-lettered + filtered
        ├── TargetAhead           the target holds more than the ledger knows, and the difference is not exact
        ├── PartialPresence       part of a block is present, where a block is whole or absent
        ├── DuplicatePresent      the target holds a coordinate more than once
        ├── RowsNotKept           the target acknowledges rows repeatedly and does not keep them
        ├── AnotherWriter         a driver with another ledger writes this pipeline's records
        ├── TargetRefused         the target refused for a reason that waiting does not fix
        ├── ViewRefused           a view behind the table failed and lacks rows that the table has
        ├── TableUnfit            the table cannot hold the guarantee
        ├── ColumnGone            a column that rows were sent for was dropped or renamed
        ├── TableReplaced         the name belongs to another table now, or to none
        ├── RollbackRefused       a table was rolled back, and the pipeline is configured not to follow
        ├── PositionUncertain     a table's history is gone, and its position with it
        ├── GapRefused            a query or a push skipped offsets
        ├── RewindRefused         a query or a push went back further than it may
        ├── QueryRefused          a streaming query cannot be delivered exactly once
        ├── PushRefused           rows that a program pushes cannot be delivered exactly once
        ├── SeekRefused           the position cannot be moved there, or not exactly
        ├── ImportRefused         another writer of the table did not stop cleanly, or its position is unknown
        ├── OutcomeUnknown        nobody knows whether a write landed, and the sink cannot be asked
        ├── NothingToInfer        no schema is declared, and there is no record to infer one from
        ├── PlanPending           a plan is pending, and the command would discard it
        ├── ReplayRefused         dead letters cannot land in place
        ├── LettersUnreadable     a dead-letter file is damaged
        ├── DeadLettersMissing    a worker's dead letters are not in the driver's folder
        ├── DeadLettersUnwritable dead letters cannot be written
        ├── DeadLettersUnsure     nobody can see which dead letters are in their topic
        ├── BlockTooLarge         a block holds more bytes than a worker may hold
        ├── CertificateRefused    the certificate of a server is not trusted, or a server does not accept the client's
        ├── SourceRefused         Kafka refused for a reason that waiting does not fix
        │   └── RegistryRefused   the schema registry refused, or is none
        ├── KeyRuleChanged        the store of deduplication holds ids of another key rule, or a schema marks another key
        ├── StoreDamaged          the store of deduplication does not hold the bytes that were written to it
        ├── StoreBehind           the target holds events that the store does not know: it was lost or restored
        ├── LedgerTooNew          a newer landonce wrote the ledger
        └── LedgerUnreadable      the ledger is damaged, or is not a ledger

A message says what happened, what is safe, and the next step. No message ever holds a secret.
"""

from __future__ import annotations


class LandonceError(Exception):
    """The root of the tree. `exit_code` is the exit code of the command line."""

    exit_code = 1

    def __init__(self, what: str, *, safe: str = "", command: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.safe = safe
        self.command = command

    def __str__(self) -> str:
        parts = [self.what]
        if self.safe:
            parts.append(self.safe)
        if self.command:
            parts.append(f"Next step: {self.command}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.safe, self.command))


def _rebuild(kind: type[LandonceError], what: str, safe: str, command: str) -> LandonceError:
    return kind(what, safe=safe, command=command)


class ConfigError(LandonceError):
    """The pipeline file is wrong; nothing was started."""

    exit_code = 2


class Fenced(LandonceError):
    """Another driver took over the pipeline; this driver changes nothing more."""

    exit_code = 4


class LedgerSetBack(Fenced):
    """The ledger is older than this driver's state, or gone: it was restored. No other driver has the pipeline."""

    exit_code = 5


class OffsetStoreExpired(Fenced):
    """A consumer was silent for too long; another consumer may have its partitions."""


class OffsetOutOfStep(LandonceError):
    """An offset does not follow the stored one. The transaction must roll back."""


class TransactionUnsettled(LandonceError):
    """Offsets were saved in a transaction, and its end was not reported."""


class OffsetsNotSaved(LandonceError):
    """Records were given out, and a transaction ended without an offset: its results would come again."""


class RolledBack(LandonceError):
    """A table that is its own ledger was rolled back. The driver restarts from the position that the table has now."""


class TableReshaped(LandonceError):
    """The columns of a table changed after a batch was prepared. The driver examines the table and writes again."""


class RunGone(LandonceError):
    """A run of ids, or a chunk of events, left the deduplication store while it was fetched: it was merged or removed. List them again."""


class NotPushed(LandonceError):
    """A wrapped sink raises it when certainly nothing of a block arrived. landonce pushes the block again."""


class Transient(LandonceError):
    """May pass by itself."""

    exit_code = 5


class SourceUnavailable(Transient):
    """Kafka did not answer."""


class RegistryUnavailable(SourceUnavailable):
    """The schema registry did not answer."""


class TargetUnavailable(Transient):
    """The target did not answer."""


class LedgerUnavailable(Transient):
    """The ledger did not answer."""


class Stalled(LandonceError):
    """A transient error lasted longer than its budget."""

    exit_code = 5


class SparkLost(Stalled):
    """Spark's JVM ended. Waiting does not help; it is safe to start again."""


class Halt(LandonceError):
    """A person must act. Nothing was lost; `command` is the next step."""

    exit_code = 3


class ClusterChanged(Halt):
    """The brokers belong to another cluster than the ledger's."""


class TopicRecreated(Halt):
    """The topic was deleted and created again under the same name."""


class TopicMissing(Halt):
    """The topic does not exist."""


class PartitionVanished(Halt):
    """A partition that the ledger knows does not exist."""


class RetentionOverrun(Halt):
    """Kafka deleted records before they were read."""


class PositionBeyondEnd(Halt):
    """The ledger is ahead of the topic."""


class StartRefused(Halt):
    """A new pipeline cannot begin where `start` says; it does not begin anywhere else."""


class PlanChanged(Halt):
    """Another transform, schema or decoder made the pending plan."""


class TransformFailed(Halt):
    """A `select` or `where` expression failed on a record."""


class BadRecord(Halt):
    """A record cannot land, and the pipeline file says that the first one halts the run."""


class TooManyDeadLetters(Halt):
    """More records cannot land than the pipeline file allows."""


class Unbalanced(Halt):
    """read ≠ landed + dead-lettered + filtered."""


class TargetAhead(Halt):
    """The target holds more than the ledger knows, and the difference is not exact."""


class PartialPresence(Halt):
    """Part of a block is present, where a block is whole or absent."""


class DuplicatePresent(Halt):
    """The target holds a coordinate more than once."""


class RowsNotKept(Halt):
    """The target acknowledges rows repeatedly and does not keep them."""


class AnotherWriter(Halt):
    """The target holds records of this pipeline that its driver did not write: another driver has another ledger."""


class TargetRefused(Halt):
    """The target refused for a reason that waiting does not fix."""


class ViewRefused(Halt):
    """A view behind the table failed and lacks rows that the table has."""


class TableUnfit(Halt):
    """The table cannot hold the guarantee."""


class ColumnGone(Halt):
    """A column that rows were sent for was dropped or renamed, and records still hold its field."""


class TableReplaced(Halt):
    """The name belongs to another table now, or to none."""


class RollbackRefused(Halt):
    """A table was rolled back, and the pipeline is configured not to follow."""


class PositionUncertain(Halt):
    """A table's history is gone, and its position with it."""


class GapRefused(Halt):
    """A query skipped offsets."""


class RewindRefused(Halt):
    """A query went back further than it may."""


class QueryRefused(Halt):
    """A streaming query cannot be delivered exactly once."""


class PushRefused(Halt):
    """Rows that a program pushes cannot be delivered exactly once."""


class SeekRefused(Halt):
    """The position cannot be moved there, or what is delivered again would be there twice."""


class ImportRefused(Halt):
    """Another writer of the table did not stop cleanly, or its position is unknown."""


class OutcomeUnknown(Halt):
    """Nobody knows whether a write landed, and the sink cannot be asked."""


class NothingToInfer(Halt):
    """No schema is declared, and there is no record to infer one from."""


class LedgerTooNew(Halt):
    """A newer landonce wrote the ledger."""


class LedgerUnreadable(Halt):
    """The ledger is damaged, or is not a ledger."""


class LocalStackError(LandonceError):
    """A local server, or a part of it, is missing, did not start or did not answer. The message says what to do."""


class DemoFailed(LandonceError):
    """The demo did not reach its end."""


class NothingToDo(LandonceError):
    """An operator asked for a change that the pipeline does not need. Nothing was changed."""


class PlanPending(Halt):
    """A plan is pending, and the command would discard it."""


class ReplayRefused(Halt):
    """Dead letters cannot land in place: nothing proves that it would be exact."""


class LettersUnreadable(Halt):
    """A dead-letter file is damaged."""


class DeadLettersMissing(Halt):
    """A worker's dead letters are not in the driver's folder."""


class DeadLettersUnwritable(Halt):
    """Dead letters cannot be written to their folder or their topic."""


class DeadLettersUnsure(Halt):
    """Dead letters may be in their topic already, and the part of it to look at is gone."""


class BlockTooLarge(Halt):
    """A block holds more bytes than a worker may hold."""


class CertificateRefused(Halt):
    """The certificate of a server is not trusted, or a server does not accept the client's."""


class SourceRefused(Halt):
    """Kafka refused for a reason that waiting does not fix."""


class RegistryRefused(SourceRefused):
    """The schema registry refused for a reason that waiting does not fix, or is not a schema registry."""


class KeyRuleChanged(Halt):
    """The store holds ids that another key rule made, or a version of a schema marks another key."""


class StoreDamaged(Halt):
    """The store does not hold the bytes that were written to it."""


class StoreBehind(Halt):
    """The target holds events that the store does not know: the store was lost or restored."""
