"""Moving in: where another writer of a table stopped, so that landonce continues there without gap or overlap.

    history     what that writer left in the snapshots of the table
    events      what Iceberg's sink for Kafka Connect reports on its control topic
    connect     where the sink stopped, by its control topic, its consumer group and the table
    query       the same for a Spark Structured Streaming query, by its checkpoint and the table
    adopt       the pipeline's first position from what was found

An import that would have to guess is refused: `ImportRefused`.
"""
