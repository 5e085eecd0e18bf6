"""Avro: the values of records are Avro bodies; their schema is in a file, or in a registry that each record names by an id."""
