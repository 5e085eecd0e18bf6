"""Rows from anywhere, pushed by a program: files, queues, other brokers, change streams. Without Kafka, and without Spark.

The batch machine is that of users' queries: a push is a micro-batch of one partition, and its workers run in this process.
"""
