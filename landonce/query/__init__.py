"""Users' own Structured Streaming queries, delivered exactly once through `foreachBatch`.

sinks       what a query may write to                 protocol   every step of a micro-batch, and what follows it (pure)
offsets     from the offset log to ranges (pure)      performers what the steps do outside, for each kind of sink
running     the running query, as Spark knows it      rows       from a DataFrame to blocks, and the worker's half
examine     which queries are taken, and why not      once       `exactly_once`, which Spark calls for every micro-batch
snapshots   `protocol` for tables that are ledgers    lake       its performer, and the worker's half: Apache Iceberg
lineage     where the rows' coordinates come from     pushing    performer and the worker's half: wrapped sinks
judging     what came, against the ledger (pure)      landing    the worker's half: ClickHouse and databases
placing     which block a row belongs to              assemble   from what a user says to the parts
fit         whether rows fit into a table             refusals   what is refused, in words
"""
