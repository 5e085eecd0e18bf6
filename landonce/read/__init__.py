"""Read: from Kafka's bytes to typed columns. `schema` says what a record must look like, `decode` makes it so."""
