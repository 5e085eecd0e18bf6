"""Avro bodies in Confluent's and in single-object framing. What becomes of each is in `outcomes/avro_framed.txt` and `outcomes/avro_object.txt`."""

import json

from corpus.avro_bodies import GOOD, TEXT
from corpus.in_memory import holding
from landonce.read.formats.avro.decode import Avro
from landonce.read.formats.avro.schema import fingerprint
from landonce.read.schema.registry import Registered

NEWER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
_OTHER = json.dumps({"type": "record", "name": "Visit", "fields": [{"name": "id", "type": "string"}]})
SCHEMA = "id BIGINT NOT NULL, s STRING"
REGISTERED = {
    1: Registered("AVRO", TEXT),
    2: Registered("AVRO", NEWER),
    3: Registered("AVRO", _OTHER),
    4: Registered("PROTOBUF", 'syntax = "proto3"; message A { int64 id = 1; }'),
    5: Registered("AVRO", "no schema"),
    6: Registered("AVRO", '"long"'),
    2**32 - 1: Registered("AVRO", NEWER),
}
FRAMED = Avro(registry=holding(REGISTERED), framing="confluent")
FRAMED_CASES: dict[str, bytes | None] = {
    "plain": b"\x00\x00\x00\x00\x01" + GOOD,
    "another version": b"\x00\x00\x00\x00\x02\x02",
    "largest id": b"\x00\xff\xff\xff\xff\x02",
    "a type that does not fit": b"\x00\x00\x00\x00\x03\x02x",
    "unknown id": b"\x00\x00\x00\x00\x09" + GOOD,
    "id 0": b"\x00\x00\x00\x00\x00" + GOOD,
    "id of Protobuf": b"\x00\x00\x00\x00\x04\x08\x01",
    "id of no schema": b"\x00\x00\x00\x00\x05" + GOOD,
    "id of a schema without fields": b"\x00\x00\x00\x00\x06\x02",
    "id in the other byte order": b"\x00\x01\x00\x00\x00" + GOOD,
    "cut in the frame": b"\x00\x00\x00",
    "only the frame": b"\x00\x00\x00\x00\x01",
    "cut in the body": b"\x00\x00\x00\x00\x01" + GOOD[:-1],
    "one byte too many": b"\x00\x00\x00\x00\x01" + GOOD + b"\x00",
    "body of another version": b"\x00\x00\x00\x00\x02" + GOOD,
    "framed twice": b"\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01" + GOOD,
    "no frame": GOOD,
    "another magic byte": b"\x01\x00\x00\x00\x01" + GOOD,
    "single object": b"\xc3\x01" + fingerprint(TEXT) + GOOD,
    "container file": b"Obj\x01" + GOOD,
    "JSON": b'{"id":1}',
    "empty": b"",
    "tombstone": None,
}
OBJECT = Avro((TEXT, NEWER), framing="single-object")
OBJECT_CASES: dict[str, bytes | None] = {
    "plain": b"\xc3\x01" + fingerprint(TEXT) + GOOD,
    "another version": b"\xc3\x01" + fingerprint(NEWER) + b"\x02",
    "unknown fingerprint": b"\xc3\x01" + fingerprint(_OTHER) + b"\x02x",
    "fingerprint in the other byte order": b"\xc3\x01" + fingerprint(TEXT)[::-1] + GOOD,
    "marker in the other byte order": b"\x01\xc3" + fingerprint(TEXT) + GOOD,
    "another version of the marker": b"\xc3\x02" + fingerprint(TEXT) + GOOD,
    "only the marker": b"\xc3\x01",
    "cut in the fingerprint": b"\xc3\x01" + fingerprint(TEXT)[:7],
    "only the frame": b"\xc3\x01" + fingerprint(TEXT),
    "cut in the body": b"\xc3\x01" + fingerprint(TEXT) + GOOD[:-1],
    "one byte too many": b"\xc3\x01" + fingerprint(TEXT) + GOOD + b"\x00",
    "framed twice": (b"\xc3\x01" + fingerprint(TEXT)) * 2 + GOOD,
    "Confluent's frame": b"\x00\x00\x00\x00\x01" + GOOD,
    "no frame": GOOD,
    "empty": b"",
    "tombstone": None,
}
