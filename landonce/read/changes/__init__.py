"""Records that say how rows changed: envelopes, tombstones, operations."""
