"""The benchmark: landonce against ClickHouse's own Kafka engine, in one server, on one topic, in one run.

Ratios of things measured side by side; never an assertion. Run it with `make bench`.
"""
