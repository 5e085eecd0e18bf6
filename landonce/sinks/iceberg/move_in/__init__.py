"""Moving in: where another writer of a table stopped, so that landonce goes on there without gap or overlap.

    avro, events          what Iceberg's sink for Kafka Connect says on its control topic
    control               asks Kafka for that, and for the sink's consumer groups
    connect               where the sink stopped, or why that cannot be told yet
    checkpoint, query     the same for a Spark Structured Streaming query and its checkpoint
    tables                what those two wrote into the snapshots of the table
    adopt                 the pipeline's first position from what was found

Only `control`, `checkpoint` and `tables` do I/O. What cannot be told is refused: `ImportRefused`.
"""
