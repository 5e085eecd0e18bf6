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
- an integer that its float field cannot hold exactly. (A number with a point or an exponent becomes the nearest float,
  as in any JSON reader.);
- a float for an integer field, even 1.0; a fraction finer than a decimal or temporal type, unless its surplus
  digits are zeros;
- an escaped surrogate without its other half.

`rewrite` handles maps, and names that differ from those of the fields. A record that holds a field under two names is
refused.

Fields that are not in the schema are skipped; there Arrow accepts ``NaN`` and ``Infinity``.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from landonce.read.formats.json.columns import beyond_exact, check_supported, holds_float, is_wide, settle, wire_type
from landonce.read.formats.json.explain import Finding, explain, rounded
from landonce.read.formats.json.rewrite import Rewriter, is_whole
from landonce.read.schema.fields import Schema

MAX_RECORD_BYTES = 16 * 2**20
VERSION = 2
"""Increased whenever the decoder makes other rows from the same bytes: it is part of every plan's fingerprint."""

_BLOCK_ROWS = 32_768
_BLOCK_BYTES = 32 * 2**20
_WAYS = 8  # how many pieces a failed block is split into
_SMALL = 256  # a failed block of at most this many records is read record by record
_INTEGERS_TO = {pa.float32(): 2**24, pa.float64(): 2**53}  # below this, a float holds every integer
_LONG_INTEGER = r"[:,\[]\s*-?[0-9]{8,}\s*[,\]}]"  # 2**24 has eight digits
_REFUSED = (pa.ArrowInvalid, pa.ArrowCapacityError, pa.ArrowTypeError)  # the record's fault, not the machine's

Rows = npt.NDArray[np.int64]
Integers = frozenset[int]  # positions of the temporal fields that are read as integers instead of strings


@dataclass(frozen=True)
class Reject:
    """``index`` points into the decoded array; ``reason`` holds no content of the record."""

    index: int
    reason: str


@dataclass(frozen=True)
class Decoded:
    """Row ``i`` of ``table`` came from input ``kept[i]``; the other inputs are rejected, and order is preserved."""

    table: pa.Table
    kept: pa.Int64Array
    rejects: tuple[Reject, ...]


@dataclass
class _Progress:
    """The results so far, in the order in which they came."""

    tables: list[pa.Table] = field(default_factory=list)
    kept: list[Rows] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    def keep(self, rows: Rows, table: pa.Table) -> None:
        self.kept.append(rows)
        self.tables.append(table)

    def reject(self, row: int, reason: str) -> None:
        self.rejects.append(Reject(int(row), reason))

    def result(self, schema: pa.Schema) -> Decoded:
        kept = np.concatenate([np.empty(0, np.int64), *self.kept])
        table = pa.concat_tables(self.tables) if self.tables else schema.empty_table()
        if (np.diff(kept) < 0).any():
            order = np.argsort(kept)
            kept, table = kept[order], table.combine_chunks().take(pa.array(order))
        rejects = tuple(sorted(self.rejects, key=lambda reject: reject.index))
        return Decoded(table, pa.array(kept), rejects)


class JsonDecoder:
    """Decodes arrays of record values; keep one per worker, since it learns how a topic writes its timestamps."""

    def __init__(self, schema: Schema, *, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        if not 0 < max_record_bytes <= 2**30:
            raise ValueError(f"max_record_bytes must be between 1 and {2**30}, not {max_record_bytes}")
        for each in schema.fields:
            check_supported(each)
        self._schema = schema
        self._arrow = schema.arrow
        self._max_record_bytes = max_record_bytes
        self._rewriter = Rewriter(schema) if Rewriter.needed(schema) else None
        self._maps = tuple(each for each in schema.fields if each.place().holds_map)
        self._wide = any(is_wide(each.type) for each in schema.fields)
        self._ticked = [at for at, each in enumerate(schema.fields) if each.scale is not None]
        self._floats = [at for at, each in enumerate(schema.fields) if holds_float(each.type)]
        self._likely: Integers = frozenset()
        self._marker = secrets.token_urlsafe(9)
        self._openings = self._make_openings(1024)
        self._options: dict[tuple[Integers, bool], pj.ParseOptions] = {}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decodes every value, or says why not: ``len(kept) + len(rejects) == len(values)``."""
        progress = _Progress()
        rows, records = self._screen(progress, values.cast(pa.binary()))
        for start, stop in blocks(records):
            self._decode_block(progress, rows[start:stop], records.slice(start, stop - start))
        return progress.result(self._arrow)

    # Screening: afterwards every record is valid UTF-8, of an acceptable size, and opens with a brace.

    def _screen(self, progress: _Progress, values: pa.BinaryArray) -> tuple[Rows, pa.BinaryArray]:
        if self._is_clean(values):
            return np.arange(len(values), dtype=np.int64), values
        rows, records = [], []
        for row, value in enumerate(values.to_pylist()):
            reason, record = self._screen_one(value)
            if reason is None:
                rows.append(row)
                records.append(record)
            else:
                progress.reject(row, reason)
        return np.array(rows, dtype=np.int64), pa.array(records, pa.binary())

    def _is_clean(self, values: pa.BinaryArray) -> bool:
        if values.null_count or (pc.max(pc.binary_length(values)).as_py() or 0) > self._max_record_bytes:
            return False
        try:
            values.cast(pa.string())
        except pa.ArrowInvalid:
            return False
        return bool(pc.all(pc.starts_with(values, pattern="{"), min_count=0).as_py())

    def _screen_one(self, value: bytes | None) -> tuple[str | None, bytes]:
        if value is None:
            return "no value (a tombstone)", b""
        if len(value) > self._max_record_bytes:
            return f"record of {len(value)} bytes exceeds max_record_bytes={self._max_record_bytes}", b""
        record = value.lstrip(b" \t\r\n")
        try:
            text = record.decode()
        except UnicodeDecodeError:
            return "not valid UTF-8", b""
        if not text:
            return "empty value", b""
        if text.startswith("\ufeff"):
            return "begins with a byte order mark", b""
        if not text.startswith("{"):
            return explain(text, self._schema).reason or "not a JSON object", b""
        return None, record

    # Isolation: try a block; split it if it fails; read small pieces record by record.

    def _decode_block(self, progress: _Progress, rows: Rows, records: pa.BinaryArray) -> None:
        if self._wide:
            return self._decode_each(progress, rows, records)
        if self._try(progress, rows, records, self._likely):
            return None
        for integers, members in self._group_by_guess(records):
            failed_already = integers == self._likely and len(members) == len(rows)
            group = rows[members], records.take(pa.array(members))
            if not failed_already and self._try(progress, *group, integers):
                self._likely = integers
            else:
                self._cut(progress, *group, integers)
        return None

    def _cut(self, progress: _Progress, rows: Rows, records: pa.BinaryArray, integers: Integers) -> None:
        if len(rows) <= _SMALL:
            return self._decode_each(progress, rows, records)
        step = -(-len(rows) // _WAYS)
        for start in range(0, len(rows), step):
            piece = rows[start : start + step], records.slice(start, step)
            if not self._try(progress, *piece, integers):
                self._cut(progress, *piece, integers)
        return None

    def _decode_each(self, progress: _Progress, rows: Rows, records: pa.BinaryArray) -> None:
        good: defaultdict[Integers, list[int]] = defaultdict(list)
        suspect: list[tuple[int, Finding]] = []
        texts = records.to_pylist()
        for at, text in enumerate(texts):
            finding = explain(text.decode(), self._schema)
            if finding.empty:  # nothing follows the brace, so the marker must not end in a comma
                texts[at] = f'{{"{self._marker}{self._marker}":null}}'.encode()
            if finding.reason is None:
                good[self._ticked_in(finding)].append(at)
            elif finding.certain or self._wide:
                progress.reject(rows[at], finding.reason)
            else:
                suspect.append((at, finding))
        for integers, members in good.items():
            group = pa.array([texts[at] for at in members], pa.binary())
            if not self._try(progress, rows[members], group, integers):
                suspect += [(at, Finding(integers=integers)) for at in members]
        for at, finding in suspect:
            self._decode_alone(progress, rows[at : at + 1], texts[at], finding)

    def _decode_alone(self, progress: _Progress, row: Rows, text: bytes, finding: Finding) -> None:
        record = pa.array([text], pa.binary())
        integers = self._probe(record) if finding.integers is None else self._ticked_in(finding)
        if not self._try(progress, row, record, integers):
            progress.reject(row[0], finding.reason or "refused by the JSON reader")

    def _ticked_in(self, finding: Finding) -> Integers:
        return frozenset(at for at in self._ticked if at in (finding.integers or ()))

    def _probe(self, record: pa.BinaryArray) -> Integers:
        """Asks Arrow which temporal fields are integers, for a record that the standard library cannot read."""
        return frozenset(at for at in self._ticked if self._read(record, frozenset([at]), only=True) is not None)

    def _group_by_guess(self, records: pa.BinaryArray) -> Iterator[tuple[Integers, Rows]]:
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

    def _try(self, progress: _Progress, rows: Rows, records: pa.BinaryArray, integers: Integers) -> bool:
        """Decodes the records together, or changes nothing and returns False."""
        table = self._read(records, integers)
        if table is None:
            return False
        reasons: dict[int, str] = {}
        columns = []
        for each, column in zip(self._schema.fields, table.columns, strict=True):
            settled, faults = settle(column.combine_chunks(), each)
            columns.append(settled)
            for fault in faults:
                for bad in np.flatnonzero(fault.rows):
                    reasons.setdefault(int(bad), fault.reason(each.name))
        for at in self._maybe_rounded(table, records):
            reason = None if at in reasons else rounded(records[at].as_py().decode(), self._schema)
            if reason is not None:
                reasons[at] = reason
        keep = np.ones(len(rows), dtype=np.bool_)
        for at, reason in reasons.items():
            progress.reject(rows[at], reason)
            keep[at] = False
        if reasons:
            columns = [column.filter(pa.array(keep)) for column in columns]
        progress.keep(rows[keep], pa.Table.from_arrays(columns, schema=self._arrow))
        return True

    def _maybe_rounded(self, table: pa.Table, records: pa.BinaryArray) -> list[int]:
        """Rows with a float that may be a rounded integer: the float is large, and the record holds a large integer."""
        large = np.zeros(len(records), dtype=np.bool_)
        for at in self._floats:
            for fault in beyond_exact(table.column(at).combine_chunks(), _INTEGERS_TO):
                large |= fault.rows
        rows = np.flatnonzero(large)
        if not len(rows):
            return []
        written = pc.match_substring_regex(records.take(pa.array(rows)), pattern=_LONG_INTEGER)
        found: list[int] = rows[written.to_numpy(zero_copy_only=False)].tolist()
        return found

    def _read(self, records: pa.BinaryArray, integers: Integers, *, only: bool = False) -> pa.Table | None:
        """The records as rows of wire types, or None unless each record is exactly one row.

        With ``only``, nothing but the ``integers`` is read.
        """
        count = len(records)
        rest = pc.binary_slice(records, 1, self._max_record_bytes)  # without a stop, Arrow overflows on long arrays
        stream = pc.binary_join_element_wise(self._opening(count), rest, b"\n", b"")
        ends = np.frombuffer(stream.buffers()[1], np.int32, count + 1)[1:]
        text = stream.buffers()[2].slice(0, int(ends[-1]))
        if self._rewriter is not None:
            text = self._rewriter.rewrite(text, ends.astype(np.int64))
        if text is None:
            return None
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
        whole = all(is_whole(table.column(each.name).combine_chunks(), each.type) for each in self._maps if not only)
        return table.remove_column(0) if whole else None

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

    def _opening(self, count: int) -> pa.BinaryArray:
        if count > len(self._openings):
            self._openings = self._make_openings(_BLOCK_ROWS)
        return self._openings.slice(0, count)

    def _make_openings(self, count: int) -> pa.BinaryArray:
        return pa.array([f'{{"{self._marker}":{at},'.encode() for at in range(count)], pa.binary())


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
