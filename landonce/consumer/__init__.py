"""Keeps a consumer's offsets beside its results, for `confluent_kafka.Consumer`: both in one transaction.

    from landonce.consumer import OffsetStore, SqlOffsets

    with OffsetStore.connect(config, ["orders"], SqlOffsets(engine)) as store:
        while messages := store.consume(500, timeout=5.0):
            with store.transaction() as connection:
                connection.execute(insert(results), [work(each) for each in messages])
                store.save_many(messages, connection)

This package needs neither Spark nor Arrow: it imports only confluent-kafka and SQLAlchemy.
"""

from landonce.consumer.kafka import KafkaOffsets, KafkaTransaction
from landonce.consumer.offsets import OffsetHandler, OffsetOrigin, OffsetStep, Stored, fenced, out_of_step
from landonce.consumer.sql import SqlOffsets
from landonce.consumer.store import OffsetStore
from landonce.errors import Fenced, OffsetOutOfStep, OffsetsNotSaved, OffsetStoreExpired, TransactionUnsettled
from landonce.protocol.ranges import Partition

__all__ = [
    "Fenced",
    "KafkaOffsets",
    "KafkaTransaction",
    "OffsetHandler",
    "OffsetOrigin",
    "OffsetOutOfStep",
    "OffsetStep",
    "OffsetStore",
    "OffsetStoreExpired",
    "OffsetsNotSaved",
    "Partition",
    "SqlOffsets",
    "Stored",
    "TransactionUnsettled",
    "fenced",
    "out_of_step",
]
