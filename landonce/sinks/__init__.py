"""Sinks: one folder each. `contract` is what a deduplicating target must be able to do."""
