"""Kafka: brokers, offsets, and reading exact ranges."""
