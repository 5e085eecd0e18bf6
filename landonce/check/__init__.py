"""Check: everything that can be said of a pipeline before it starts. Reads only: makes no table, no file, no topic.

`sections` has what every pipeline has: its file, Kafka, Spark, the dead letters. The sections of a sink are in its folder
(`Sink.checks`), and what sinks share is in `landonce.sinks.checking`.
"""

from landonce.check.sections import Check, Section, check_pipeline

__all__ = ["Check", "Section", "check_pipeline"]
