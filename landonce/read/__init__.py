"""Read: from Kafka's bytes to typed rows of tables, or rejects with a reason."""
