"""Records with a header whose name is not UTF-8: Kafka's client for Python cannot write them, and librdkafka can."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

_PRODUCER, _COPY = 0, 2
_END, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADER = 0, 1, 3, 4, 7, 9
"""`rd_kafka_vtype_t`: what follows in the arguments of `rd_kafka_producev`."""


def send_unreadable(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    """One record each in partition 0, with two headers: `source`, and one that cannot be read."""
    (library,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so*")
    kafka = ctypes.CDLL(str(library))
    kafka.rd_kafka_conf_new.restype = kafka.rd_kafka_new.restype = ctypes.c_void_p
    config, error = ctypes.c_void_p(kafka.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    size = ctypes.c_size_t(512)
    assert not kafka.rd_kafka_conf_set(config, b"bootstrap.servers", bootstrap_servers.encode(), error, size)
    producer = ctypes.c_void_p(kafka.rd_kafka_new(_PRODUCER, config, error, size))
    for value in values:
        arguments: list[object] = [ctypes.c_int(_TOPIC), topic.encode(), ctypes.c_int(_PARTITION), ctypes.c_int(0)]
        arguments += [ctypes.c_int(_FLAGS), ctypes.c_int(_COPY)]
        arguments += [ctypes.c_int(_VALUE), value, ctypes.c_size_t(len(value))]
        for name in (b"source", b"n\xff\xfe"):
            arguments += [ctypes.c_int(_HEADER), name, b"shop", ctypes.c_ssize_t(4)]
        assert not kafka.rd_kafka_producev(producer, *arguments, ctypes.c_int(_END))
    assert not kafka.rd_kafka_flush(producer, 30_000)
    kafka.rd_kafka_destroy(producer)
