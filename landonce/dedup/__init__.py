"""Content deduplication: events are unique by a key that the user defines."""
