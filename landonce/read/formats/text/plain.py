"""Formats that are not decoded, or decoded by another one: bytes, text, and what Confluent's framing holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.reasons import NO_VALUE, Code, Reason
from landonce.read.formats import Collected, Decoded, Decoder, Format
from landonce.read.schema.fields import Field, Schema
from landonce.read.schema.texts import true_in

_HEADER = 5


@dataclass(frozen=True)
class Plain(Format):
    """The value is no more than itself: the column `_value`, which every format has. It holds no fields."""

    text: bool = False
    has_fields: ClassVar[bool] = False
    is_text: ClassVar[bool] = True

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> Decoder:
        del max_record_bytes
        required = [each.name for each in schema.fields if each.required]
        if required:
            raise ValueError(f"records without fields have no {required[0]!r}, and the table requires it")
        return _NoFields(schema)

    def decisive(self) -> tuple[object, ...]:
        return ("plain",)

    def fields(self, values: Sequence[bytes]) -> Schema:
        del values
        return Schema((Field("_value", pa.string() if self.text else pa.binary()),))


@dataclass(frozen=True)
class _NoFields:
    schema: Schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows = [pa.nulls(len(values), each.type) for each in self.schema.arrow]
        return Decoded(pa.Table.from_arrays(rows, schema=self.schema.arrow), np.arange(len(values), dtype=np.int64))


@dataclass(frozen=True)
class Framed(Format):
    """Confluent's framing: a zero byte, the id of a schema in four bytes, and the value. The id is not looked at."""

    inner: Format

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> Decoder:
        return _FramedDecoder(self.inner.decoder(schema, max_record_bytes=max_record_bytes), schema)

    def decisive(self) -> tuple[object, ...]:
        return "framed", *self.inner.decisive()

    @property
    def written(self) -> pa.DataType | None:
        return self.inner.written

    def fields(self, values: Sequence[bytes]) -> Schema | None:
        return self.inner.fields(self.bodies(pa.array(values, pa.binary())).to_pylist())

    def keyed_by(self) -> tuple[object, ...]:
        return self.inner.keyed_by()

    def bodies(self, values: pa.BinaryArray) -> pa.BinaryArray:
        return pc.binary_slice(values.cast(pa.binary()), _HEADER, 2**31 - 1)


_UNFRAMED = Reason("does not begin with Confluent's framing", Code.BAD_FRAME)


@dataclass(frozen=True)
class _FramedDecoder:
    inner: Decoder
    schema: Schema

    def decode(self, values: pa.BinaryArray) -> Decoded:
        found = Collected(self.schema.arrow)
        values = values.cast(pa.binary())
        framed = pc.and_(pc.starts_with(values, pattern=b"\0"), pc.greater_equal(pc.binary_length(values), _HEADER))
        good = true_in(framed)
        for at in np.flatnonzero(~good).tolist():
            found.reject(at, _UNFRAMED if values[at].is_valid else NO_VALUE)
        bodies = pc.binary_slice(values.filter(pa.array(good)), _HEADER, 2**31 - 1)
        found.add(self.inner.decode(bodies), np.flatnonzero(good))
        return found.result()
