"""Check: everything that can be said of a pipeline before it starts. Reads only: makes no table, no file, no topic.

`sections` asks the parts, one after another, and goes on where one is away: `common` those that every pipeline has,
`clickhouse`, `iceberg`, `sql` and `wrapped` those of a sink; `retention` asks Kafka how long records are kept; `promise` says what is
guaranteed, and why.
"""

from landonce.check.found import Check, Section
from landonce.check.sections import check_pipeline

__all__ = ["Check", "Section", "check_pipeline"]
