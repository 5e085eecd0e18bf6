"""Text and bytes: CSV, TSV, values that are not decoded, and what Confluent's framing holds."""
