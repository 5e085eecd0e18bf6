"""The engine: performs the protocol against real brokers, ledgers, targets and Spark."""
