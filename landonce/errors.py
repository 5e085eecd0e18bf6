"""Every error that landonce raises on purpose, in one tree.

    LandonceError
    ├── ConfigError               the pipeline file is wrong; nothing was started
    ├── Fenced                    another driver took the pipeline over; this one changed nothing more
    │   ├── LedgerSetBack         the ledger, or the table that is it, was restored under a running driver; start again
    │   └── OffsetStoreExpired    a consumer was silent for too long; its partitions may be another's by now
    ├── OffsetOutOfStep           an offset does not follow the one that is stored; roll the transaction back
    ├── TransactionUnsettled      offsets were saved in a transaction, and nobody said how it ended
    ├── OffsetsNotSaved           a consumer's transaction with results and no offset; the results would come twice
    ├── RolledBack                a table that is its own ledger was rolled back; the driver starts anew from there
    ├── TableReshaped             a table's columns changed under a batch; the driver writes it again
    ├── NotPushed                 a wrapped sink says that certainly nothing of a block arrived; it is pushed again
    ├── Transient                 may pass by itself; retried with backoff before anyone sees it
    │   ├── SourceUnavailable     Kafka did not answer
    │   ├── TargetUnavailable     the target did not answer
    │   └── LedgerUnavailable     the ledger did not answer
    ├── LocalStackError           a server that landonce starts for trying and testing did not start or answer
    ├── DemoFailed                the demo could not be played to its end
    ├── NothingToDo               an operator asked for a change that the pipeline does not need
    ├── Stalled                   a transient error outlasted its budget; starting again is safe
    │   └── SparkLost             Spark's JVM ended, or did not start; starting again is safe
    └── Halt                      needs a person; nothing was lost, and `command` goes on
        ├── ClusterChanged        the brokers are not the ones of the ledger
        ├── TopicRecreated        same name, other topic
        ├── TopicMissing          the topic is not there
        ├── PartitionVanished     a partition that the ledger knows is not there
        ├── RetentionOverrun      records were deleted before they were read
        ├── PositionBeyondEnd     the ledger is ahead of the topic
        ├── PlanChanged           the pending plan was made by another transform, schema or decoder
        ├── TransformFailed       a `select` or `where` expression failed on a record
        ├── Unbalanced            read ≠ landed + dead-lettered + filtered
        ├── TargetAhead           the target holds more than the ledger knows, and not exactly
        ├── PartialPresence       a block is there in part, where it can only be there whole or not at all
        ├── DuplicatePresent      the target holds a coordinate more than once
        ├── RowsNotKept           the target acknowledges rows again and again, and does not keep them
        ├── AnotherWriter         a driver with another ledger writes this pipeline's records
        ├── TargetRefused         the target refused for a reason that waiting does not mend
        ├── ViewRefused           a view behind the table failed, and lacks rows that the table has
        ├── TableUnfit            the table cannot hold the guarantee
        ├── TableReplaced         same name, other table, or none
        ├── RollbackRefused       a table was rolled back, and the pipeline may not follow
        ├── PositionUncertain     a table's history is gone, and with it how far it had come
        ├── GapRefused            an outside source skipped offsets
        ├── RewindRefused         an outside source went back to where it must not
        ├── QueryRefused          a streaming query is not one that can be delivered exactly once
        ├── ImportRefused         another writer of the table did not stop cleanly, or nothing tells where it did
        ├── OutcomeUnknown        whether a write landed is not known, and the sink cannot be asked
        ├── NothingToInfer        no schema was declared and there is no record to take one from
        ├── PlanPending           a plan is pending, and what was asked for would forget it
        ├── LettersUnreadable     a dead-letter file is damaged
        ├── DeadLettersMissing    a worker's dead letters are not in the driver's folder
        ├── DeadLettersUnwritable a worker cannot write dead letters
        ├── BlockTooLarge         a block holds more bytes than a worker should ever hold
        ├── SourceRefused         Kafka refused for a reason that waiting does not mend
        ├── LedgerTooNew          the ledger was written by a newer landonce
        └── LedgerUnreadable      the ledger is not one, or is damaged

A message says what happened, what is safe, and the command that goes on. No message ever holds a secret.
"""

from __future__ import annotations


class LandonceError(Exception):
    """The root of the tree. `exit_code` is what the command line ends with."""

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
            parts.append(f"To go on: {self.command}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.safe, self.command))


def _rebuild(kind: type[LandonceError], what: str, safe: str, command: str) -> LandonceError:
    return kind(what, safe=safe, command=command)


class ConfigError(LandonceError):
    """The pipeline file is wrong; nothing was started."""

    exit_code = 2


class Fenced(LandonceError):
    """Another driver took the pipeline over; this one changed nothing more."""

    exit_code = 4


class LedgerSetBack(Fenced):
    """The ledger holds an earlier state than this driver's, or none: it was restored, and nobody else goes on."""

    exit_code = 5


class OffsetStoreExpired(Fenced):
    """A consumer was silent for too long; its partitions may be another's by now."""


class OffsetOutOfStep(LandonceError):
    """An offset does not follow the one that is stored. The transaction must roll back."""


class TransactionUnsettled(LandonceError):
    """Offsets were saved in a transaction, and nobody said how it ended."""


class OffsetsNotSaved(LandonceError):
    """Records were given out, and a transaction ended with no offset in it: its results would come again."""


class RolledBack(LandonceError):
    """A table that is its own ledger was rolled back. The driver starts anew from what the table says now."""


class TableReshaped(LandonceError):
    """The columns of a table are not those that a batch was written for. The driver looks at it and writes again."""


class NotPushed(LandonceError):
    """A wrapped sink raises it to say that certainly nothing of a block arrived. It is pushed again."""


class Transient(LandonceError):
    """May pass by itself."""

    exit_code = 5


class SourceUnavailable(Transient):
    """Kafka did not answer."""


class TargetUnavailable(Transient):
    """The target did not answer."""


class LedgerUnavailable(Transient):
    """The ledger did not answer."""


class Stalled(LandonceError):
    """A transient error outlasted its budget."""

    exit_code = 5


class SparkLost(Stalled):
    """Spark's JVM ended. It is not waited for: starting again is what helps, and is safe."""


class Halt(LandonceError):
    """Needs a person. Nothing was lost; `command` goes on."""

    exit_code = 3


class ClusterChanged(Halt):
    """The brokers are not the ones of the ledger."""


class TopicRecreated(Halt):
    """Same name, other topic."""


class TopicMissing(Halt):
    """The topic is not there."""


class PartitionVanished(Halt):
    """A partition that the ledger knows is not there."""


class RetentionOverrun(Halt):
    """Records were deleted before they were read."""


class PositionBeyondEnd(Halt):
    """The ledger is ahead of the topic."""


class PlanChanged(Halt):
    """The pending plan was made by another transform, schema or decoder."""


class TransformFailed(Halt):
    """A `select` or `where` expression failed on a record."""


class Unbalanced(Halt):
    """read ≠ landed + dead-lettered + filtered."""


class TargetAhead(Halt):
    """The target holds more than the ledger knows, and not exactly."""


class PartialPresence(Halt):
    """A block is there in part, where it can only be there whole or not at all."""


class DuplicatePresent(Halt):
    """The target holds a coordinate more than once."""


class RowsNotKept(Halt):
    """The target acknowledges rows again and again, and does not keep them."""


class AnotherWriter(Halt):
    """The target holds records of this pipeline that its driver did not write: there is a driver with another ledger."""


class TargetRefused(Halt):
    """The target refused for a reason that waiting does not mend."""


class ViewRefused(Halt):
    """A view behind the table failed, and lacks rows that the table has."""


class TableUnfit(Halt):
    """The table cannot hold the guarantee."""


class TableReplaced(Halt):
    """Same name, other table, or none."""


class RollbackRefused(Halt):
    """A table was rolled back, and the pipeline may not follow."""


class PositionUncertain(Halt):
    """A table's history is gone, and with it how far it had come."""


class GapRefused(Halt):
    """An outside source skipped offsets."""


class RewindRefused(Halt):
    """An outside source went back to where it must not."""


class QueryRefused(Halt):
    """A streaming query is not one that can be delivered exactly once."""


class ImportRefused(Halt):
    """Another writer of the table did not stop cleanly, or nothing tells where it did."""


class OutcomeUnknown(Halt):
    """Whether a write landed is not known, and the sink cannot be asked."""


class NothingToInfer(Halt):
    """No schema was declared and there is no record to take one from."""


class LedgerTooNew(Halt):
    """The ledger was written by a newer landonce."""


class LedgerUnreadable(Halt):
    """The ledger is not one, or is damaged."""


class LocalStackError(LandonceError):
    """A local server or one of its parts is missing, did not start or did not answer; the message says what to do."""


class DemoFailed(LandonceError):
    """The demo could not be played to its end."""


class NothingToDo(LandonceError):
    """An operator asked for a change that the pipeline does not need. Nothing was changed."""


class PlanPending(Halt):
    """A plan is pending, and what was asked for would forget it."""


class LettersUnreadable(Halt):
    """A dead-letter file is damaged."""


class DeadLettersMissing(Halt):
    """A worker's dead letters are not in the driver's folder."""


class DeadLettersUnwritable(Halt):
    """A worker cannot write dead letters."""


class BlockTooLarge(Halt):
    """A block holds more bytes than a worker should ever hold."""


class SourceRefused(Halt):
    """Kafka refused for a reason that waiting does not mend."""
