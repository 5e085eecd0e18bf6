"""JSON: one value is one object and becomes one row."""
