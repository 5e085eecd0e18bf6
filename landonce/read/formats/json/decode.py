"""One Kafka value is one JSON object and becomes one row, or a reject with a reason; never a shifted neighbour.

Arrow's JSON reader is fast and decides every type, but it reads a stream of values, not of records. It ignores
newlines, so ``{"a":1}{"a":2}`` in one record is two rows, and an object may begin in one record and end in the next.
Counting rows proves nothing, because errors of both kinds cancel out. So each record starts with a marker that nobody
outside this process can know,

    {"a": 1}    becomes    {"<random>":7,"a": 1}

and a block counts as read only if the markers of its rows are exactly 0, 1, 2, … n-1. A row without its marker, a
marker inside another object, a missing or an additional row: each of them changes that sequence.

A block that fails is split until the bad records are alone. The result of a record depends only on that record, not on
its block, nor on the order of blocks: a retry decodes to the same rows.

Refused, in addition to what JSON and the schema exclude:

- a byte order mark;
- a repeated field of the schema (other repeated fields are ignored);
- a number outside the range of a double, even in an ignored field;
- an integer that its float field cannot hold exactly, and a number that would become 0 and is not. (Any other number with a
  point or an exponent becomes the nearest float, as in any JSON reader.);
- a float for an integer field, even 1.0; a fraction finer than a decimal or temporal type, unless its surplus
  digits are zeros;
- an escaped surrogate without its other half.

`rewrite` handles maps, JSON texts, and names that differ from those of the fields. A record that holds a field under
two names is refused.

Fields that are not in the schema are skipped; there Arrow accepts ``NaN`` and ``Infinity``.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from landonce.protocol.reasons import Code, Reason
from landonce.read.formats import Collected, Decoded, Format, Indexes
from landonce.read.formats.json.columns import (
    beyond_exact,
    holding_zero,
    holds_float,
    is_wide,
    require_decodable,
    settle,
    wire_type,
)
from landonce.read.formats.json.explain import Explained, explain, rounded
from landonce.read.formats.json.structure import Rewriter, is_whole, unwrapped
from landonce.read.schema.fields import JSON, Field, Schema
from landonce.read.schema.texts import mask_of
from landonce.read.schema.values import Fault, add_reasons

MAX_RECORD_BYTES = 16 * 2**20
VERSION = 4
"""Increased whenever the decoder makes other rows from the same bytes: it is part of every plan's fingerprint."""
_BLOCK_ROWS = 32_768
_BLOCK_BYTES = 32 * 2**20
_WAYS = 8  # how many pieces a failed block is split into
_SMALL = 256  # a failed block of at most this many records is read record by record
_INTEGERS_TO = {pa.float32(): 2**24, pa.float64(): 2**53}  # below this, a float holds every integer
_LONG_INTEGER = r"[:,\[]\s*-?[0-9]{8,}\s*[,\]}]"  # 2**24 has eight digits
_TINY = (
    r"(?:[0-9][eE]-0*[1-9][0-9]+|\.0{30}[0-9]*(?:[eE][+-]?[0-9]+)?)\s*[,\]}]"  # 10**-45 is the order of the least float
)
_REFUSED = (pa.ArrowInvalid, pa.ArrowCapacityError, pa.ArrowTypeError)  # the record's fault, not the machine's
_EMPTY = Reason("empty value", Code.NO_VALUE)
BYTE_ORDER_MARK = Reason("begins with a byte order mark", Code.MALFORMED)
_NO_OBJECT = Reason("not a JSON object", Code.MALFORMED)
_REFUSED_BY_READER = Reason("refused by the JSON reader", Code.MALFORMED)
Integers = frozenset[int]  # positions of the temporal fields that are read as integers instead of strings


class JsonDecoder:
    """Decodes arrays of record values; keep one per worker, since it learns how a topic writes its timestamps."""

    def __init__(self, schema: Schema, *, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        require_decodable(schema, max_record_bytes)
        self._schema = schema
        self._arrow = schema.arrow
        self._max_record_bytes = max_record_bytes
        self._rewriter = Rewriter(schema) if Rewriter.needed(schema) else None
        self._maps = tuple(each for each in schema.fields if each.place().holds_map)
        self._texts = tuple(at for at, each in enumerate(schema.fields) if each.place().holds_json)
        self._wide = any(is_wide(each.type) for each in schema.fields)
        self._ticked = [at for at, each in enumerate(schema.fields) if each.scale is not None]
        self._floats = [at for at, each in enumerate(schema.fields) if holds_float(each.type)]
        self._likely: Integers = frozenset()
        self._marker = secrets.token_urlsafe(9)
        self._openings = self._make_openings(1024)
        self._options: dict[tuple[Integers, bool], pj.ParseOptions] = {}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decodes every value, or says why not: ``len(kept) + len(rejects) == len(values)``."""
        found = Collected(self._arrow)
        rows, records = self._screen(found, values)
        for start, stop in blocks(records):
            self._decode_block(found, rows[start:stop], records.slice(start, stop - start))
        return found.result()

    # Screening: afterwards every record is valid UTF-8, of an acceptable size, and opens with a brace.

    def _screen(self, found: Collected, values: pa.BinaryArray) -> tuple[Indexes, pa.BinaryArray]:
        rows, records = found.screen(values, self._max_record_bytes, text=True)
        if pc.all(pc.starts_with(records, pattern="{"), min_count=0).as_py():
            return rows, records
        records = pc.ascii_ltrim(records.cast(pa.string()), characters=" \t\r\n").cast(pa.binary())
        opens = mask_of(pc.starts_with(records, pattern="{"))
        for at in np.flatnonzero(~opens).tolist():
            text = records[at].as_py().decode()
            reason = explain(text, self._schema).reason or _NO_OBJECT if text else _EMPTY
            found.reject(rows[at], BYTE_ORDER_MARK if text.startswith("\ufeff") else reason)
        return rows[opens], records.filter(pa.array(opens))

    # Isolation: try a block; split it if it fails; read small pieces record by record.

    def _decode_block(self, found: Collected, rows: Indexes, records: pa.BinaryArray) -> None:
        if self._wide:
            return self._decode_each(found, rows, records)
        if self._try(found, rows, records, self._likely):
            return None
        for integers, members in self._group_by_guess(records):
            failed_already = integers == self._likely and len(members) == len(rows)
            group = rows[members], records.take(pa.array(members))
            if not failed_already and self._try(found, *group, integers):
                self._likely = integers
            else:
                self._cut(found, *group, integers)
        return None

    def _cut(self, found: Collected, rows: Indexes, records: pa.BinaryArray, integers: Integers) -> None:
        if len(rows) <= _SMALL:
            return self._decode_each(found, rows, records)
        step = -(-len(rows) // _WAYS)
        for start in range(0, len(rows), step):
            piece = rows[start : start + step], records.slice(start, step)
            if not self._try(found, *piece, integers):
                self._cut(found, *piece, integers)
        return None

    def _decode_each(self, found: Collected, rows: Indexes, records: pa.BinaryArray) -> None:
        good: defaultdict[Integers, list[int]] = defaultdict(list)
        suspect: list[tuple[int, Explained]] = []
        texts = records.to_pylist()
        for at, text in enumerate(texts):
            finding = explain(text.decode(), self._schema)
            if finding.empty:  # nothing follows the brace, so the marker must not end in a comma
                texts[at] = f'{{"{self._marker}{self._marker}":null}}'.encode()
            if finding.reason is None:
                good[self._ticked_in(finding)].append(at)
            elif finding.certain or self._wide:
                found.reject(rows[at], finding.reason)
            else:
                suspect.append((at, finding))
        for integers, members in good.items():
            group = pa.array([texts[at] for at in members], pa.binary())
            if not self._try(found, rows[members], group, integers):
                suspect += [(at, Explained(integers=integers)) for at in members]
        for at, finding in suspect:
            record = pa.array([texts[at]], pa.binary())
            integers = self._ticked_in(finding)
            if finding.integers is None:  # the standard library cannot read the record: ask Arrow
                ticked = ((each, self._read(record, frozenset([each]), only=True)) for each in self._ticked)
                integers = frozenset(each for each, table in ticked if table is not None)
            if not self._try(found, rows[at : at + 1], record, integers):
                found.reject(rows[at], finding.reason or _REFUSED_BY_READER)

    def _ticked_in(self, finding: Explained) -> Integers:
        return frozenset(at for at in self._ticked if at in (finding.integers or ()))

    def _group_by_guess(self, records: pa.BinaryArray) -> Iterator[tuple[Integers, Indexes]]:
        """Groups records by which temporal fields look like integers; a wrong guess only costs time."""
        looks = np.zeros((len(records), len(self._ticked)), dtype=np.bool_)
        for column, at in enumerate(self._ticked):
            names = self._schema.fields[at].place().names
            either = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in names)
            match = pc.match_substring_regex(
                records, pattern=rf"(?:{either})\s*:\s*[-0-9]", ignore_case=self._schema.fold_case
            )
            looks[:, column] = match.to_numpy(zero_copy_only=False)
        kinds, kind_of = np.unique(looks, axis=0, return_inverse=True)
        for kind, look in enumerate(kinds):
            integers = frozenset(at for at, integer in zip(self._ticked, look, strict=True) if integer)
            yield integers, np.flatnonzero(kind_of.reshape(-1) == kind)

    # Reading: the one place where records become rows.

    def _try(self, found: Collected, rows: Indexes, records: pa.BinaryArray, integers: Integers) -> bool:
        """Decodes the records together, or changes nothing and returns False."""
        table = self._read(records, integers)
        if table is None:
            return False
        reasons: dict[int, Reason] = {}
        columns = []
        for each, column in zip(self._schema.fields, table.columns, strict=True):
            settled, faults = settle(column.combine_chunks(), each)
            columns.append(settled)
            add_reasons(reasons, faults, each.name)
        # A large float may be a rounded integer, if the record holds a large one; a zero may be none, if it holds a tiny number.
        floats = [table.column(at).combine_chunks() for at in self._floats]
        large = [fault for each in floats for fault in beyond_exact(each, _INTEGERS_TO)]
        zero = [fault for each in floats for fault in holding_zero(each)]
        for at in sorted({*_written(records, large, _LONG_INTEGER), *_written(records, zero, _TINY)}):
            reason = None if at in reasons else rounded(records[at].as_py().decode(), self._schema)
            if reason is not None:
                reasons[at] = reason
        found.settle(rows, columns, reasons)
        return True

    def _read(self, records: pa.BinaryArray, integers: Integers, *, only: bool = False) -> pa.Table | None:
        """The records as rows of wire types, or None unless each record is exactly one row.

        With ``only``, nothing but the ``integers`` is read.
        """
        count = len(records)
        if count > len(self._openings):
            self._openings = self._make_openings(_BLOCK_ROWS)
        rest = pc.binary_slice(records, 1, self._max_record_bytes)  # without a stop, Arrow overflows on long arrays
        stream = pc.binary_join_element_wise(self._openings.slice(0, count), rest, b"\n", b"")
        ends = np.frombuffer(stream.buffers()[1], np.int32, count + 1)[1:]
        text = stream.buffers()[2].slice(0, int(ends[-1]))
        texts = None
        if self._rewriter is not None:
            rewritten = self._rewriter.rewrite(text, ends.astype(np.int64))
            if rewritten is None:
                return None
            text, texts = rewritten
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=self._parse_options(integers, only),
            )
        except _REFUSED:
            return None
        markers = table.column(0).combine_chunks()
        if table.num_rows != count or markers.null_count or not np.array_equal(markers.to_numpy(), np.arange(count)):
            return None
        if only:
            return table
        if not all(is_whole(table.column(each.name).combine_chunks(), each.type) for each in self._maps):
            return None
        table = table.remove_column(0)
        for at in self._texts:
            name, type_ = table.schema.names[at], self._schema.fields[at].type
            table = table.set_column(at, name, unwrapped(table.column(at).combine_chunks(), type_, texts))
        return table

    def _parse_options(self, integers: Integers, only: bool) -> pj.ParseOptions:
        if (integers, only) not in self._options:
            wire = [
                pa.field(each.name, wire_type(each.type, integers=at in integers))
                for at, each in enumerate(self._schema.fields)
                if at in integers or not only
            ]
            self._options[integers, only] = pj.ParseOptions(
                explicit_schema=pa.schema([pa.field(self._marker, pa.int64()), *wire]),
                unexpected_field_behavior="ignore",
            )
        return self._options[integers, only]

    def _make_openings(self, count: int) -> pa.BinaryArray:
        return pa.array([f'{{"{self._marker}":{at},'.encode() for at in range(count)], pa.binary())


@cache
def _probe() -> JsonDecoder:
    return JsonDecoder(Schema((Field("\0landonce", pa.bool_()),)), max_record_bytes=2**30)


def objects_in(values: pa.BinaryArray) -> Indexes:
    """Which values are JSON objects, whatever they hold."""
    return _probe().decode(values).kept


def _written(records: pa.BinaryArray, suspect: list[Fault], pattern: str) -> list[int]:
    """The suspect rows whose records match."""
    if not suspect:
        return []
    rows = np.flatnonzero(np.any([each.rows for each in suspect], axis=0))
    found = pc.match_substring_regex(records if len(rows) == len(records) else records.take(pa.array(rows)), pattern)
    return [int(row) for row in rows[found.to_numpy(zero_copy_only=False)]]


def blocks(records: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """Splits into half-open ranges of bounded rows and bytes; never splits a record, however large."""
    ends = np.cumsum(pc.binary_length(records).to_numpy(zero_copy_only=False), dtype=np.int64)
    start = 0
    while start < len(ends):
        budget = ends[start] + _BLOCK_BYTES
        within = int(np.searchsorted(ends, budget, side="right"))
        stop = min(start + _BLOCK_ROWS, max(start + 1, within))
        yield start, stop
        start = stop


@dataclass(frozen=True)
class Json(Format):
    """Each value is a JSON object."""

    is_text: ClassVar[bool] = True

    def decoder(self, schema: Schema, *, max_record_bytes: int = MAX_RECORD_BYTES) -> JsonDecoder:
        return JsonDecoder(schema, max_record_bytes=max_record_bytes)

    def decisive(self) -> tuple[object, ...]:
        return "json", VERSION

    @property
    def written(self) -> pa.DataType:
        return JSON
