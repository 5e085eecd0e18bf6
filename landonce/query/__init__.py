"""Users' own Structured Streaming queries, delivered exactly once through `foreachBatch`: the same machine and performers as pipelines.

once       `exactly_once`, which Spark calls for every micro-batch    running   the running query, as Spark knows it
assemble   from what a user says to a driver                          examine   which queries are taken, and why not
rows       from a DataFrame to blocks: the workers of a query
"""
