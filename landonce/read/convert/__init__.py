"""`source.kafka.convert: fit`: values that are written in another way than their column's type."""
