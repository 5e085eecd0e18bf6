"""The public names of the package, pinned: taking one away or adding one is a decision."""

import subprocess
import sys

import landonce
from landonce import consumer, plugin

NAMES_OF_AUTHORS = """
    COORDINATES Blame BlockKey BlockRow BlockTransaction BlockWriter Claim DeduplicatingSink Duration
    Execute Field Finding Guarantee Insert Judge Ledger LedgerPlace LedgerState Level Mark Note Origin OwnView
    Partition PlainSqlLedger Presence Probe Promise PushedBlock Range Reply Schema SecretUrl Seen Sink SinkSection
    SnapshotSink SnapshotTable TableLedger TableSection Target TargetView Totals TransactionalSink TransactionalTable
    Trouble Verdict WrappedSink check_change check_order errors fenced flip_block kept_notes key mark_from_text
    mark_to_text origin_of read_block remember_secret rows_left_out state_from_text state_to_text wrap
"""
NAMES_OF_CONSUMERS = """
    Fenced KafkaOffsets KafkaTransaction OffsetHandler OffsetOrigin OffsetOutOfStep OffsetStep OffsetStore OffsetStoreExpired OffsetsNotSaved Partition SqlOffsets
    Stored TransactionUnsettled fenced out_of_step
"""


def test_the_public_names() -> None:
    assert landonce.__all__ == [
        "ExactlyOnceSink",
        "NotPushed",
        "Pipeline",
        "PushResult",
        "PushedBlock",
        "Totals",
        "WrappedSink",
        "clickhouse",
        "errors",
        "exactly_once",
        "iceberg",
        "load",
        "run_pipeline",
        "sql",
        "wrap",
    ]
    for name in landonce.__all__:
        assert getattr(landonce, name) is not None


def test_importing_the_package_does_not_load_spark() -> None:
    code = "import sys, landonce; sys.exit('pyspark' in sys.modules or 'confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_names_for_authors_of_sinks_and_ledgers() -> None:
    assert plugin.__all__ == NAMES_OF_AUTHORS.split()
    for name in plugin.__all__:
        assert getattr(plugin, name) is not None


def test_the_names_for_consumers() -> None:
    assert sorted(consumer.__all__) == NAMES_OF_CONSUMERS.split()
    for name in consumer.__all__:
        assert getattr(consumer, name) is not None
