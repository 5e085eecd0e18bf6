"""Protobuf: one value is one message and becomes one row."""
