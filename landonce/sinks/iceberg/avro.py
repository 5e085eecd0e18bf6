"""Doubles in manifests, read as they are.

The compiled decoder of PyIceberg 0.12.0 declares what it reads from 8 bytes as a C `float`, so that a double comes back rounded
to 32 bits, or as infinity (https://github.com/apache/iceberg-python/pull/3808, merged after that release). Whoever merges
manifests writes such partition values back, and readers that take an identity partition's value from there give rounded rows.
"""

from __future__ import annotations

import struct

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.reader import DoubleReader

_DOUBLE = struct.Struct("<d")
_PROBE = 0.1


def read_doubles_whole() -> None:
    """Has PyIceberg read doubles from their 8 bytes, where its compiled decoder rounds them. Harmless when done again."""
    if new_decoder(_DOUBLE.pack(_PROBE)).read_double() != _PROBE:
        DoubleReader.read = _read  # type: ignore[method-assign, assignment]


def _read(_: DoubleReader, decoder: BinaryDecoder) -> float:
    return float(_DOUBLE.unpack(decoder.read(_DOUBLE.size))[0])
