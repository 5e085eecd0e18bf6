"""Records that describe changes of rows: envelopes, tombstones, operations."""
