"""What should have become of each record: the pipeline's decoding, `where`, `select` and routing, without its run.

Without a transform this needs no Spark. With one, Spark evaluates the same expressions over the records of a window. A
record lands in all of its tables or, where it does not fit one of them or has none, in the dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from landonce.engine.transform import chosen_columns, keep_column, widened
from landonce.errors import TransformFailed
from landonce.jvm import spark_errors
from landonce.read.changes.decode import ChangeDecoder, Changes
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.route import Routed, Routing, route_values, routes
from landonce.read.rows import KEEP, conform
from landonce.read.schema.fields import Schema
from landonce.sinks.audit import HeldTables, Offsets
from landonce.verify.judge import Fates
from landonce.verify.topic import Window

_AT = "__landonce_at"


class Expectation(Protocol):
    """Tells what should have become of the records of a window."""

    def of(self, window: Window) -> Fates: ...


@dataclass(frozen=True)
class Sorted:
    """Which records, or rows, go to which table, by their index and in order; and those that have none."""

    tables: Mapping[str, Offsets]
    bad: Offsets


def sort_records(routing: Routing, values: pa.BinaryArray) -> Sorted:
    """By the value of a field of each record."""
    field = routing.field
    return _sorted(routes(routing, values if field is None else route_values(values, field)))


def sort_rows(routing: Routing, rows: pa.Table) -> Sorted:
    """By the value of a column of what expressions made of records."""
    field = routing.field
    if field is None:
        return _sorted(routes(routing, pa.nulls(rows.num_rows)))
    return _sorted(routes(routing, rows.column(field).combine_chunks().cast(pa.string())))


def _sorted(routed: Routed) -> Sorted:
    tables = {table: _indexes(at) for table, at in routed.tables.items() if len(at)}
    return Sorted(tables, np.array([each.index for each in routed.rejects], np.int64))


def _indexes(array: pa.Int64Array) -> Offsets:
    return np.asarray(array.to_numpy(), np.int64)


@dataclass(frozen=True)
class Rows:
    """What a decoder makes of some records: which of them are rows, and which are neither rows nor filtered."""

    kept: Offsets
    rejected: Offsets
    table: pa.Table
    """What the kept records are, or change, one row for each."""
    changes: bool = False


class Decoder(Protocol):
    """Decodes records for one table. `keys` are the records' own keys."""

    def decode(self, values: pa.BinaryArray, keys: list[bytes | None]) -> Rows: ...


class PlainDecoder:
    """Every record that can be decoded is a row."""

    def __init__(self, schema: Schema, max_record_bytes: int) -> None:
        self._decoder = JsonDecoder(schema, max_record_bytes=max_record_bytes)

    def decode(self, values: pa.BinaryArray, keys: list[bytes | None]) -> Rows:
        del keys
        kept, table = self.rows(values)
        return Rows(kept, np.setdiff1d(np.arange(len(values)), kept, assume_unique=True), table)

    def rows(self, values: pa.BinaryArray) -> tuple[Offsets, pa.Table]:
        """The records that can be decoded, by their index, and their rows."""
        decoded = self._decoder.decode(values)
        return np.asarray(decoded.kept.to_numpy(), np.int64), decoded.table


class ChangingDecoder:
    """Records that change rows."""

    def __init__(self, schema: Schema, identity: tuple[str, ...], changes: Changes, max_record_bytes: int) -> None:
        self._decoder = ChangeDecoder(schema, identity, changes, max_record_bytes=max_record_bytes)

    def decode(self, values: pa.BinaryArray, keys: list[bytes | None]) -> Rows:
        changed = self._decoder.decode(values, keys)
        rejected = np.array([each.index for each in changed.rejects], np.int64)
        return Rows(_indexes(changed.kept), rejected, changed.table, changes=True)


class Decoded:
    """Every record that can be decoded for all of its tables lands in them."""

    def __init__(self, tables: HeldTables) -> None:
        self._tables = tables
        self._decoder_of = lru_cache(maxsize=None)(self._decoder)

    def _decoder(self, table: str) -> Decoder | None:
        """None if records for the table are dead letters."""
        tables, limit = self._tables, self._tables.recipe.max_record_bytes
        schema = tables.schema(table)
        if schema is None:
            lost = tables.lost(table)
            return PlainDecoder(lost, limit) if lost is not None else None
        if tables.changes is not None:
            return ChangingDecoder(schema, tables.identity, tables.changes, limit)
        return PlainDecoder(schema, limit)

    def of(self, window: Window) -> Fates:
        sorted_ = sort_records(self._tables.routing, window.values)
        dead = np.zeros(len(window.offsets), np.bool_)
        dead[sorted_.bad] = True
        found: dict[str, tuple[Offsets, pa.Table]] = {}
        changing = set()
        for table, places in sorted_.tables.items():
            decoder = self._decoder_of(table)
            if decoder is None:
                dead[places] = True
                continue
            rows = decoder.decode(*_taken(window, places))
            dead[places[rows.rejected]] = True
            found[table] = places[rows.kept], rows.table
            changing |= {table} if rows.changes else set()
        return _fates(window.offsets, dead, found, changing)


class Transformed:
    """Of the records that can be decoded, `where` filters, and those that do not fit a table are dead letters."""

    def __init__(self, tables: HeldTables, session: SparkSession) -> None:
        self._recipe = tables.recipe
        self._routing = tables.routing
        self._schema_of = lru_cache(maxsize=None)(tables.schema)
        self._session = session
        self._decoder = PlainDecoder(self._recipe.source, self._recipe.max_record_bytes)

    def of(self, window: Window) -> Fates:
        kept, rows = self._decoder.rows(window.values)
        dead = np.ones(len(window.offsets), np.bool_)
        dead[kept] = False
        if not len(kept):
            return Fates(window.offsets, dead, {})
        result = self._evaluate(rows.append_column(_AT, pa.array(kept)))
        chosen = result.filter(pc.fill_null(result.column(KEEP), False))
        at = np.asarray(chosen.column(_AT).to_numpy(), np.int64)
        order = np.argsort(at, kind="stable")
        at, chosen = at[order], chosen.take(pa.array(order))
        sorted_ = sort_rows(self._routing, chosen)
        dead[at[sorted_.bad]] = True
        found: dict[str, tuple[Offsets, pa.Table]] = {}
        for table, places in sorted_.tables.items():
            schema = self._schema_of(table)
            if schema is None:
                dead[at[places]] = True
                continue
            fitted, misfits = conform(chosen.take(pa.array(places)), schema, (_AT,))
            dead[at[places[[index for index, _ in misfits]]]] = True
            found[table] = np.asarray(fitted.column(_AT).to_numpy(), np.int64), fitted.drop_columns([_AT])
        return _fates(window.offsets, dead, found)

    def _evaluate(self, rows: pa.Table) -> pa.Table:
        wide = pa.schema([pa.field(each.name, widened(each.type, each.name)) for each in rows.schema])
        try:
            with spark_errors():
                return self._select(self._session.createDataFrame(rows.cast(wide))).toArrow()
        except PySparkException as error:
            raise TransformFailed(
                f"select or where failed on a record: {str(error).strip().splitlines()[0]}",
                safe="An audit changes nothing.",
                command="correct `transform` in {file}",
            ) from None

    def _select(self, frame: DataFrame) -> DataFrame:
        keep = keep_column(self._recipe).cast("boolean").alias(KEEP)
        return frame.select(col(_AT), keep, *chosen_columns(self._recipe))


def _taken(window: Window, places: Offsets) -> tuple[pa.BinaryArray, list[bytes | None]]:
    if len(places) == len(window.offsets):
        return window.values, window.keys
    return window.values.take(pa.array(places)), [window.keys[at] for at in places.tolist()] if window.keys else []


def _fates(
    offsets: Offsets, dead: Any, found: Mapping[str, tuple[Offsets, pa.Table]], changing: Collection[str] = ()
) -> Fates:
    """A record that is dead for one table lands in none."""
    lands = {}
    changes: dict[str, pa.Table] = {}
    held: dict[str, pa.Table] = {}
    for table, (places, rows) in found.items():
        alive = ~dead[places]
        lands[table] = places[alive]
        (changes if table in changing else held)[table] = rows if alive.all() else rows.filter(pa.array(alive))
    return Fates(offsets, dead, lands, changes, held)
