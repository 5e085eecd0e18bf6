"""What the coordinates are called in an Iceberg table.

Iceberg's readers have a metadata column `_partition` of their own, beside `_file` and `_pos`: Spark can neither read nor
merge nor compact a table with a column of that name.
"""

from __future__ import annotations

import pyarrow as pa

TOPIC, PARTITION, OFFSET = "_topic", "_kafka_partition", "_offset"
COLUMNS = (TOPIC, PARTITION, OFFSET)


def renamed(rows: pa.Table) -> pa.Table:
    """Rows with coordinates as landonce calls them, under the names that the table has."""
    return rows.rename_columns([PARTITION if name == "_partition" else name for name in rows.column_names])
