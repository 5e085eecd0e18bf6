"""Moving in: where another writer of a table stopped, so that landonce continues there without gap or overlap.

    connect     where Iceberg's sink for Kafka Connect stopped, by its control topic, its consumer group and the table
    query       the same for a Spark Structured Streaming query, by its checkpoint and the table
    adopt       what such a writer left in the snapshots of the table, and the pipeline's first position from what was found

An import that would have to guess is refused: `ImportRefused`.
"""
