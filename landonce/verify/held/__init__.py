"""What a target holds, for the audit: one port, and one module for each kind of target.

    port        the interface of any table
    clickhouse  SQL of its own, window by window
    iceberg     one pinned snapshot: every data file is read once, into an index of offsets
    iceberg_keys  the same for tables whose rows records change: all keys
        scan        the pinned table and its rows
        snapshot    the snapshot, its live files, and files that are registered twice
        spans       what those files hold
        deletes     which rows of a file are deleted
        columns     some columns of one data file, by field id
        offsets     the index: bitmaps of offsets per partition
    clickhouse_values, iceberg_values, sql_values  every value of every row, piece by piece
        whole       columns of one data file with everything inside

This shares no code with what writes, except the description of a catalog.
"""

from landonce.verify.held.port import Doubled, Held, HeldKeys, Reference, Span

__all__ = ["Doubled", "Held", "HeldKeys", "Reference", "Span"]
